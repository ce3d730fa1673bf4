"""A small file system in memory, in a mount namespace of its own: it is gone with the process that holds it, and nobody else sees it.

Made as root, and by any user where user namespaces are allowed, which local sandboxes need anyway.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemill.local.parent import die_with_parent

FILLER = "filler"
BLOCK = b"\0" * 4096


@dataclass(frozen=True, slots=True)
class SmallDisk:
    place: Path  # as processes inside see it
    enter: tuple[str, ...]  # put before a command, it runs inside
    seen: Path  # the same folder, seen from outside

    def fill(self) -> None:
        """Until nothing more can be written."""
        with (self.seen / FILLER).open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(BLOCK)

    def free(self) -> None:
        (self.seen / FILLER).unlink()


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[SmallDisk]:
    place.mkdir()
    as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    script = f'mount -t tmpfs -o size={size} tmpfs "$0" && echo mounted && exec cat'
    command = ["unshare", "--mount", *as_root, "sh", "-c", script, str(place)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_parent)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mounted\n", "no file system could be mounted: neither root nor user namespaces"
        inside = ("nsenter", "--target", str(holder.pid), "--mount", *(("--user", "--preserve-credentials") if as_root else ()), "--")
        yield SmallDisk(place, inside, Path(f"/proc/{holder.pid}/root{place}"))
    finally:
        holder.kill()
        holder.wait()
