"""The one thread in which torch computes: OpenMP keeps a pool of its own for each thread that does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor


async def in_torch[T](torch_thread: Executor, work: Callable[[], T]) -> T:
    """Do `work` there, while the loop goes on."""
    return await asyncio.get_running_loop().run_in_executor(torch_thread, work)
