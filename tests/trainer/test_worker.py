"""The loop of a trainer, with stand-ins for what it talks to."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from tidemill.wire.conductor import ConductorClient, LeaseReply, LeaseRequest
from tidemill.wire.trainer import Join, Leave
from tidemill_trainer.exchange import Part
from tidemill_trainer.ledger import Ledger
from tidemill_trainer.worker import Identity, Worker


class SilentConductor:
    """Takes questions and answers none."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[int] = asyncio.Queue()

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        self.asked.put_nowait(request.epoch)
        await asyncio.Event().wait()
        raise AssertionError("nobody sets that event")


class CoreHome:
    always_asks = True
    held_step = 0

    def __init__(self) -> None:
        self.ledger = Ledger()

    async def hold(self, step: int) -> None: ...
    async def hand_over(self, part: Part) -> None: ...
    async def apply(self, step: int, micro_steps: int) -> None: ...
    async def publish(self, version: int) -> None: ...
    async def rest(self) -> None: ...


async def test_neither_join_nor_leave_of_the_core_waits_for_the_answer_to_a_question_that_is_under_way() -> None:
    conductor = SilentConductor()
    worker = Worker(
        Identity("cell-0", "i"), cast(ConductorClient, conductor), CoreHome(), lambda sequences: {}, lambda: None, ThreadPoolExecutor(1), False
    )
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(5):
        assert await conductor.asked.get() == 0
        worker.join(Join(2))
        assert await conductor.asked.get() == 2
        assert not (await worker.leave(Leave(3), 5)).training
        assert await conductor.asked.get() == 3
    running.cancel()
