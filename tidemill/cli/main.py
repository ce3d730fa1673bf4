"""`tidemill`: the subcommands and what they have in common."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_STOPPED = 130  # by a signal, as shells count


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemill", description="Elastic reinforcement learning of long-horizon LLM agents.")
    added = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    with _ended_at_once_by_ctrl_c():
        commands = _commands()
    for command in commands:
        command.add_to(added)
    chosen = parser.parse_args(arguments)
    try:
        code: int = chosen.run(chosen)
    except KeyboardInterrupt:
        return EXIT_STOPPED
    return code


def _commands() -> tuple[Any, ...]:
    """Imported only here: on a busy machine it takes seconds, in which Ctrl-C must not end in the middle of somebody's import."""
    from tidemill.cli import crds, drain, explain, flip, report, resume, run, simulate, status, suspend, timeline, top, validate

    return (run, validate, explain, report, simulate, status, top, timeline, flip, drain, suspend, resume, crds)


@contextmanager
def _ended_at_once_by_ctrl_c() -> Iterator[None]:
    """While nothing has begun. What a KeyboardInterrupt does inside of an import is up to the imported."""
    try:
        before = signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_STOPPED))
    except ValueError:  # not in the main thread, which alone hears signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit(main())
