"""The first program of a jail: sets limits, forwards 127.0.0.1 to the gateway's socket, runs the harness and ends as it ends.

Run as a script by a bare interpreter inside the jail (`python -I -S`), so the standard library's cheap half only: it starts in 15 ms.
`inside.py '{"limits": {"NOFILE": 4096}, "port": 8080, "socket": "/run/...", "sweep": false}' program argument ...`
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
import threading
import time

VARIABLES = "TIDEMILL_VARIABLES"
"""Environment variable with those of the program, as JSON: they are set here, and nowhere on the way."""

PATIENCE_SECONDS = 60.0
"""How long a connection waits for a gateway that is restarting."""


def forward(port: int, path: str) -> None:
    """Accept connections on 127.0.0.1:`port`, in a thread, and join each with one to the socket at `path`.

    A flood of them may use up the jail's threads or files. Then some are closed at once; those that come later are served again.
    """
    listener = socket.create_server(("127.0.0.1", port), backlog=128)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # no file is left
                time.sleep(0.1)
                continue
            try:
                threading.Thread(target=_serve, args=(connection, path), daemon=True).start()
            except RuntimeError:  # no thread is left
                connection.close()

    threading.Thread(target=accept, daemon=True).start()


def _serve(near: socket.socket, path: str) -> None:
    with near, _connect(path) as far:
        back = threading.Thread(target=_copy, args=(far, near), daemon=True)
        try:
            back.start()
        except RuntimeError:  # no thread is left
            return
        _copy(near, far)
        back.join()


def _connect(path: str) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(path)
        except OSError:
            far.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return far


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # one side is gone: the other must notice
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


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
        forward(settings["port"], settings["socket"])
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
    os._exit(ending)  # forwarding threads are not waited for
