"""`tidemill`: the subcommands and what they have in common."""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_STOPPED = 130  # by a signal, as shells count
EXIT_UNREAD = 141  # as if by SIGPIPE: `tidemill explain rljob | head` has read enough


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
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_STOPPED
    except BrokenPipeError:
        if not _nobody_reads_on():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered is not tried again
        return EXIT_UNREAD
    return code


def _commands() -> tuple[Any, ...]:
    """Imported only here: on a busy machine it takes seconds, in which Ctrl-C must not end in the middle of somebody's import."""
    from tidemill.cli import crds, explain, logs, metrics, report, run, simulate, status, timeline, top, trajectory, validate
    from tidemill.cli.cell import DRAIN, FLIP
    from tidemill.cli.suspend import RESUME, SUSPEND

    return (run, validate, explain, report, trajectory, simulate, status, top, timeline, logs, FLIP, DRAIN, SUSPEND, RESUME, metrics, crds)


def _nobody_reads_on() -> bool:
    """Whether what is printed goes to a pipe whose reader has left."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError):  # no file at all
        return False


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
