"""Who waits for a cell, and whose turn it is. Pure.

A cell takes only so many calls at once. What exceeds that waits here, where it is fair: executions take turns, so one with 32 calls does not
starve one with a single call. In the engine's own queue the first to come would be the first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Line[T]:
    """Those who began elsewhere and were moved come first, in the order they came; then executions in turn, one call each."""

    _moved: deque[T] = field(default_factory=deque)
    _new: OrderedDict[str, deque[T]] = field(default_factory=OrderedDict)  # by execution; whose turn it is stands first
    _length: int = 0

    def __len__(self) -> int:
        return self._length

    def join(self, execution: str, waiting: T, *, moved: bool = False) -> None:
        self._length += 1
        if moved:
            self._moved.append(waiting)
        else:
            self._new.setdefault(execution, deque()).append(waiting)

    def first(self) -> T | None:
        """Whose turn it is."""
        if self._moved:
            return self._moved[0]
        return next(iter(self._new.values()))[0] if self._new else None

    def next(self) -> T:
        """The same one, who waits no longer."""
        self._length -= 1
        if self._moved:
            return self._moved.popleft()
        execution, calls = self._new.popitem(last=False)
        first = calls.popleft()
        if calls:
            self._new[execution] = calls  # behind all others
        return first

    def leave(self, execution: str, waiting: T) -> None:
        """Give up. No harm if it has been its turn meanwhile."""
        calls = self._new.get(execution)
        for queue in (self._moved, calls):
            if queue is not None and waiting in queue:
                queue.remove(waiting)
                self._length -= 1
        if calls is not None and not calls:
            del self._new[execution]
