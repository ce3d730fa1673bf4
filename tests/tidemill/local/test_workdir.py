"""A work folder holds one job and one runner."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.tidemill.api.test_loading import document
from tidemill.api import RLJob, load_rljob, parse_rljob
from tidemill.local.workdir import FolderRefused, claim


def job(**changes: object) -> RLJob:
    return parse_rljob(document(**changes))


def test_the_manifest_is_kept_as_it_was(tmp_path: Path) -> None:
    folder = claim(tmp_path / "run", job(), resume=False)
    assert load_rljob(folder.manifest) == job()


def test_a_second_runner_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    code = f"import sys, pathlib; from tidemill.local.workdir import claim; from tidemill.api import parse_rljob; import yaml\n\
claim(pathlib.Path({str(tmp_path)!r}), parse_rljob(yaml.safe_load(sys.stdin.readline())), False); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(yaml.safe_dump(document(), default_flow_style=True, width=10**9).replace("\n", "") + "\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderRefused, match="in use by another tidemill run"):
            claim(tmp_path, job(), resume=True)
        holder.kill()
    claim(tmp_path, job(), resume=False)


def test_an_occupied_folder_needs_resume(tmp_path: Path) -> None:
    claim(tmp_path / "run", job(), resume=False)
    with pytest.raises(FolderRefused, match="in use"):
        claim(tmp_path / "run", job(), resume=False)


def test_resume_needs_the_same_job(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document()))
    (tmp_path / "conductor.db").touch()
    with pytest.raises(FolderRefused, match=r"already holds a job; continue it with --resume"):
        claim(tmp_path, job(), resume=False)
    with pytest.raises(FolderRefused, match=r"another manifest \(spec.schedule differs\)"):
        claim(tmp_path, job(schedule__steps=99), resume=True)
    claim(tmp_path, job(), resume=True)


def test_a_folder_whose_job_never_began_is_free(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document()))
    assert load_rljob(claim(tmp_path, job(schedule__steps=99), resume=False).manifest) == job(schedule__steps=99)


def test_a_job_that_was_stopped_before_it_began_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document()))
    assert load_rljob(claim(tmp_path, job(), resume=True).manifest) == job()
    with pytest.raises(FolderRefused, match="in use"):
        claim(tmp_path, job(), resume=True)


def test_a_refused_job_leaves_nothing_where_nothing_was(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep")
    for name in ("new", "empty", "mine"):
        folder = claim(tmp_path / name, job(), resume=False)
        (folder.logs / "conductor.log").write_text("")
        folder.abandon()
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "empty").exists()
    assert (tmp_path / "mine" / "notes").read_text() == "keep"


def test_a_job_that_has_begun_is_never_removed(tmp_path: Path) -> None:
    folder = claim(tmp_path / "run", job(), resume=False)
    (folder.path / "conductor.db").touch()
    folder.abandon()
    assert folder.manifest.exists()


@pytest.mark.parametrize("unsafe", [False, True])
def test_a_path_that_is_too_long_for_the_gateways_socket_is_refused_at_once(tmp_path: Path, unsafe: bool) -> None:
    socket_below = "executions/.jail/run/gateway.sock" if unsafe else "gateway.sock"
    longest = tmp_path / ("x" * (107 - len(f"{tmp_path}//{socket_below}")))
    claim(longest, job(), resume=False, unsafe_sandbox=unsafe)
    with socket.socket(socket.AF_UNIX) as made:
        (longest / socket_below).parent.mkdir(parents=True, exist_ok=True)
        made.bind(str(longest / socket_below))
    with pytest.raises(FolderRefused, match=r"1 bytes too long.*is a socket; give a --workdir with a shorter path"):
        claim(Path(f"{longest}x"), job(), resume=False, unsafe_sandbox=unsafe)
    assert not Path(f"{longest}x").exists()


def test_a_folder_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").mkdir()
    with pytest.raises(FolderRefused, match="cannot be used as a work folder: Is a directory; give another --workdir"):
        claim(tmp_path, job(), resume=False)


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(FolderRefused, match="holds no job to resume"):
        claim(tmp_path / "new", job(), resume=True)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderRefused, match="is not a folder"):
        claim(tmp_path / "file", job(), resume=False)
