"""`tidemill validate FILE`: every mistake in a manifest, one a line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tidemill.api import InvalidManifest, load_rljob


def add_to(commands: Any) -> None:
    parser = commands.add_parser("validate", help="check a manifest; exit 0, or 2 and one line per error")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        job = load_rljob(arguments.file)
    except InvalidManifest as cause:
        print(cause, file=sys.stderr)
        return 2
    print(f"rljob {job.metadata.name}: valid")
    return 0
