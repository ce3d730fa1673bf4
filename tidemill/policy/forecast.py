"""How much longer an execution will take, from the durations seen so far."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict

ENOUGH = 4
"""Durations of a task that say more than those of all tasks together."""


class Forecast:
    """Grows with every execution that ends."""

    def __init__(self) -> None:
        self._all: list[float] = []
        self._by_task: defaultdict[str, list[float]] = defaultdict(list)

    def note(self, task: str, seconds: float) -> None:
        insort(self._all, seconds)
        if task:
            insort(self._by_task[task], seconds)

    def remaining_seconds(self, task: str, age: float) -> float | None:
        """Median of what those that took longer than `age` took beyond it; None when none did."""
        known = self._by_task.get(task, ())
        values = known if len(known) >= ENOUGH else self._all
        first = bisect_right(values, age)
        return values[(first + len(values)) // 2] - age if first < len(values) else None
