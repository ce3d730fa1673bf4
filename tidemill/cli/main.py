"""`tidemill`: the subcommands and what they have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tidemill.cli import explain, report, run, validate

COMMANDS = (run, validate, explain, report)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemill", description="Elastic reinforcement learning of long-horizon LLM agents.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    chosen = parser.parse_args(arguments)
    code: int = chosen.run(chosen)
    return code


if __name__ == "__main__":
    sys.exit(main())
