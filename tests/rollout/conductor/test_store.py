import sqlite3
from pathlib import Path

import pytest

from tests.rollout.conductor.world import settings
from tidemill.telemetry.events import ConditionChanged, read_events
from tidemill_rollout.conductor import events, job
from tidemill_rollout.conductor.store import Database, Store, Unwritable
from tidemill_rollout.lasting import Replaced


def opened(folder: Path) -> Store:
    store = Store(folder / "conductor.db")
    with store.transaction() as db:
        job.open_job(db, settings(), now=0.0)
    return store


def note(db: Database, text: str) -> None:
    events.say(db, ConditionChanged(time=1.0, kind="Test", text=text))


def texts(folder: Path) -> list[str]:
    return [e.text for e in read_events(folder / "metrics.jsonl") if isinstance(e, ConditionChanged)]


def test_a_transaction_is_whole_or_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)

    def fail_half_way() -> None:
        with store.transaction() as db:
            note(db, "lost")
            db.execute("INSERT INTO turns (execution, id, record) VALUES ('nobody', 't1', x'00')")

    with pytest.raises(sqlite3.IntegrityError):
        fail_half_way()
    assert store.db.execute("SELECT COUNT(*) FROM events").fetchone()[0] == 0


def test_what_was_committed_is_there_after_a_kill(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with store.transaction() as db:
        note(db, "kept")
    again = Store(tmp_path / "conductor.db")  # the first is never closed
    assert again.db.execute("SELECT COUNT(*) FROM events").fetchone()[0] == 1


def test_a_change_is_told_and_a_look_is_not(tmp_path: Path) -> None:
    store = opened(tmp_path)
    told: list[str] = []
    store.on_change = lambda: told.append("changed")
    with store.transaction() as db:
        db.execute("SELECT * FROM job").fetchall()
    assert told == []
    with store.transaction() as db:
        note(db, "new")
    assert told == ["changed"]


def test_a_full_disk_is_an_answer_that_tells_the_caller_to_repeat(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (pages,) = store.db.execute("PRAGMA page_count").fetchone()
    store.db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Unwritable, match=r"conductor.db: database or disk is full; free space"), store.transaction() as db:
        note(db, "x" * 100_000)
    assert store.db.execute("SELECT COUNT(*) FROM events").fetchone()[0] == 0
    store.db.execute("PRAGMA max_page_count = 100000")
    with store.transaction() as db:
        note(db, "x" * 100_000)


def test_a_mistake_in_our_own_sql_is_no_full_disk(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(sqlite3.OperationalError, match="no such table"), store.transaction() as db:
        db.execute("SELECT * FROM nonsense")


def test_the_store_of_another_job_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(job.OtherJob, match="holds job tiny; use another folder"), store.transaction() as db:
        job.open_job(db, settings(job="other"), now=0.0)


def test_a_copy_is_consistent_and_replaces_an_older_one(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.copy_to(tmp_path / "copy.db")
    with store.transaction() as db:
        note(db, "later")
    store.copy_to(tmp_path / "copy.db")
    assert Store(tmp_path / "copy.db").db.execute("SELECT COUNT(*) FROM events").fetchone()[0] == 1


def test_events_are_in_the_file_once_and_in_order_whenever_the_process_dies(tmp_path: Path) -> None:
    store = opened(tmp_path)
    outbox = events.Outbox(store, tmp_path / "metrics.jsonl")
    with store.transaction() as db:
        note(db, "first")
    outbox.flush()
    with store.transaction() as db:
        note(db, "second")
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event":"condition","time":1.0,"kind":"Test","text":"sec')  # killed while it appended
    events.Outbox(Store(tmp_path / "conductor.db"), tmp_path / "metrics.jsonl").flush()
    assert texts(tmp_path) == ["first", "second"]


def test_events_wait_while_their_file_cannot_be_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (tmp_path / "gone").mkdir()
    outbox = events.Outbox(store, tmp_path / "gone")
    with store.transaction() as db:
        note(db, "kept")
    with pytest.raises(Unwritable, match="gone: Is a directory"):
        outbox.flush()
    events.Outbox(store, tmp_path / "metrics.jsonl").flush()
    assert texts(tmp_path) == ["kept"]


@pytest.mark.parametrize("deleted", [("conductor.db",), ("conductor.db-wal",), ("conductor.db", "conductor.db-wal", "conductor.db-shm")])
def test_a_store_that_was_deleted_is_written_anew_before_anything_else_is(tmp_path: Path, deleted: tuple[str, ...]) -> None:
    store = opened(tmp_path)
    with store.transaction() as db:
        note(db, "before")
    for name in deleted:
        (tmp_path / name).unlink()
    with store.transaction() as db:
        note(db, "after")
    again = Store(tmp_path / "conductor.db")  # the first is never closed
    assert again.db.execute("SELECT COUNT(*) FROM events").fetchone()[0] == 2
    assert again.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_copy_of_a_deleted_store_makes_no_empty_one_in_its_place(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (tmp_path / "conductor.db").unlink()
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        store.copy_to(tmp_path / "copy.db")
    assert not (tmp_path / "conductor.db").exists()


def test_a_file_that_took_the_stores_place_is_not_written_over(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (tmp_path / "other").write_bytes(b"mine")
    (tmp_path / "other").rename(tmp_path / "conductor.db")
    with pytest.raises(Replaced, match="another file has taken its place"), store.transaction() as db:
        note(db, "lost")
    assert (tmp_path / "conductor.db").read_bytes() == b"mine"


@pytest.mark.parametrize("folder", ["100%", "x#y", "x?mode=memory"])
def test_a_copy_is_made_whatever_the_folder_is_called(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    store = opened(tmp_path / folder)
    store.copy_to(tmp_path / "copy.db")
    assert Store(tmp_path / "copy.db").db.execute("SELECT name FROM job").fetchone()[0] == "tiny"
