"""`tidemill validate FILE`: every mistake in a manifest, one a line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tidemill.api import InvalidManifest, load_rljob
from tidemill.local.cores import gpus_of
from tidemill.local.sources import base_of, source_rules
from tidemill.local.supported import unsupported


def add_to(commands: Any) -> None:
    parser = commands.add_parser("validate", help="check a manifest; exit 0, or 2 and one line per error")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    base = base_of(arguments.file)
    try:
        job = load_rljob(arguments.file, source_rules(base, on_a_cluster=True))
    except InvalidManifest as cause:
        print(cause, file=sys.stderr)
        return 2
    print(f"rljob {job.metadata.name}: valid")
    for violation in (*(v for rule in source_rules(base) for v in rule(job.spec)), *unsupported(job.spec, gpus_of())):
        print(f"rljob {job.metadata.name}: `tidemill run` would refuse it on this machine: {violation}")
    return 0
