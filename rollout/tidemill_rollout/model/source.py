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
            make = _maker(source, dtype)
            folder = _once(cache / f"{rest}-{smollm2.package_version()}-{dtype}", make)
        case "tiny":
            folder = _once(cache / f"tiny-{rest}-{tiny.REVISION}-{dtype}", _maker(source, dtype))
        case "pvc":
            raise ModelError(f"spec.model.source {source}: volume claims exist on a cluster only; on one machine use path:/dir")
        case _:
            raise _unknown(source)
    check(folder)
    return folder


def writer(source: str, dtype: str, base: Path, claims: Path) -> Callable[[Path], None]:
    """What fills an empty folder with the model of `source`. Volume claims are mounted in `claims`, each in a folder of its name.

    Raises:
        ModelError: at once where the source can be seen to be wrong; else by what is returned.
    """
    kind, _, rest = source.partition(":")
    match kind:
        case "path":
            return _copier(source, (base / rest).resolve(), "mount it into the pods with spec.cells.template and spec.conductor.template")
        case "pvc":
            name, _, folder = rest.partition("/")
            return _copier(source, claims / name / folder, f"is the claim {name} there, and the folder in it?")
        case "hf":
            return lambda at: _download(rest, at)
        case "package" | "tiny":
            return _maker(source, dtype)
        case _:
            raise _unknown(source)


def _copier(source: str, folder: Path, remedy: str) -> Callable[[Path], None]:
    try:
        check(folder)
    except ModelError as cause:
        raise ModelError(f"spec.model.source {source}: {cause}; {remedy}") from cause
    return lambda at: _copy(folder, at)


def _copy(folder: Path, at: Path) -> None:
    for file in sorted(folder.iterdir()):
        if file.is_file():
            shutil.copyfile(file, at / file.name)


def _maker(source: str, dtype: str) -> Callable[[Path], None]:
    kind, _, rest = source.partition(":")
    if kind == "package" and rest != smollm2.PACKAGE:
        raise ModelError(f"spec.model.source {source}: package:{smollm2.PACKAGE} is the only package with weights that is known; use hf: or path:")
    if kind == "tiny" and rest not in tiny.FAMILIES:
        raise ModelError(f"spec.model.source {source}: the tiny models are " + ", ".join(f"tiny:{name}" for name in tiny.FAMILIES))

    def make(at: Path) -> None:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        if kind == "tiny":
            tiny.make(at, rest, dtype)
        else:
            smollm2.dequantise(at, dtype)

    return make


def _unknown(source: str) -> ModelError:
    return ModelError(f"spec.model.source {source!r}: start it with hf:, path:, package:, tiny: or pvc:")


def _once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Make `folder` whole or not at all; whoever comes second uses what the first has made."""
    if (folder / "config.json").is_file():
        return folder
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
    return _snapshot(name, cache=cache / "hub")


def _download(name: str, into: Path) -> None:
    _snapshot(name, into=into)
    shutil.rmtree(into / ".cache", ignore_errors=True)  # the hub's notes of the download


def _snapshot(name: str, cache: Path | None = None, into: Path | None = None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, cache_dir=cache, local_dir=into, allow_patterns=HUB_PATTERNS))
    except (RepositoryNotFoundError, RevisionNotFoundError) as cause:
        raise ModelError(f"spec.model.source hf:{name}: the hub has no such model or revision, or it needs a token (HF_TOKEN)") from cause
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as cause:
        raise ModelError(
            f"spec.model.source hf:{name}: not downloaded ({type(cause).__name__}: {cause}); without network use path: or package:"
        ) from cause
