"""Real jails. Each test is a thing that a hostile or broken program might do."""

import asyncio
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

from tidemill_rollout.sandbox import bubblewrap, cgroup, namespaces
from tidemill_rollout.sandbox.mounts import Exposed
from tidemill_rollout.sandbox.process import Ended, Launch, Limits, ProcessSandbox, SandboxUnavailable, interpreter

SMALL = Limits(memory_bytes=96 * 2**20, disk_bytes=2**20, processes=64, output_bytes=64 * 2**10)


class Room:
    """A job's folder with one jail's folders in it."""

    def __init__(self, folder: Path, unsafe: bool = False, limits: Limits = SMALL) -> None:
        self.folder = folder
        self.work, self.logs, self.output = folder / "work", folder / "logs", folder / "output.log"
        self.socket = folder / "gateway.sock"
        self.work.mkdir()
        self.logs.mkdir()
        self.sandbox = ProcessSandbox(folder, self.socket, unsafe, limits)
        self.sandbox.check()

    async def run(self, *command: str, seconds: float = 20.0, gateway: bool = False, key: str = "") -> Ended:
        address = self.sandbox.address() if gateway else ""
        return await self.sandbox.run(
            Launch(command, {"KEY": key}), work=self.work, logs=self.logs, output=self.output, seconds=seconds, address=address
        )

    async def shell(self, script: str, seconds: float = 20.0) -> Ended:
        return await self.run("bash", "-c", script, seconds=seconds)


@pytest.fixture(params=["bubblewrap", "own namespaces"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "own namespaces":
        monkeypatch.setattr(bubblewrap, "programs", lambda: ())
    return str(request.param)


@pytest.fixture(params=["control groups", "counted"])
def holder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who holds memory and processes. Where this machine lets us make no control groups, both are the second."""
    if request.param == "counted":
        monkeypatch.setattr(cgroup, "find", lambda: None)
    return str(request.param)


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    room = Room(tmp_path)
    yield room
    await room.sandbox.stop_all()


def alive(mark: str) -> list[int]:
    """Processes of this machine that have `mark` in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and int(entry) != os.getpid() and mark in Path(f"/proc/{entry}/cmdline").read_text():
                found.append(int(entry))
        except OSError:
            continue
    return found


async def until(true: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.01)


async def test_a_program_runs_and_its_exit_code_and_output_come_back(maker: str, tmp_path: Path) -> None:
    ended = await Room(tmp_path).shell("pwd; id -u; echo done; exit 7")
    assert (ended.exit_code, ended.timed_out, ended.stopped) == (7, False, "")
    assert ended.tail == "/app\n1000\ndone\n"
    assert (tmp_path / "output.log").read_text() == ended.tail


async def test_a_signal_becomes_its_shell_exit_code_and_a_missing_program_127(room: Room) -> None:
    assert (await room.shell("kill -9 $$")).exit_code == 137
    missing = await room.run("no-such-agent")
    assert missing.exit_code == 127
    assert "cannot start no-such-agent" in missing.tail


async def test_neither_the_users_files_nor_the_jobs_folder_can_be_read(maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("hidden")
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "job").mkdir()
    room = Room(tmp_path / "job")
    (tmp_path / "job" / "conductor.db").write_text("hidden")
    paths = f"{home}/.ssh/id {tmp_path}/job/conductor.db"
    ended = await room.shell(
        f"for p in {paths}; do cat $p /proc/1/root$p /proc/1/cwd$p /app/../..$p /proc/self/fd/../../../..$p; done; ls /home /work"
    )
    assert "hidden" not in ended.tail
    assert ended.tail.count("No such file") + ended.tail.count("Permission denied") >= 10


async def test_only_chosen_parts_of_etc_are_there(maker: str, tmp_path: Path) -> None:
    ended = await Room(tmp_path).shell("ls /etc/shadow /etc/sudoers /etc/ssh /etc/ssl/private; cat /etc/passwd | wc -l")
    assert ended.tail.endswith("3\n")
    assert ended.tail.count("No such file") == 4


async def test_no_network_and_no_socket_of_this_machine_is_in_reach(maker: str, tmp_path: Path) -> None:
    room = Room(tmp_path)
    abstract = f"\0{uuid.uuid4()}"
    with socket.create_server(("0.0.0.0", 0)) as tcp, socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as nameless:
        named.bind(str(tmp_path / "docker.sock"))
        nameless.bind(abstract)
        for listener in (named, nameless):
            listener.listen()
        port = tcp.getsockname()[1]
        script = (
            "import socket\n"
            f"for kind, place in ((2, ('127.0.0.1', {port})), (2, ('192.0.2.1', 80)), (1, {str(tmp_path / 'docker.sock')!r}), (1, {abstract!r})):\n"
            "    try: socket.socket(kind).connect(place) if kind == 1 else socket.create_connection(place, 2)\n"
            "    except OSError as problem: print('refused', problem.errno)\n"
            "    else: print('REACHED', place)\n"
        )
        ended = await room.run("python3", "-c", script)
    assert ended.exit_code == 0
    assert ended.tail.count("refused") == 4


async def test_what_is_written_stays_in_the_work_folder(maker: str, tmp_path: Path) -> None:
    ended = await Room(tmp_path).shell(
        "echo kept > /app/file; for p in / /usr /etc /dev /bin /run /run/tidemill /var /proc/sys/kernel; do touch $p/x && echo WROTE $p; done"
    )
    assert "WROTE" not in ended.tail
    assert (tmp_path / "work" / "file").read_text() == "kept\n"


async def test_kernel_settings_cannot_be_changed_even_when_the_job_runs_as_root(maker: str, tmp_path: Path) -> None:
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    ended = await Room(tmp_path).shell(
        "echo '|/app/escape' > /proc/sys/kernel/core_pattern; echo $?; grep CapEff /proc/self/status; grep NoNewPrivs /proc/self/status"
    )
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before
    assert "\n1\n" in ended.tail
    assert ended.tail.endswith("CapEff:\t0000000000000000\nNoNewPrivs:\t1\n")


async def test_removing_everything_harms_nothing(maker: str, tmp_path: Path) -> None:
    room = Room(tmp_path)
    secret = tmp_path / "precious"
    secret.write_text("still here")
    # The first two words make sure that this is a jail before it tries.
    ended = await room.shell(
        f"touch /usr/bin/.mark && exit 98; test -e {secret} && exit 99; rm -rf --no-preserve-root /usr/bin /etc /root / 2>/dev/null", 1.5
    )
    assert ended.exit_code not in (0, 98, 99)
    assert secret.read_text() == "still here"
    assert (await room.shell("true")).exit_code == 0


async def test_the_environment_is_what_was_given_and_holds_no_token(maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_TOKEN", "of the job")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the user")
    room = Room(tmp_path)
    ended = await room.run("env", key="of the execution")
    assert {line.partition("=")[0] for line in ended.tail.splitlines()} - {"PWD"} == {"PATH", "HOME", "USER", "LANG", "TERM", "KEY"}
    assert "of the execution" in ended.tail
    everyone = await room.shell("cat /proc/*/environ; echo read")
    assert "read" in everyone.tail
    assert "of the job" not in everyone.tail


async def test_a_hang_is_ended_by_the_time_out_with_all_its_descendants(maker: str, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    ended = await Room(tmp_path).shell(
        f"trap '' TERM INT HUP; setsid bash -c 'trap \"\" TERM; while :; do sleep 0.1; done # {mark}' & sleep 1000", seconds=1.0
    )
    assert ended.timed_out
    assert ended.exit_code == 137
    assert 1.0 <= ended.seconds < 5.0
    assert alive(mark) == []


async def test_what_was_daemonised_is_dead_when_the_program_has_ended(maker: str, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    ended = await Room(tmp_path).shell(
        f"setsid bash -c 'exec >/dev/null 2>&1; touch up; while :; do sleep 0.1; done # {mark}' & until test -e up; do sleep 0.01; done; exit 3"
    )
    assert (ended.exit_code, ended.timed_out) == (3, False)
    assert alive(mark) == []


async def test_a_fork_bomb_is_over_when_the_run_is(holder: str, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    # It stops by itself at 2,000 processes, so that a broken limit does not take the machine along.
    bomb = "bomb() { if [ $1 -gt 0 ]; then bomb $(($1 - 1)) & bomb $(($1 - 1)) & fi; sleep 1000; }; bomb 10"
    ended = await Room(tmp_path).shell(f"{bomb} # {mark}", seconds=2.0)
    assert ended.stopped == "processes: more than 64" or "Resource temporarily unavailable" in ended.tail
    assert alive(mark) == []


async def test_a_flood_is_cut_and_does_not_hold_up_the_caller(room: Room) -> None:
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    other = asyncio.create_task(other_work())
    ended = await room.shell("yes flood", seconds=1.0)
    other.cancel()
    assert ended.timed_out
    assert turns > 20
    assert room.output.stat().st_size < SMALL.output_bytes + 100
    assert "not kept" in room.output.read_text()[-100:]
    assert ended.tail.endswith("flood\n")
    assert len(ended.tail) <= 4096


async def test_output_that_a_full_disk_does_not_take_harms_nothing(room: Room) -> None:
    room.output = Path("/dev/full")
    ended = await room.shell("echo said; exit 7")
    assert (ended.exit_code, ended.tail) == (7, "said\n")


async def test_more_than_the_quota_on_disk_ends_the_program(room: Room) -> None:
    ended = await room.shell("for n in $(seq 100); do head -c 500000 /dev/zero > /app/$n; done; sleep 1000")
    assert ended.stopped.startswith("disk: wrote more than")
    assert not ended.timed_out
    assert ended.seconds < 10


async def test_what_lay_there_before_does_not_count(room: Room) -> None:
    (room.work / "given").write_bytes(bytes(3 * SMALL.disk_bytes))
    assert (await room.shell("sleep 1.5")).stopped == ""


async def test_one_large_file_is_refused_by_the_kernel(room: Room) -> None:
    ended = await room.shell("head -c 5000000 /dev/zero > /app/large")
    assert ended.exit_code != 0
    assert (room.work / "large").stat().st_size <= SMALL.disk_bytes


async def test_more_memory_than_allowed_ends_the_program(holder: str, tmp_path: Path) -> None:
    ended = await Room(tmp_path).run("python3", "-c", "import time; hoard = b'x' * 400_000_000; time.sleep(1000)", seconds=15.0)
    assert not ended.timed_out
    assert ended.exit_code == 137


async def test_memory_file_systems_are_bounded(room: Room) -> None:
    ended = await room.shell("df -B1 --output=size /tmp /dev/shm | tail -2")
    assert ended.tail.split() == [str(SMALL.memory_bytes), str(64 * 2**20)]


async def test_stop_all_ends_what_runs(room: Room) -> None:
    running = asyncio.create_task(room.shell("touch /app/up; sleep 1000"))
    await until((room.work / "up").exists)
    await room.sandbox.stop_all()
    ended = await asyncio.wait_for(running, 5)
    assert ended.stopped == "stopped"
    assert ended.exit_code == 137


async def test_a_cancelled_run_leaves_nothing_alive(room: Room) -> None:
    mark = uuid.uuid4().hex
    running = asyncio.create_task(room.shell(f"touch /app/up; sleep 1000 # {mark}"))
    await until((room.work / "up").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert alive(mark) == []


@pytest.mark.parametrize("passes", [0, 1, 2, 3, 5, 10, 30])
async def test_a_run_that_is_cancelled_while_its_jail_is_made_leaves_nothing_alive(room: Room, passes: int) -> None:
    """After so many passes of the loop: before, while, and after the process is started."""
    mark = uuid.uuid4().hex
    running = asyncio.create_task(room.shell(f"sleep 1000 # {mark}"))
    for _ in range(passes):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert alive(mark) == []


RUNNER = """
import asyncio, sys
from pathlib import Path
from tidemill_rollout.sandbox import bubblewrap
from tidemill_rollout.sandbox.process import Launch, ProcessSandbox
folder, mark, own = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "own namespaces"
if own:
    bubblewrap.programs = lambda: ()
sandbox = ProcessSandbox(folder, folder / "gateway.sock")
sandbox.check()
launch = Launch(("bash", "-c", f"touch /app/up; while :; do sleep 0.1; done # {mark}"), {})
asyncio.run(sandbox.run(launch, work=folder / "work", logs=folder / "logs", output=folder / "output.log", seconds=1000))
"""


async def test_jails_end_with_the_process_that_made_them(maker: str, tmp_path: Path) -> None:
    for name in ("work", "logs"):
        (tmp_path / name).mkdir()
    mark = uuid.uuid4().hex
    runner = await asyncio.create_subprocess_exec(sys.executable, "-c", RUNNER, str(tmp_path), mark, maker)
    try:
        await until((tmp_path / "work" / "up").exists)
        assert alive(mark)
    finally:
        runner.send_signal(signal.SIGKILL)
        await runner.wait()
    await until(lambda: not alive(mark))


async def serve(socket_path: Path, name: str) -> web.AppRunner:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"{name} {request.path} {len(await request.read())}")

    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(socket_path)).start()
    return runner


async def test_the_gateway_is_the_one_way_out(maker: str, tmp_path: Path) -> None:
    room = Room(tmp_path)
    gateway = await serve(room.socket, "gateway")
    script = (
        "import urllib.request\n"
        "for size in (0, 5_000_000):\n"
        "    print(urllib.request.urlopen('http://127.0.0.1:8080/x/e-1/v1', data=bytes(size), timeout=10).read().decode())\n"
    )
    ended = await room.run("python3", "-c", script, gateway=True)
    without = await room.run("python3", "-c", script)
    await gateway.cleanup()
    await room.sandbox.stop_all()
    assert ended.tail == "gateway /x/e-1/v1 0\ngateway /x/e-1/v1 5000000\n"
    assert "Connection refused" in without.tail


async def test_a_running_program_reaches_a_restarted_gateway_and_waits_for_it(room: Room) -> None:
    first = await serve(room.socket, "first")
    script = (
        "import pathlib, time, urllib.request\n"
        "def ask(): return urllib.request.urlopen('http://127.0.0.1:8080/', timeout=20).read().decode()\n"
        "print(ask()); pathlib.Path('asked').touch()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.01)\n"
        "print(ask())\n"
    )
    running = asyncio.create_task(room.run("python3", "-c", script, gateway=True))
    await until((room.work / "asked").exists)
    await first.cleanup()
    room.socket.unlink(missing_ok=True)
    (room.work / "go").touch()
    second = await serve(room.socket, "second")
    ended = await running
    await second.cleanup()
    assert ended.tail == "first / 0\nsecond / 0\n"


async def test_a_flood_of_connections_is_refused_in_part_and_the_way_out_stays_open(room: Room) -> None:
    """It takes all threads that the jail may have; afterwards the forwarder serves on."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(room.socket)).start()
    program = (
        "import socket, time, urllib.request\n"
        "held = [socket.create_connection(('127.0.0.1', 8080)) for _ in range(100)]\n"
        "time.sleep(0.5)\n"
        "[s.close() for s in held]\n"
        "for _ in range(100):\n"
        "    try:\n"
        "        print(urllib.request.urlopen('http://127.0.0.1:8080/', timeout=5).read().decode())\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(0.05)\n"
    )
    try:
        ended = await room.run(interpreter(), "-I", "-S", "-c", program, gateway=True)
    finally:
        await runner.cleanup()
    assert (ended.exit_code, ended.stopped) == (0, "")
    assert ended.tail.endswith("hello\n")


def test_a_machine_without_namespaces_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "programs", lambda: ("/bin/false",))
    monkeypatch.setattr(namespaces, "command", lambda *_: ["/bin/false"])
    with pytest.raises(SandboxUnavailable, match="Install bubblewrap") as refusal:
        Room(tmp_path)
    assert "/bin/false: exit code 1" in str(refusal.value)
    assert "--unsafe-sandbox" in str(refusal.value)


def test_a_program_installed_beside_the_users_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(SandboxUnavailable, match="cannot be shown in a jail"):
        ProcessSandbox(tmp_path / "home" / "job", tmp_path / "gateway.sock").check([tmp_path / "home"])


async def test_without_a_jail_the_time_out_still_ends_what_was_daemonised(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    room = Room(tmp_path, unsafe=True)
    ended = await room.shell(f"setsid bash -c 'while :; do sleep 0.1; done # {mark}' & sleep 1000", seconds=0.5)
    assert ended.timed_out
    assert alive(mark) == []


async def test_without_a_jail_paths_inside_become_paths_outside(tmp_path: Path) -> None:
    room = Room(tmp_path, unsafe=True)
    gateway = await serve(room.socket, "gateway")
    address = room.sandbox.address()
    script = (
        "import os, urllib.request as r; print(os.getcwd()); print(r.urlopen(os.environ['URL'], timeout=10).read().decode()); open('/logs/seen', 'w')"
    )
    launch = Launch((interpreter(), "-c", script), {"URL": address})
    ended = await room.sandbox.run(launch, work=room.work, logs=room.logs, output=room.output, seconds=10, address=address)
    await gateway.cleanup()
    await room.sandbox.stop_all()
    assert ended.tail == f"{room.work}\ngateway / 0\n"
    assert (room.logs / "seen").exists()


@pytest.mark.parametrize("part", ["work", "logs", "file"])
async def test_what_has_become_a_link_is_not_shown(tmp_path: Path, maker: str, part: str) -> None:
    room = Room(tmp_path)
    (tmp_path / "secret").mkdir()
    (tmp_path / "link").symlink_to("secret")
    places = {"work": room.work, "logs": room.logs, "file": room.work} | {part: tmp_path / "link"}
    launch = Launch(("ls",), {}, files={"/logs/agent": places["file"]} if part == "file" else {})
    with pytest.raises(Exposed, match="link is a link"):
        await room.sandbox.run(launch, work=places["work"] if part == "work" else room.work, logs=places["logs"], output=room.output, seconds=5)


async def test_a_programs_variables_act_on_nothing_outside_of_its_jail(tmp_path: Path, maker: str) -> None:
    """The dynamic linker says on its standard error whom it serves, and only a jail's inside has the variable."""
    room = Room(tmp_path)
    launch = Launch(("/bin/true",), {"LD_DEBUG": "files", "ENV": "/nowhere"})
    ended = await room.sandbox.run(launch, work=room.work, logs=room.logs, output=room.output, seconds=20)
    assert ended.exit_code == 0
    programs = {line.rpartition("program: ")[2] for line in room.output.read_text().splitlines() if "program: " in line}
    assert programs <= {"/bin/true", "/usr/bin/true"}


async def test_without_a_jail_a_harness_that_kills_its_parent_leaves_nothing_alive(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    room = Room(tmp_path, unsafe=True)
    loop = f"while :; do sleep 0.1; done # {mark}"
    script = f"bash -c '{loop}' & setsid bash -c '{loop}' & env -i bash -c '{loop}' & kill -9 $PPID; {loop}"
    ended = await room.shell(script, seconds=10)
    assert ended.exit_code == 128 + signal.SIGKILL
    assert alive(mark) == []
