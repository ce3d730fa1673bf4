"""What travels between the conductor and sandboxes, and what is refused because somebody forged it."""

from __future__ import annotations

import ast
import io
import os
import stat
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.jobs import task
from tidemill_rollout.sandbox import archive, enter
from tidemill_rollout.sandbox.archive import BadArchive
from tidemill_rollout.sandbox.enter import Refused, Report, SurroundingsFailed
from tidemill_rollout.sandbox.orders import evaluator_order
from tidemill_rollout.sandbox.prepare import unpack
from tidemill_rollout.sandbox.process import Limits

REPORT = Report(exit_code=0, timed_out=False, seconds=1.0, stopped="", refused="", tail="")
BRING = ("app", "logs")


def packed(path: Path, **folders: Path) -> Path:
    with path.open("wb") as file:
        enter.pack(file, REPORT, b"printed", {name: str(folder) for name, folder in folders.items()}, 2**30)
    return path


def forged(path: Path, *members: tarfile.TarInfo, report: bool = True) -> Path:
    with tarfile.open(path, "w") as made:
        for member in members:
            made.addfile(member, io.BytesIO(b"x" * member.size))
        if report:
            enter.add(made, enter.REPORT, b'{"exit_code":0,"timed_out":false,"seconds":1,"stopped":"","refused":"","tail":""}')
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0, **pax: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size, made.pax_headers = kind, target, size, pax
    return made


def places(folder: Path) -> dict[str, str]:
    return {name: str(folder / name) for name in ("app", "logs", "tests")}


def test_work_goes_to_the_evaluator_as_it_was_with_tests_and_without_forged_rewards(tmp_path: Path) -> None:
    work, logs = tmp_path / "work", tmp_path / "logs"
    (work / "deep" / "er").mkdir(parents=True)
    (work / "deep" / "er" / ("long" * 40)).write_text("long")
    (work / "tool").write_text("#!/bin/sh")
    (work / "tool").chmod(0o755)
    (work / "same").hardlink_to(work / "tool")
    (work / "link").symlink_to("/usr/bin/python3")
    (work / os.fsdecode(b"\xff")).write_text("not utf-8")
    (work / "secret").write_text("kept from others")
    (work / "secret").chmod(0)
    os.mkfifo(work / "pipe")
    (logs / "verifier").mkdir(parents=True)
    (logs / "verifier" / "reward.txt").write_text("1")
    (logs / "agent").mkdir()
    (logs / "agent" / "note").write_text("seen")
    brought = packed(tmp_path / "work.tar", app=work, logs=logs)
    assert archive.check(brought, BRING) == REPORT
    assert archive.read(brought, (enter.OUTPUT, "app/link", "app/none"), 3) == {enter.OUTPUT: b"pri", "app/link": None}

    chosen = task(tmp_path / "task")
    order = evaluator_order(chosen, Limits())
    archive.write(tmp_path / "given.tar", order, {"tests": chosen.tests}, {}, empty=("logs/agent", "logs/verifier"), work=brought)
    pod = tmp_path / "pod"
    with (tmp_path / "given.tar").open("rb") as stream:
        assert unpack(stream, places(pod)) == order
    assert {path.name for path in (pod / "app").iterdir()} == {path.name for path in work.iterdir()} - {"pipe"}
    assert (pod / "app" / "deep" / "er" / ("long" * 40)).read_text() == "long"
    assert stat.S_IMODE((pod / "app" / "tool").stat().st_mode) == 0o755
    assert (pod / "app" / "same").read_text() == "#!/bin/sh"
    assert (pod / "app" / "link").readlink() == Path("/usr/bin/python3")
    assert (pod / "logs" / "agent" / "note").read_text() == "seen"
    assert list((pod / "logs" / "verifier").iterdir()) == []
    assert (pod / "tests" / "test.sh").read_text() == (chosen.tests / "test.sh").read_text()


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ([member("/etc/passwd")], "belongs nowhere"),
        ([member("app/../../etc/passwd")], "belongs nowhere"),
        ([member("app/./x")], "belongs nowhere"),
        ([member("app//x")], "belongs nowhere"),
        ([member("app")], "belongs nowhere"),
        ([member("tests/test.sh")], "belongs nowhere"),
        ([member("app/hard", tarfile.LNKTYPE, "app/x")], "neither file, folder nor link"),
        ([member("app/device", tarfile.CHRTYPE)], "neither file, folder nor link"),
        ([member("app/pipe", tarfile.FIFOTYPE)], "neither file, folder nor link"),
        ([member("app/x"), member("app/x")], "there twice"),
        ([member("app/x", tarfile.SYMTYPE, "/etc"), member("app/x/passwd")], "below what is no folder"),
        ([member("app/x/passwd"), member("app/x", tarfile.SYMTYPE, "/etc")], "lie below it and it is no folder"),
        ([member("report.json", tarfile.SYMTYPE, "/etc/passwd")], "is not a file"),
        ([member("output.log", tarfile.SYMTYPE, "/etc/passwd")], "is not a file"),
        ([member("app/big", size=0, **{"GNU.sparse.major": "0", "GNU.sparse.map": "0,0", "GNU.sparse.size": str(2**50)})], "neither file"),
        # What could not be laid out elsewhere would look like a broken pod there, and not like the harness's doing.
        ([member("app/" + "x" * 256)], "a name that no file has"),
        ([member("app/" + "/".join(["x" * 100] * 40))], "a name that no file has"),
        ([member("app/x", path="app/x\0y")], "NUL"),
        ([member("app/x", tarfile.SYMTYPE, "")], "leads nowhere"),
        ([member("app/x", tarfile.SYMTYPE, "y", linkpath="y" * 5000)], "leads nowhere"),
        ([member("app/x", comment="x" * (archive.HEADER_BYTES + 1))], "a header of"),
        ([member(f"app/{n}", size=1) for n in range(3)], "more than 10000 bytes"),
    ],
)
def test_a_forged_archive_is_refused(tmp_path: Path, members: list[tarfile.TarInfo], complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "more than" in complaint:
        monkeypatch.setattr(archive, "DISK_BYTES", 10_000)
    with pytest.raises(BadArchive, match=complaint):
        archive.check(forged(tmp_path / "x.tar", *members), BRING)


def test_headers_for_all_members_are_refused_because_each_would_be_kept(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", pax_headers={"comment": "x"}) as made:
        made.addfile(member("app/x"))
    with pytest.raises(BadArchive, match="headers for all"):
        archive.check(tmp_path / "x.tar", BRING)


def test_a_deep_name_costs_no_more_than_its_length(tmp_path: Path) -> None:
    names = ["app/" + "/".join(["d"] * 1900) + f"/{n}" for n in range(300)]
    began = time.process_time()
    archive.check(forged(tmp_path / "x.tar", *map(member, names)), BRING)
    assert time.process_time() - began < 2.0  # quadratic: over 10


def test_odd_times_and_too_many_logs_do_not_reach_the_tests(tmp_path: Path) -> None:
    odd = member("app/odd", mtime="1e300")
    logs = [member(f"logs/agent/{n}", size=archive.LOGS_BYTES // 2 - archive.BLOCK_BYTES) for n in range(3)]
    brought = forged(tmp_path / "work.tar", odd, member("app/nan", mtime="nan"), *logs)
    archive.check(brought, BRING)
    archive.write(tmp_path / "given.tar", evaluator_order(task(tmp_path / "task"), Limits()), {}, {}, work=brought)
    with (tmp_path / "given.tar").open("rb") as stream:
        unpack(stream, places(tmp_path / "pod"))
    assert {path.name for path in (tmp_path / "pod" / "app").iterdir()} == {"odd", "nan"}
    assert {path.name for path in (tmp_path / "pod" / "logs" / "agent").iterdir()} == {"0", "1"}


def test_an_archive_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match="not its last member"):
        archive.check(forged(tmp_path / "x.tar", member("app/x"), report=False), BRING)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").write_bytes(bytes(10_000))
    whole = packed(tmp_path / "work.tar", app=tmp_path / "work").read_bytes()
    for length in (0, 100, 5000, 11_000, 12_000):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with pytest.raises(BadArchive):
            archive.check(tmp_path / "cut.tar", BRING)


@given(st.binary(max_size=2000))
def test_what_is_no_archive_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("x") / "x.tar"
    path.write_bytes(content)
    with pytest.raises(BadArchive):
        archive.check(path, BRING)


def test_work_that_cannot_be_brought_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(5000))
    with pytest.raises(Refused, match="larger than 4000 bytes"):
        enter.pack(io.BytesIO(), REPORT, b"", {"app": str(tmp_path)}, 4000)


def test_a_place_that_nobody_named_is_not_written_to(tmp_path: Path) -> None:
    for name in ("etc/passwd", "app/../x", "run/tidemill/enter.py"):
        forged(tmp_path / "x.tar", member(name), report=False)
        with (tmp_path / "x.tar").open("rb") as stream, pytest.raises(SurroundingsFailed, match="belongs nowhere"):
            unpack(stream, places(tmp_path / "pod"))


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    forged(tmp_path / "x.tar", member("app/x", tarfile.SYMTYPE, str(outside)), member("app/x/file", size=1), report=False)
    with (tmp_path / "x.tar").open("rb") as stream, pytest.raises(OSError, match="cut short"):
        unpack(stream, places(tmp_path / "pod"))
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("change", [lambda data: data[:-1024], lambda data: b"", lambda data: data[:700]], ids=["no end", "empty", "in the middle"])
def test_what_arrives_in_part_is_fetched_again(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    forged(tmp_path / "x.tar", member("app/x", size=1), report=False)
    with pytest.raises((OSError, tarfile.TarError)):
        unpack(io.BytesIO(change((tmp_path / "x.tar").read_bytes()[:1536])), places(tmp_path / "pod"))


def test_the_program_in_the_pod_is_what_an_old_python_can_read() -> None:
    text = Path(enter.__file__).read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    imported = {name.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert "tidemill_rollout" not in imported
    later = (".removeprefix(", ".removesuffix(", "waitstatus_to_exitcode", "is_relative_to", "readlink(strict", "match ")
    assert [word for word in later if word in text] == []
