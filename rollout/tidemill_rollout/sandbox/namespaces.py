"""A jail made with the kernel's own calls, for machines without bubblewrap: the same namespaces, mounts and absence of capabilities.

Its second half is a script: `namespaces.py '{"mounts": [...], "uid": 1000, "status_fd": 5, "folder": "/app"}' program argument ...`, run by a
bare interpreter (`python -I -S`). Needs Linux 5.12 (mount_setattr).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_MS_REMOUNT_READ_ONLY_BIND = 0x1000 | 0x20 | 0x1
_MS_NOSUID_NODEV = 0x2 | 0x4
_MS_NOEXEC = 0x8
_MS_BIND_RECURSIVE = 0x1000 | 0x4000
_MS_PRIVATE_RECURSIVE = 0x40000 | 0x4000
_MNT_DETACH = 2
_MOUNT_SETATTR, _PIVOT_ROOT = 442, 155  # system calls of x86-64
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_READ_ONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_DROP = 1, 38, 24
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

_libc = ctypes.CDLL(None, use_errno=True)


def command(interpreter: str, mounts: Iterable[Any], uid: int, folder: str, status_fd: int, inside: Sequence[str]) -> list[str]:
    """What to run outside so that `inside` runs in such a jail. `mounts` are `mounts.Mount`."""
    plan = {
        "mounts": [[str(mount.kind), mount.target, mount.source, mount.nbytes] for mount in mounts],
        "uid": uid,
        "folder": folder,
        "status_fd": status_fd,
    }
    return [interpreter, "-I", "-S", __file__, json.dumps(plan), *inside]


def _check(result: int, what: str) -> None:
    if result != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")


def _mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind)]
    _check(_libc.mount(*words, ctypes.c_ulong(flags), options.encode() if options else None), f"mount {source} on {target}")


def _bind(source: str, target: str, attributes: int) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "a").close()
    _mount(source, target, flags=_MS_BIND_RECURSIVE)
    wanted = struct.pack("QQQQ", attributes, 0, 0, 0)
    _check(_libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, wanted, len(wanted)), f"protect {target}")


def _memory(target: str, options: str) -> None:
    os.makedirs(target, exist_ok=True)
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID_NODEV, options)


def _devices(target: str) -> None:
    _memory(target, "mode=755,size=64k")
    for name in _DEVICES:
        _bind(f"/old/dev/{name}", f"{target}/{name}", _ATTR_NOSUID)
    for name, link in (("fd", "self/fd"), ("stdin", "self/fd/0"), ("stdout", "self/fd/1"), ("stderr", "self/fd/2")):
        os.symlink(f"/proc/{link}", f"{target}/{name}")
    os.makedirs(f"{target}/pts")
    _mount("devpts", f"{target}/pts", "devpts", 0x2 | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", f"{target}/ptmx")


def _processes(target: str) -> None:
    os.makedirs(target)
    _mount("proc", target, "proc", _MS_NOSUID_NODEV | _MS_NOEXEC)


def _build(mounts: list[tuple[str, str, str, int]]) -> None:
    """Make the new root under /new, with this machine's under /old, then enter it and let go of the old one."""
    _mount("none", "/", flags=_MS_PRIVATE_RECURSIVE)
    _memory("/tmp", "mode=755,size=1m")
    os.makedirs("/tmp/new")
    os.makedirs("/tmp/old")
    _check(_libc.syscall(_PIVOT_ROOT, b"/tmp", b"/tmp/old"), "pivot_root")
    os.chdir("/")
    _memory("/new", "mode=755,size=1m")
    makers: dict[str, Callable[[str, str, int], None]] = {
        "read-only": lambda target, source, _: _bind("/old" + source, target, _ATTR_READ_ONLY | _ATTR_NOSUID | _ATTR_NODEV),
        "writable": lambda target, source, _: _bind("/old" + source, target, _ATTR_NOSUID | _ATTR_NODEV),
        "memory": lambda target, _, nbytes: _memory(target, f"mode=1777,size={nbytes}"),
        "folder": lambda target, _, __: os.makedirs(target, exist_ok=True),
        "link": lambda target, source, _: os.symlink(source, target),
        "devices": lambda target, _, __: _devices(target),
        "processes": lambda target, _, __: _processes(target),
    }
    for kind, target, source, nbytes in mounts:
        makers[kind]("/new" + target, source, nbytes)
    for path in ("/new/dev", "/new/proc", "/new"):
        _mount("none", path, flags=_MS_REMOUNT_READ_ONLY_BIND | _MS_NOSUID_NODEV | (_MS_NOEXEC if path == "/new/proc" else 0))
    os.chdir("/new")
    _check(_libc.syscall(_PIVOT_ROOT, b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")


def _loopback() -> None:
    """Bring `lo` up: SIOCSIFFLAGS with IFF_UP | IFF_RUNNING."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 0x41, b""))


def _first(plan: dict[str, Any], words: list[str]) -> int:
    """The jail's process 1: builds it, gives up every right, runs the program, reaps what is orphaned. When it ends the kernel ends all others."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _loopback()
    socket.sethostname("sandbox")
    _build(plan["mounts"])
    os.chdir(plan["folder"])
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    child = os.posix_spawnp(words[0], words, os.environ)  # exec by a user that is not 0: no capability is left
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def main() -> int:
    plan, words = json.loads(sys.argv[1]), sys.argv[2:]
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    uid, gid = os.geteuid(), os.getegid()
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS | os.CLONE_NEWPID | os.CLONE_NEWNET | os.CLONE_NEWIPC | os.CLONE_NEWUTS | os.CLONE_NEWCGROUP)
    for path, text in (("setgroups", "deny"), ("uid_map", f"{plan['uid']} {uid} 1"), ("gid_map", f"{plan['uid']} {gid} 1")):
        with open(f"/proc/self/{path}", "w") as file:
            file.write(text)
    pid = os.fork()
    if pid == 0:
        os.close(plan["status_fd"])
        try:
            os._exit(_first(plan, words))
        except OSError as problem:
            print(f"sandbox: {problem}", file=sys.stderr, flush=True)
            os._exit(126)
    os.write(plan["status_fd"], json.dumps({"child-pid": pid}).encode() + b"\n")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
