"""The order of tasks: a new shuffle for every pass over them, known from the seed alone, so that a resumed job goes on where it was."""

from __future__ import annotations

from random import Random


def task_of(number: int, names: tuple[str, ...], seed: int) -> str:
    """The task of the `number`-th training group."""
    epoch, place = divmod(number, len(names))
    order = list(names)
    Random(f"{seed}/{epoch}").shuffle(order)
    return order[place]
