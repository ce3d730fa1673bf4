"""What is awaited is on disk, in few commits."""

import asyncio
import sqlite3
from pathlib import Path

from tidemill.trajectory.records import Piece, Turn
from tidemill.wire.engine import Sampling
from tidemill.wire.gateway import OpenExecution, Route
from tidemill_rollout.gateway.conversation import Answer
from tidemill_rollout.gateway.journal import Journal
from tidemill_rollout.gateway.turns import Kept

OPENED = OpenExecution("e1", 1, "key", "react", Sampling(10), 0.0)


def kept(name: str) -> Kept:
    turn = Turn(name, "e1", 1, "", "", (1, 2), (Piece("cell-0", (3, 4), (-0.1, -0.25), (0, 1)),), "stop", 0.0, 1.0, "chat")
    return Kept(turn, Answer(name, "hi", "", (), "stop", 2, 2), "", b"given", b"request", recomputed=3)


async def test_what_was_written_is_replayed_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    writer = asyncio.create_task(journal.run())
    await journal.open_execution(OPENED)
    await asyncio.gather(*(journal.keep(kept(f"t{n}"), {"calls": 1}) for n in range(50)))
    journal.answered("t1")
    journal.acknowledged(["t0", "t1"])
    journal.route("cell-0", 3, Route("cell-0", 3, 1, "http://a", 8))
    journal.route("cell-1", 4, None)
    await journal.flush()
    writer.cancel()
    journal.close()
    replay = Journal(tmp_path / "j.db").replay()
    assert [entry.kept for entry in replay.turns] == [kept(f"t{n}") for n in range(50)]
    assert [(entry.answered, entry.acknowledged) for entry in replay.turns[:3]] == [(False, True), (True, True), (False, False)]
    assert replay.executions == [OPENED]
    assert replay.counters == {"calls": 50}
    assert replay.routes == [("cell-0", 3, Route("cell-0", 3, 1, "http://a", 8)), ("cell-1", 4, None)]


async def test_many_turns_share_a_commit_and_other_readers_see_them_when_they_are_acknowledged(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    commits: list[str] = []
    journal.connection.set_trace_callback(lambda statement: commits.append(statement) if statement == "COMMIT" else None)
    writes = [asyncio.ensure_future(journal.keep(kept(f"t{n}"), {"calls": 1})) for n in range(100)]
    await asyncio.sleep(0)
    writer = asyncio.create_task(journal.run())
    await asyncio.gather(*writes)
    assert len(commits) == 1
    with sqlite3.connect(tmp_path / "j.db") as other:
        assert other.execute("SELECT count(*) FROM turns").fetchone() == (100,)
    writer.cancel()
    journal.close()


async def test_a_closed_execution_leaves_only_its_name(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    writer = asyncio.create_task(journal.run())
    await journal.open_execution(OPENED)
    await journal.keep(kept("t0"), {"calls": 1})
    await journal.close_execution("e1", 1, 1)
    replay = journal.replay()
    assert (replay.executions, replay.turns, replay.closed) == ([], [], {"e1": (1, 1)})
    writer.cancel()
    journal.close()


async def test_a_journal_that_was_deleted_is_written_anew_with_all_that_was_in_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.db")
    writer = asyncio.create_task(journal.run())
    await journal.open_execution(OPENED)
    await journal.keep(kept("t0"), {"calls": 1})
    for path in tmp_path.iterdir():
        path.unlink()
    await journal.keep(kept("t1"), {"calls": 1})
    replay = Journal(tmp_path / "j.db").replay()  # the first is never closed
    assert ([entry.kept for entry in replay.turns], replay.executions) == ([kept("t0"), kept("t1")], [OPENED])
    writer.cancel()
    journal.close()
