"""The program inside sandbox pods: `prepare` lays out what the gateway hands over, `work` runs one command on it and brings back what is left.

Standard library only, Python 3.8 or later: `prepare` runs in an init container of the product's image and leaves a copy of this file, and of
`relay.py`, where the task's image finds them; `seed` and `work` run there. Exit status of `work`: 0 the result was delivered, whatever the
command did; 75 the surroundings failed, and the last line says how. Variables: TIDEMILL_SANDBOX_URL (`http://.../x/EXECUTION`),
TIDEMILL_SANDBOX_KEY, TIDEMILL_SANDBOX_SECONDS (how long the task's files are asked for).
"""

from __future__ import annotations

import contextlib
import http.client
import importlib
import io
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import IO, TypedDict, cast

ENTRY = "/run/tidemill"
ORDER = "order.json"  # the last member of what is handed over: without it the archive was cut short
REPORT = "report.json"  # the last member of what is brought back
OUTPUT = "output.log"
PLACES = {"app": "/app", "logs": "/logs", "tests": "/tests", "run/harness": "/run/harness"}
SEED = "/run/app"  # where `seed` sees the empty work folder, while /app is the image's
SECONDS_HEADER = "Tidemill-Seconds"

UPLOAD_SECONDS = 120.0  # beyond the command's own time, for a gateway that is away
CALL_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 5.0
GUARD_SECONDS = 1.0
KILL_SECONDS = 15.0
TAIL_BYTES = 4096
INODE_BYTES = 4096
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SURROUNDINGS_FAILED = 75


RELAY = "127.0.0.1:0"
"""Where the order says that the gateway is: the way there opens on a port that is free in the pod."""


class Order(TypedDict):
    """What to run, and how much of it."""

    command: list[str]
    environment: dict[str, str]
    seconds: float  # 0: until `until`
    bring: list[str]
    bring_bytes: int
    disk_bytes: int
    memory_bytes: int
    processes: int
    output_bytes: int
    hold: float  # seconds that the command may wait for an answer of which nothing is heard; 0: there is no way to the gateway
    until: float  # of the monotonic clock; `prepare` writes it


class Report(TypedDict):
    """How it ended."""

    exit_code: int  # 128 + n when signal n ended it
    timed_out: bool
    seconds: float
    stopped: str  # the limit it broke
    refused: str  # why its work was not brought back
    tail: str


class SurroundingsFailed(Exception):
    """Not the command's doing: the gateway is away or says no."""


class Refused(Exception):
    """The work cannot be brought back, and that is its own doing."""


# The commands.


def seed() -> None:
    """What the image has in its work folder, unless the task brings another of that name."""
    for source, target in walk(PLACES["app"], SEED) if os.path.isdir(PLACES["app"]) else ():
        if os.path.lexists(target):
            continue
        try:
            if os.path.islink(source):
                os.symlink(os.readlink(source), target)
            elif os.path.isdir(source):
                os.mkdir(target)
            elif os.path.isfile(source):
                shutil.copy2(source, target)
        except PermissionError as problem:  # the image keeps it from us
            print(f"seed: {source}: {problem}", file=sys.stderr)


def work() -> None:
    with open(os.path.join(ENTRY, ORDER)) as file:
        order = json.load(file)
    _seclude()
    signal.signal(signal.SIGTERM, _give_up)
    if order["hold"]:
        _open_way(order)
    os.makedirs("/tmp/home", exist_ok=True)
    seconds = min(order["seconds"] or sys.maxsize, max(0.0, order["until"] - time.monotonic()))
    report, output = run(order, _environment(order["environment"]), PLACES["app"], seconds)
    bring = {name: PLACES[name] for name in order["bring"]}

    def attempt() -> None:
        try:
            status, text = _put(report, output, bring, order["bring_bytes"])
        except Refused as problem:
            status, text = 413, str(problem).encode()
        if status in (400, 413) and bring:  # what the command left cannot be taken: that is its doing
            bring.clear()
            report["refused"] = text.decode(errors="replace")
            raise OSError(report["refused"])
        if status != 200:
            raise said(status, text)

    insist(attempt, order["until"] + UPLOAD_SECONDS)


def _open_way(order: Order) -> None:
    """To the gateway, and tell the command where."""
    sys.path.insert(0, ENTRY)
    address = urllib.parse.urlsplit(os.environ["TIDEMILL_SANDBOX_URL"])

    def connect() -> socket.socket:
        far = socket.create_connection((address.hostname or "", address.port or 80), CALL_SECONDS)
        far.settimeout(None)
        return far

    opened = "127.0.0.1:{}".format(importlib.import_module("relay").start(0, connect, order["hold"]))
    order["command"] = [word.replace(RELAY + "/", opened + "/") for word in order["command"]]
    order["environment"] = {name: value.replace(RELAY + "/", opened + "/") for name, value in order["environment"].items()}


def run(order: Order, environment: dict[str, str], folder: str, seconds: float) -> tuple[Report, bytes]:
    """Run the command to its end, or kill it after `seconds` or beyond a limit. On return nothing of it is alive."""
    started = time.monotonic()
    watched = [PLACES["app"], PLACES["logs"], "/tmp"]
    allowed = order["disk_bytes"] + _on_disk(watched, sys.maxsize)
    printed = Printed(order["output_bytes"])
    try:
        process = _start(order["command"], environment, folder, printed.end)
    except OSError as problem:
        text = f"sandbox: cannot start {order['command'][0]}: {problem.strerror}\n"
        return _report(127, False, 0.0, "", text), text.encode()
    finally:
        os.close(printed.end)
    code, timed_out, stopped, look = None, False, "", started + GUARD_SECONDS
    while code is None and not timed_out and not stopped:
        printed.read(0.1)
        code = _reap(process.pid)
        now = time.monotonic()
        timed_out = code is None and now - started >= seconds
        if now >= look and code is None:
            stopped = _excess(order, watched, allowed)
            look = time.monotonic() + max(GUARD_SECONDS, 10 * (time.monotonic() - now))  # a large tree is looked at less often
    ended = time.monotonic()
    process.returncode = code = _sweep(process.pid, code)
    while printed.is_open and time.monotonic() < ended + KILL_SECONDS:
        printed.read(0.1)
    return _report(code, timed_out, ended - started, stopped, printed.tail.decode(errors="replace")), printed.whole()


class Printed:
    """What the command prints: its beginning and its end are kept."""

    def __init__(self, keep_bytes: int) -> None:
        self.is_open = True
        self.tail = bytearray()
        self._kept = bytearray()
        self._most = keep_bytes
        self._pipe, self.end = os.pipe()

    def read(self, seconds: float) -> None:
        """What there is, at most one chunk; wait for it for so long."""
        if not self.is_open:
            time.sleep(seconds)
        elif select.select([self._pipe], [], [], seconds)[0]:
            chunk = os.read(self._pipe, 65536)
            self.is_open = bool(chunk)
            self.tail += chunk
            del self.tail[:-TAIL_BYTES]
            self._kept += chunk[: self._most + 1 - len(self._kept)]

    def whole(self) -> bytes:
        if len(self._kept) <= self._most:
            return bytes(self._kept)
        return bytes(self._kept[: self._most]) + b"\n[tidemill: output beyond this is not kept]\n"


def _start(command: list[str], environment: dict[str, str], folder: str, output: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=_first_to_go,
    )


def _report(code: int, timed_out: bool, seconds: float, stopped: str, tail: str) -> Report:
    return {"exit_code": code, "timed_out": timed_out, "seconds": seconds, "stopped": stopped, "refused": "", "tail": tail}


def _environment(added: dict[str, str]) -> dict[str, str]:
    """The image's variables without the pod's, then the order's."""
    image = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEMILL_", "KUBERNETES_"))}
    return dict(image, HOME="/tmp/home", USER="agent", TERM="dumb", LANG=image.get("LANG", "C.UTF-8"), **added)


def _seclude() -> None:
    """Keep our memory and variables, and so the key, from what runs beside us as the same user; and be everybody's parent."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        library = ctypes.CDLL(None)
        library.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
        library.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: process 1 is that anyway


def _first_to_go() -> None:
    """When memory runs out, the kernel kills the command and not us."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _give_up(*_: object) -> None:
    _sweep(-1, 0)
    os._exit(SURROUNDINGS_FAILED)


def _reap(pid: int) -> int | None:
    """Bury the dead; the exit code when `pid` is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            dead, status = os.waitpid(-1, os.WNOHANG)
            if dead == 0:
                break
            if dead == pid:
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    return code


def _sweep(pid: int, code: int | None) -> int:
    """Kill every descendant, also what was daemonised. Returns the exit code of `pid`."""
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        alive = _descendants()
        for child in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        found = _reap(pid)
        code = found if code is None else code
        if not alive and code is not None:
            break
        time.sleep(0.01)
    return 128 + signal.SIGKILL if code is None else code


def _descendants() -> list[int]:
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rsplit(b")", 1)[1].split()[1])
    found = []
    for process in parents:
        ancestor = parents[process]
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid():
            found.append(process)
    return found


def _excess(order: Order, folders: list[str], allowed: int) -> str:
    if _on_disk(folders, allowed) > allowed:
        return "disk: wrote more than {} bytes".format(order["disk_bytes"])
    processes = _descendants()
    if len(processes) > order["processes"]:
        return "processes: more than {}".format(order["processes"])
    memory = sum(_own_memory(process) for process in processes)
    if memory > order["memory_bytes"]:
        return "memory: {} bytes, more than {}".format(memory, order["memory_bytes"])
    return ""


def _own_memory(process: int) -> int:
    try:
        with open(f"/proc/{process}/statm") as file:
            _, resident, shared = file.read().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * PAGE_BYTES


def _on_disk(folders: list[str], enough: int) -> int:
    """Bytes below the folders, at least; stops counting above `enough`. What cannot be read counts as empty, what is nested too deep as too much."""
    total, waiting = 0, list(folders)
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    total += INODE_BYTES + status.st_blocks * 512
                    if total > enough:
                        return total
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        except OSError:
            return enough + 1
    return total


# Bringing back.


def _put(report: Report, output: bytes, bring: dict[str, str], most: int) -> tuple[int, bytes]:
    connection, path = connect("work")
    with contextlib.closing(connection):
        connection.putrequest("PUT", path)
        for name, value in headers().items():
            connection.putheader(name, value)
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        try:
            pack(cast("IO[bytes]", _Chunks(connection)), report, output, bring, most)
            connection.send(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has heard enough, and perhaps says why
        answer = connection.getresponse()
        return answer.status, answer.read(2000)


class _Chunks:
    """A request's body, as HTTP/1.1 chunks."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def write(self, data: bytes, /) -> int:
        if data:
            self._connection.send(b"%x\r\n%s\r\n" % (len(data), data))
        return len(data)


class _Local:
    """A file whose errors are not mistaken for the connection's."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._file.read(size)
        except OSError as problem:
            raise Refused(f"the work cannot be read: {problem}") from problem


def pack(stream: IO[bytes], report: Report, output: bytes, bring: dict[str, str], most: int) -> None:
    """Raises `Refused` when what is brought is larger than `most`, or cannot be read."""
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        add(archive, OUTPUT, output)
        for name, folder in bring.items():
            try:
                for path, inside in walk(folder, name):
                    member = member_of(path, inside)
                    if member is None:
                        continue
                    if archive.offset + member.size > most:
                        raise Refused(f"the work is larger than {most} bytes, it is not kept")
                    if member.isreg():
                        with open(path, "rb") as file:
                            archive.addfile(member, _Local(file))
                    else:
                        archive.addfile(member)
            except (ConnectionError, TimeoutError):
                raise
            except OSError as problem:
                if problem.filename is None:  # a connection's
                    raise
                raise Refused(f"the work cannot be read: {problem}") from problem
        add(archive, REPORT, json.dumps(report).encode())


def member_of(path: str, inside: str) -> tarfile.TarInfo | None:
    """None for what is neither file, folder nor link. Two names of one file become two files."""
    status = os.lstat(path)
    member = tarfile.TarInfo(inside)
    member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    if stat.S_ISLNK(status.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISREG(status.st_mode):
        member.size = status.st_size
        if not status.st_mode & stat.S_IRUSR:
            os.chmod(path, member.mode | stat.S_IRUSR)
    else:
        return None
    return member


def walk(folder: str, inside: str) -> Iterator[tuple[str, str]]:
    """Every path below `folder` and its name below `inside`, parents first; links are not followed."""
    waiting = [(folder, inside)]
    while waiting:
        parent, name = waiting.pop()
        if not os.access(parent, os.R_OK | os.X_OK):
            with contextlib.suppress(PermissionError):
                os.chmod(parent, 0o700)
        try:
            entries = sorted(os.listdir(parent))
        except PermissionError:
            continue
        for entry in entries:
            path, below = os.path.join(parent, entry), name + "/" + entry
            yield path, below
            if os.path.isdir(path) and not os.path.islink(path):
                waiting.append((path, below))


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


# The gateway.


def insist(attempt: Callable[[], None], deadline: float) -> None:
    """Again and again while the gateway is away or overloaded."""
    pause = 0.2
    while True:
        try:
            return attempt()
        except (OSError, http.client.HTTPException, tarfile.TarError, EOFError) as trouble:
            problem = trouble
        if time.monotonic() + pause > deadline:
            raise SurroundingsFailed(f"gave up on the gateway; the last try ended with {problem!r}")
        time.sleep(pause)
        pause = min(LONGEST_PAUSE_SECONDS, pause * 2)


def said(status: int, text: bytes) -> Exception:
    message = "the gateway answered {}: {}".format(status, text.decode(errors="replace"))
    return OSError(message) if status >= 500 or status in (408, 429) else SurroundingsFailed(message)


def connect(what: str) -> tuple[http.client.HTTPConnection, str]:
    url = urllib.parse.urlsplit(os.environ["TIDEMILL_SANDBOX_URL"])
    return http.client.HTTPConnection(url.hostname or "", url.port, timeout=CALL_SECONDS), f"{url.path.rstrip('/')}/sandbox/{what}"


def headers() -> dict[str, str]:
    return {"Authorization": "Bearer " + os.environ["TIDEMILL_SANDBOX_KEY"]}


def main() -> int:
    try:
        {"seed": seed, "work": work}[sys.argv[1]]()
    except SurroundingsFailed as problem:
        print(f"sandbox: {problem}", file=sys.stderr)
        return SURROUNDINGS_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
