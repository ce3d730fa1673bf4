"""A gateway that dies at any write to its journal: what it has told anybody is there when it comes back."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests.rollout.gateway.test_journal import OPENED, kept
from tests.rollout.gateway.world import World, paths, text_of, world
from tidemill_rollout.gateway import journal as journals
from tidemill_rollout.gateway import process
from tidemill_rollout.gateway.journal import Journal


class Died(Exception):
    pass


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """The journal's writer dies at its n-th commit: before anything of it is written, in the middle of it, or when all is on disk."""

    def at(number: int, moment: str) -> None:
        commit, count = Journal._commit, 0

        def commit_and_die(self: Journal, batch: list) -> None:
            nonlocal count
            count += 1
            if count != number:
                commit(self, batch)
            elif moment == "before":
                raise Died
            elif moment == "within":
                self.connection.execute("BEGIN IMMEDIATE")
                for write in batch:
                    for statement, values in write.statements:
                        self.connection.execute(statement, values)
                raise Died
            else:
                commit(self, batch)
                raise Died

        monkeypatch.setattr(Journal, "_commit", commit_and_die)

    return at


async def harness(w: World, told: list[dict]) -> None:
    """A conversation with retries, as harnesses hold it. `told` gets every answer."""
    while len(told) < 4:
        messages = [{"role": "user", "content": "go 0"}]
        for n, answer in enumerate(told):
            messages += [answer["choices"][0]["message"], {"role": "user", "content": f"go {n + 1}"}]
        try:
            async with w.post("/x/e1/v1/chat/completions", {"messages": messages}, key="key-of-e1") as response:
                body = await response.read()
            if response.status == 200:
                told.append(json.loads(body))
        except (aiohttp.ClientError, ValueError):
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("moment", ["before", "within", "after"])
@pytest.mark.parametrize("number", range(1, 8))
async def test_whatever_write_it_dies_at_no_answer_that_was_given_is_lost_or_kept_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: Callable[[int, str], None], number: int, moment: str
) -> None:
    monkeypatch.setattr(process, "SHUTDOWN_SECONDS", 0.01)
    async with world(tmp_path, lambda prompt: f"answer to {prompt.count('go')}") as w:
        await w.now.journal.flush()
        told: list[dict] = []
        dies(number, moment)
        async with w.gateway() as first:
            asking = asyncio.create_task(harness(w, told))
            await asyncio.wait({asking, first.failure}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
            assert asking.done() or isinstance(first.failure.exception(), Died)
        async with w.gateway():
            await asyncio.wait_for(asking, 20)
            closed = await w.close()
        assert closed.turns == len(w.turns)
        by_path = {text_of(path): turn for turn, path in paths(w.turns).items()}
        for answer in told:
            assert sum(path.endswith(f"assistant\n{answer['choices'][0]['message']['content']}<|im_end|>") for path in by_path) == 1
        assert len(w.turns) == 4


@pytest.mark.parametrize("moment", ["before", "within", "after"])
async def test_what_the_journal_has_acknowledged_is_replayed_and_nothing_that_was_not_begun(
    tmp_path: Path, dies: Callable[[int, str], None], moment: str
) -> None:
    for number in range(1, 7):
        with pytest.MonkeyPatch.context():
            path = tmp_path / f"{number}.db"
            journal = Journal(path)
            commit = Journal._commit
            dies(number, moment)
            writer = asyncio.create_task(journal.run())
            acknowledged: list[str] = []

            async def work(journal: Journal = journal, acknowledged: list[str] = acknowledged) -> None:
                await journal.open_execution(OPENED)
                acknowledged.append("open")
                for n in range(4):
                    await journal.keep(kept(f"t{n}"), {"calls": 1})
                    acknowledged.append(f"t{n}")

            working = asyncio.create_task(work())
            await asyncio.wait({writer, working}, return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            Journal._commit = commit  # type: ignore[method-assign]
            await asyncio.wait({working})
            if journal.connection.in_transaction:
                journal.connection.execute("ROLLBACK")  # what the death of the process does
            replay = Journal(path).replay()
            turns = [entry.kept.turn.id for entry in replay.turns]
            known = [name for name in acknowledged if name != "open"]
            assert turns[: len(known)] == known
            assert len(turns) - len(known) == (moment == "after" and 1 < number < 6)
            assert replay.executions == ([OPENED] if "open" in acknowledged or moment == "after" else [])
            assert replay.counters.get("calls", 0) == len(turns)
            writer.cancel()


async def test_a_journal_does_not_grow_with_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SPARE_PAGES", 20)
    monkeypatch.setattr(journals, "REMEMBERED", 5)
    async with world(tmp_path, lambda prompt: "x" * 400) as w:
        sizes = []
        for n in range(30):
            await w.open(f"n{n}")
            await asyncio.gather(*(w.ask(f"{turn}" * 400, f"n{n}") for turn in range(6)))
            await w.close(f"n{n}")
            sizes.append(w.now.journal.connection.execute("PRAGMA page_count").fetchone()[0])
        assert (tmp_path / "gateway-0.db-wal").stat().st_size < 5 * 2**20
        [rows] = w.now.journal.connection.execute("SELECT count(*) FROM executions").fetchone()
        [free] = w.now.journal.connection.execute("PRAGMA freelist_count").fetchone()
    assert rows <= 7
    assert free <= 20
    assert max(sizes) < 60, "an execution has about 10"
    assert max(sizes[15:]) <= max(sizes[:15])


async def test_a_file_that_a_crowd_has_filled_becomes_small_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "SPARE_PAGES", 10)
    journal = Journal(tmp_path / "j.db")
    writer = asyncio.create_task(journal.run())
    await journal.open_execution(OPENED)
    await asyncio.gather(*(journal.keep(kept(f"t{n}"), {"calls": 1}) for n in range(5000)))
    [full] = journal.connection.execute("PRAGMA page_count").fetchone()
    await journal.close_execution("e1", 1, 5000)
    for _ in range(5):
        await journal.flush()
    [small] = journal.connection.execute("PRAGMA page_count").fetchone()
    assert full > 200
    assert small < 30
    writer.cancel()
    journal.close()
