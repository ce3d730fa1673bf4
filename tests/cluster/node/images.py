"""The product's images, built by images/build.sh on a Debian base of our own: no container engine and no image registry is needed.

Base and images are cached outside the repository. What is rebuilt is decided by the files that go into an image.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("operator", "conductor", "sandbox")
BASE = "localhost/tidemill-base:trixie"
SUITE = "trixie"  # the oldest Debian whose Python is new enough
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
PREFIX = "localhost/tidemill"  # a name without a registry would mean one of the internet's to containerd
_SOURCES = (
    "tests/cluster/node/images.py",
    "pyproject.toml",
    "requirements",
    "images",
    "tidemill",
    "operator",
    "rollout",
    "trainer",
    "cell",
    "examples/quickstart",
)


class BuildFailed(Exception):
    """An image cannot be built here; the text is the end of what was said."""


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    tag: str
    archive: Path  # OCI, for `ctr images import`
    configuration: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Container:
    """Of an image, with its user and environment. Making one copies the image."""

    image: Image
    name: str

    def run(self, *command: str) -> str:
        """What the program wrote. Raises BuildFailed when it fails."""
        return _buildah("run", "--isolation", "chroot", self.name, "--", *command)


@contextmanager
def container(of: Image) -> Iterator[Container]:
    made = Container(of, _buildah("from", "--pull-never", of.tag).strip())
    try:
        yield made
    finally:
        _buildah("rm", made.name)


def image(name: str) -> Image:
    """The image of these sources; built, which takes a minute or two, when it is not there yet."""
    cache().mkdir(parents=True, exist_ok=True)
    archive, stamp = cache() / f"{name}.tar", cache() / f"{name}.sources"
    digest = _digest_of_sources()
    if not (archive.exists() and stamp.exists() and stamp.read_text() == digest):
        stamp.unlink(missing_ok=True)
        _build(name, archive)
        stamp.write_text(digest)
    tag = f"{PREFIX}/{name}:test"
    return Image(name, tag, archive, json.loads(_buildah("inspect", "--type", "image", tag))["OCIv1"]["config"])


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidemill" / "images"


def _build(name: str, archive: Path) -> None:
    _make_base()
    environment = os.environ | {
        "BUILDER": "buildah",
        "STORAGE_ROOT": str(cache() / "storage"),
        "ARCHIVE": str(archive),
        "PREFIX": PREFIX,
        "TAG": "test",
    }
    if AUTHORITIES.exists():
        environment["PIP_CA"] = str(AUTHORITIES)
    _run([str(ROOT / "images" / "build.sh"), name, BASE], environment)
    _buildah("rmi", "--prune")  # the image that had the name before


def _make_base() -> None:
    if BASE in _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return
    folder = cache() / "base"
    shutil.rmtree(folder, ignore_errors=True)  # of a build that was killed
    try:
        _run(["debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", SUITE, str(folder)])
        for package in (folder / "var/cache/apt/archives").glob("*.deb"):
            package.unlink()
        container = _buildah("from", "scratch").strip()
        _buildah("add", "--quiet", container, str(folder), "/")
        _buildah("commit", "--quiet", "--rm", container, BASE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _digest_of_sources() -> str:
    whole = hashlib.sha256()
    for file in sorted(_files()):
        whole.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return whole.hexdigest()


def _files() -> Iterator[Path]:
    for source in (ROOT / name for name in (*_SOURCES, ".dockerignore")):
        yield from (f for f in (source.rglob("*") if source.is_dir() else [source]) if f.is_file() and "__pycache__" not in f.parts)


def _buildah(*arguments: str) -> str:
    storage = cache() / "storage"
    return _run(["buildah", "--storage-driver", "vfs", "--root", str(storage), "--runroot", str(storage / "run"), *arguments])


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise BuildFailed(f"`{' '.join(command[:8])}` failed:\n{said}")
    return done.stdout
