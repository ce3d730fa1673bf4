"""A job's model in a folder that all its pods share: made by whichever comes first, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tidemill_rollout.model.folder import ModelError, check
from tidemill_rollout.model.source import writer

ORIGIN = "tidemill-model.json"
WAIT_SECONDS = 3600.0
"""How long a pod that may only read waits for one that writes: a large model is downloaded first."""

POLL_SECONDS = 2.0


class Origin(msgspec.Struct, frozen=True):
    """What the folder was made of, written into it."""

    source: str
    dtype: str


def prepare(origin: Origin, into: Path, base: Path, claims: Path, wait_seconds: float = WAIT_SECONDS) -> Path:
    """Have the model of `origin` in `into`; instant when it is there. `path:` is relative to `base`, `pvc:NAME/dir` lies in `claims`/NAME/dir.

    Raises:
        ModelError: the source cannot be used, `into` holds something else, or the disk is full.
    """
    if _is_there(into, origin):
        return into
    write = writer(origin.source, origin.dtype, base, claims)
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        with _alone(into):
            if not _is_there(into, origin):
                _make(into, origin, write)
    except OSError as cause:
        if cause.errno in (errno.EROFS, errno.EACCES):
            return await_made(origin, into, wait_seconds)
        raise ModelError(f"model folder {into}: cannot be written ({cause}); free or enlarge the volume of spec.checkpoints.storage") from cause
    return into


def _is_there(into: Path, origin: Origin) -> bool:
    """Raises `ModelError` when it is there and another one, or is broken: nobody guesses what another job still needs."""
    if not into.exists():
        return False
    try:
        found = msgspec.json.decode((into / ORIGIN).read_bytes(), type=Origin)
    except (OSError, msgspec.MsgspecError) as cause:
        raise ModelError(f"model folder {into}: it was not made by tidemill ({cause}); remove it, or give another folder") from cause
    if found != origin:
        raise ModelError(
            f"model folder {into}: it holds {found.source} in {found.dtype}, but the job wants {origin.source} in {origin.dtype}; "
            "a job keeps its model: remove the folder, or make a new job"
        )
    check(into)
    return True


@contextlib.contextmanager
def _alone(into: Path) -> Iterator[None]:
    """The lock ends with the process, however that ends, and on a shared volume with its node's session."""
    with (into.parent / f".{into.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(into: Path, origin: Origin, write: Callable[[Path], None]) -> None:
    for stale in into.parent.glob(f".{into.name}-*"):
        shutil.rmtree(stale, ignore_errors=True)  # of a process that was killed: the lock is ours
    draft = Path(tempfile.mkdtemp(prefix=f".{into.name}-", dir=into.parent))
    try:
        write(draft)
        check(draft)
        (draft / ORIGIN).write_bytes(msgspec.json.encode(origin))
        draft.chmod(0o755)
        for file in draft.iterdir():
            _sync(file)
        draft.rename(into)
        _sync(into.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def await_made(origin: Origin, into: Path, seconds: float = WAIT_SECONDS) -> Path:
    """`into`, once another process has made it.

    Raises:
        ModelError: nobody has within `seconds`, or it is another model.
    """
    deadline = time.monotonic() + seconds
    while not _is_there(into, origin):
        if time.monotonic() > deadline:
            raise ModelError(
                f"model folder {into}: it is only read here, and no cell has made it within {seconds:g} s; "
                "look at the init container of the cells' pods"
            )
        time.sleep(min(POLL_SECONDS, seconds))
    return into
