"""What a jail is shown, as a list."""

from pathlib import Path

import pytest

from tidemill_rollout.sandbox.mounts import Exposed, Kind, Mount, jail, outermost


def listing(tmp_path: Path, programs: list[Path], hidden: list[Path]) -> tuple[Mount, ...]:
    etc = tmp_path / "etc"
    etc.mkdir(exist_ok=True)
    return jail(work=Path("/w"), logs=Path("/l"), run=Path("/r"), etc=etc, programs=programs, files={}, hidden=hidden, memory_bytes=1)


def test_folders_inside_others_and_those_of_the_system_are_named_once() -> None:
    folders = [Path(path) for path in ("/opt/agent/bin", "/opt/agent", "/opt/agent", "/usr/local/python", "/usr", "/srv/x")]
    assert outermost(folders) == (Path("/opt/agent"), Path("/srv/x"))


def test_only_the_work_and_the_logs_can_be_written(tmp_path: Path) -> None:
    mounts = listing(tmp_path, [Path("/opt/agent")], [Path("/home/user")])
    assert [mount.target for mount in mounts if mount.kind is Kind.WRITABLE] == ["/app", "/logs"]
    assert Mount(Kind.READ_ONLY, "/opt/agent", "/opt/agent") in mounts


def test_a_program_that_holds_a_hidden_folder_is_refused(tmp_path: Path) -> None:
    for program in ("/home", "/home/user"):
        with pytest.raises(Exposed, match="/home/user lies in it"):
            listing(tmp_path, [Path(program)], [Path("/home/user")])
    listing(tmp_path, [Path("/home/user/python")], [Path("/home/user")])


def test_a_job_inside_the_systems_own_folders_is_covered(tmp_path: Path) -> None:
    mounts = listing(tmp_path, [], [Path("/usr/local/jobs/1")])
    assert mounts.index(Mount(Kind.MEMORY, "/usr/local/jobs/1", nbytes=4096)) > mounts.index(Mount(Kind.READ_ONLY, "/usr", "/usr"))


def test_programs_below_tmp_are_shown_over_the_jails_own_tmp(tmp_path: Path) -> None:
    """A clone of this repository in /tmp has its virtual environment there."""
    environment = Path("/tmp/clone/.venv")
    targets = [mount.target for mount in listing(tmp_path, [environment], [])]
    assert targets.index("/tmp") < targets.index(str(environment))
