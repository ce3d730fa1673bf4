"""`tidemill metrics waterlevel`: what is measured, and by which query it is read."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tidemill.telemetry.catalogue import ALL
from tidemill.telemetry.reference import reference

EXIT_NOTHING = 2


def add_to(commands: Any) -> None:
    parser = commands.add_parser("metrics", help="print what is measured, and the query by which each figure is read")
    parser.add_argument("words", metavar="WORD", nargs="*", help="only metrics whose name has each of these words in it")
    parser.add_argument("--markdown", action="store_true", help="print the whole reference, docs/metrics.md")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.markdown:
        print(reference(), end="")
        return 0
    found = [metric for metric in ALL if all(word in metric.name for word in arguments.words)]
    for metric in found:
        print(f"{metric.name}{{{', '.join(metric.labels)}}}  {metric.kind} of the {metric.process}\n  {metric.help}\n  {metric.formula}\n")
    if not found:
        print(f"no metric has {' and '.join(arguments.words)} in its name; `tidemill metrics` prints all of them", file=sys.stderr)
        return EXIT_NOTHING
    return 0
