"""Resolve `spec.model.source`: packages are dequantised and tiny models made once, into a cache; folders and hub models are used as they are."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tidemill_rollout.model import smollm2, tiny
from tidemill_rollout.model.folder import ModelError, check

HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def default_cache() -> Path:
    """Outside any repository: prepared models are large and the same for all jobs of a user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidemill" / "models"


def resolve(source: str, dtype: str, base: Path, cache: Path) -> Path:
    """The folder of `source`, made under `cache` if need be; `path:` is relative to `base`, the folder of the manifest.

    Raises:
        ModelError: unknown source, or a folder in which something is missing.
    """
    kind, _, rest = source.partition(":")
    match kind:
        case "path":
            folder = (base / rest).resolve()
        case "hf":
            folder = _hub(rest, cache)
        case "package":
            if rest != smollm2.PACKAGE:
                raise ModelError(
                    f"spec.model.source {source}: package:{smollm2.PACKAGE} is the only package with weights that is known; use hf: or path:"
                )
            folder = _once(cache / f"{rest}-{smollm2.package_version()}-{dtype}", lambda at: smollm2.dequantise(at, dtype))
        case "tiny":
            if rest not in tiny.FAMILIES:
                raise ModelError(f"spec.model.source {source}: the tiny models are " + ", ".join(f"tiny:{name}" for name in tiny.FAMILIES))
            folder = _once(cache / f"tiny-{rest}-{tiny.REVISION}-{dtype}", lambda at: tiny.make(at, rest, dtype))
        case "pvc":
            raise ModelError(f"spec.model.source {source}: volume claims exist on a cluster only; on one machine use path:/dir")
        case _:
            raise ModelError(f"spec.model.source {source!r}: start it with hf:, path:, package:, tiny: or pvc:")
    check(folder)
    return folder


def _once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Make `folder` whole or not at all; whoever comes second uses what the first has made."""
    if (folder / "config.json").is_file():
        return folder
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(draft)
        draft.chmod(0o755)
        draft.rename(folder)
    except OSError as cause:
        if not (folder / "config.json").is_file():
            raise ModelError(f"model folder {folder} could not be written: {cause}") from cause
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _hub(name: str, cache: Path) -> Path:
    """A snapshot of a hub model, in the hub's own cache layout under ours."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, cache_dir=cache / "hub", allow_patterns=HUB_PATTERNS))
    except (RepositoryNotFoundError, RevisionNotFoundError) as cause:
        raise ModelError(f"spec.model.source hf:{name}: the hub has no such model or revision, or it needs a token (HF_TOKEN)") from cause
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as cause:
        raise ModelError(
            f"spec.model.source hf:{name}: not downloaded ({type(cause).__name__}: {cause}); without network use path: or package:"
        ) from cause
