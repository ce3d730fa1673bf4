"""Children that end with their parent, whatever kills it."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PARENT = os.getpid()  # of children that are forked from here: an agent may be a container's process 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies. Run in the child, before exec (`preexec_fn`).

    The signal follows the parent's thread that forked; our processes start children from their main thread only.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl(PR_SET_PDEATHSIG): {os.strerror(errno)}")
    if os.getppid() == 1 and _PARENT != 1:  # the parent died before the request took hold
        os.kill(os.getpid(), signal.SIGKILL)
