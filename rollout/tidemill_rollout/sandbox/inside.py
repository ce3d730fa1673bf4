"""The first program of a jail: sets limits, opens the way from 127.0.0.1 to the gateway's socket, runs the harness and ends as it ends.

Run as a script by a bare interpreter inside the jail (`python -I -S`), so the standard library's cheap half only: it starts in 15 ms.
`inside.py '{"limits": {"NOFILE": 4096}, "port": 8080, "socket": "/run/...", "hold": 30.0, "sweep": false}' program argument ...`
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import socket
import sys

VARIABLES = "TIDEMILL_VARIABLES"
"""Environment variable with those of the program, as JSON: they are set here, and nowhere on the way."""


def connect(path: str) -> socket.socket:
    """To the gateway's socket, which another one may have replaced meanwhile."""
    far = socket.socket(socket.AF_UNIX)
    try:
        far.connect(path)
    except OSError:
        far.close()
        raise
    return far


def limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        _, ceiling = resource.getrlimit(kind)
        value = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
        resource.setrlimit(kind, (value, value))


def sweep() -> None:
    """Kill every descendant. Needs this process to be their subreaper; without a PID namespace nothing else ends what was daemonised."""
    while True:
        children = []
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children") as names:
                children += [int(name) for name in names.read().split()]
        if not children:
            return
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)


def _end(*_: object) -> None:
    sweep()
    os._exit(128 + signal.SIGTERM)


def main() -> int:
    settings = json.loads(sys.argv[1])
    variables = json.loads(os.environ.pop(VARIABLES))
    if settings["sweep"]:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        signal.signal(signal.SIGTERM, _end)
    limit(settings["limits"])
    if settings["socket"]:
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # `relay.py` lies beside this file
        importlib.import_module("relay").start(settings["port"], lambda: connect(settings["socket"]), settings["hold"])
    command = sys.argv[2:]
    os.environ["PATH"] = variables["PATH"]  # where the program is looked for
    variables.setdefault("PWD", os.getcwd())
    try:
        pid = os.posix_spawnp(command[0], command, variables, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ))  # Python ignores these two
    except (OSError, ValueError) as problem:
        print(f"sandbox: cannot start {command[0]}: {problem.strerror if isinstance(problem, OSError) else problem}", file=sys.stderr)
        return 127
    _, status = os.waitpid(pid, 0)
    if settings["sweep"]:
        sweep()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    ending = main()
    sys.stdout.flush()
    os._exit(ending)  # the threads of the way to the gateway are not waited for
