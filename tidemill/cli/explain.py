"""`tidemill explain rljob.spec.schedule`: what fields there are and what they mean."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tidemill.api.explain import UnknownPath, explain
from tidemill.api.reference import reference


def add_to(commands: Any) -> None:
    parser = commands.add_parser("explain", help="print the fields of a manifest with their meaning")
    parser.add_argument("path", metavar="PATH", nargs="?", default="rljob.spec", help="for instance rljob.spec.schedule (default: rljob.spec)")
    parser.add_argument("--markdown", action="store_true", help="print the whole reference, docs/rljob.md")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.markdown:
        print(reference(), end="")
        return 0
    try:
        print(explain(arguments.path), end="")
    except UnknownPath as cause:
        print(cause, file=sys.stderr)
        return 2
    return 0
