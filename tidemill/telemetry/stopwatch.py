"""Where the time goes: seconds by what is done, one thing at a time."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Nothing runs in between: a scrape sees the seconds up to its own moment."""

    def __init__(self, doing: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent: dict[str, float] = {}
        self._doing = doing
        self._since = clock()

    @property
    def doing(self) -> str:
        return self._doing

    def turn_to(self, what: str, since: float | None = None) -> None:
        """From now on `what` is done, or "" for what nobody counts. With `since`: it has been so since then, though not from before the last turn."""
        if what == self._doing:
            return
        moment = self._clock() if since is None else max(self._since, min(since, self._clock()))
        self._spent[self._doing] = self._spent.get(self._doing, 0.0) + moment - self._since
        self._doing, self._since = what, moment

    def seconds(self) -> dict[str, float]:
        spent = dict(self._spent)
        spent[self._doing] = spent.get(self._doing, 0.0) + self._clock() - self._since
        spent.pop("", None)
        return spent
