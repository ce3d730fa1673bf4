"""The first program of a sandbox pod, in an init container of the product's image: fetches what the gateway hands over and lays it out.

It leaves `enter.py`, `relay.py` and the order where the task's image finds them. Variables as in `enter.py`, and TIDEMILL_SANDBOX_SECONDS:
how long the task's files are asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
import tarfile
import time
from pathlib import Path
from typing import IO

from tidemill_rollout.sandbox import enter, relay
from tidemill_rollout.sandbox.enter import ENTRY, ORDER, PLACES, SECONDS_HEADER, SURROUNDINGS_FAILED, Order, SurroundingsFailed


def main() -> int:
    try:
        prepare(time.monotonic() + float(os.environ["TIDEMILL_SANDBOX_SECONDS"]))
    except SurroundingsFailed as problem:
        print(f"sandbox: {problem}", file=sys.stderr)
        return SURROUNDINGS_FAILED
    return 0


def prepare(deadline: float) -> None:
    """Raises `SurroundingsFailed`: the gateway says no, or is away for too long."""
    for program in (enter.__file__, relay.__file__):
        shutil.copy(program, ENTRY)
    enter.insist(_fetch, deadline)


def _fetch() -> None:
    for place in PLACES.values():
        _empty(Path(place))  # of what an earlier try left
    connection, path = enter.connect("task")
    with contextlib.closing(connection):
        connection.request("GET", path, headers=enter.headers())
        answer = connection.getresponse()
        if answer.status != 200:
            raise enter.said(answer.status, answer.read(2000))
        order = unpack(answer, PLACES)
    order["until"] = time.monotonic() + float(answer.headers[SECONDS_HEADER])  # all containers of a pod have one clock
    Path(ENTRY, ORDER).write_text(json.dumps(order))


def unpack(stream: IO[bytes], places: dict[str, str]) -> Order:
    """Write the archive's members below their places; return its order. Links come last, so that nothing is ever written through one.

    Raises:
        SurroundingsFailed: a member that belongs nowhere.
        OSError: the archive was cut short.
    """
    links: list[tuple[str, Path]] = []
    folders: list[tuple[Path, int]] = []
    order: Order | None = None
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if member.name == ORDER and content is not None:
                order = json.load(content)
                continue
            path = _place(member.name, places)
            path.parent.mkdir(parents=True, exist_ok=True)
            if member.isdir():
                path.mkdir(exist_ok=True)
                folders.append((path, member.mode))
            elif member.issym():
                links.append((member.linkname, path))
            elif content is not None:
                with path.open("xb") as file:
                    shutil.copyfileobj(content, file)
                path.chmod(member.mode & 0o777 | stat.S_IRUSR)
                os.utime(path, (member.mtime, member.mtime))
            else:
                raise SurroundingsFailed(f"the archive's member {member.name!r} is neither file, folder nor link")
    if order is None:
        raise OSError("the archive was cut short")
    for target, path in links:
        path.symlink_to(target)
    for path, mode in reversed(folders):
        path.chmod(mode & 0o777 | stat.S_IRWXU)
    return order


def _place(name: str, places: dict[str, str]) -> Path:
    for place, folder in places.items():
        below = name.removeprefix(f"{place}/")
        if below != name and not {"", ".", ".."} & set(below.split("/")):
            return Path(folder, below)
    raise SurroundingsFailed(f"the archive's member {name!r} belongs nowhere")


def _empty(folder: Path) -> None:
    """The folder itself is a mount and stays."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
