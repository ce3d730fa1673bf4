"""A child in a process group of its own: started so that it dies with us, ended with everything it started."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tidemill.local.parent import die_with_parent

_PR_SET_CHILD_SUBREAPER = 36
_EMPTY_GROUP_SECONDS = 1.0


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind, so that `ProcessGroup.end` can wait for it and no zombie stays."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(errno)}")


class ProcessGroup:
    """A running child. Its process id is also the id of its group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self._process = process

    @classmethod
    async def start(cls, command: tuple[str, ...], environment: Mapping[str, str], cores: Iterable[int], log: Path) -> ProcessGroup:
        """Raises OSError when the program cannot be started."""
        cores = tuple(cores)

        def prepare() -> None:
            die_with_parent()
            if cores:
                os.sched_setaffinity(0, cores)

        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=prepare,
            )
        return cls(process)

    async def ended(self) -> str:
        """Wait for the child's end; say how it ended."""
        code = await self._process.wait()
        return f"ended with code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"

    async def end(self, term_seconds: float) -> None:
        """TERM for the child, which ends what it started in its own order; then KILL for the whole group. Afterwards no process of it is left."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), term_seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
        deadline = asyncio.get_running_loop().time() + _EMPTY_GROUP_SECONDS
        while self._someone_is_left() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)

    def _someone_is_left(self) -> bool:
        """Take leave of dead grandchildren that we adopted; whether a process of the group still exists."""
        try:
            while os.waitpid(-self.pid, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            pass
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True
