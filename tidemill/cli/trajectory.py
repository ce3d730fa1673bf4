"""`tidemill trajectory show FILE|EXECUTION`: what one execution sampled, as a tree for people."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from tidemill.api.loading import InvalidManifest, load_rljob
from tidemill.report.strands import Picture, Rule, picture
from tidemill.report.trajectory import drawing
from tidemill.trajectory.files import UnknownFormat, read_trajectory
from tidemill.trajectory.tree import BrokenTree

EXIT_REFUSED = 2
WIDTH_IN_A_FILE = 400
"""Columns: a line of its own for each branch."""


class Unreadable(Exception):
    """The text says what is wrong and what to do."""


def add_to(commands: Any) -> None:
    parser = commands.add_parser("trajectory", help="look at what one execution sampled")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = verbs.add_parser("show", help="print the tree of an execution: who branched, what was given, sampled and drawn for training")
    show.add_argument("what", metavar="FILE|EXECUTION", help="a file of trajectories/, or the name of an execution, e.g. g1-0")
    show.add_argument("--workdir", type=Path, metavar="DIR", help="work folder of its job (default: where FILE lies, or the present folder)")
    show.add_argument("--html", type=Path, metavar="OUT", help="draw it into this file instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        seen = _seen(arguments.what, arguments.workdir)
        if arguments.html is None:
            Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_IN_A_FILE).print(drawing(seen))
            return 0
        from tidemill.report.trajectory_page import write_page  # what pages need takes half a second to import

        write_page(seen, arguments.html)
    except (Unreadable, OSError) as trouble:
        print(f"trajectory {arguments.what}: {trouble}", file=sys.stderr)
        return EXIT_REFUSED
    print(arguments.html)
    return 0


def _seen(what: str, workdir: Path | None) -> Picture:
    file = _file(what, workdir)
    try:
        trajectory = read_trajectory(file)
        return picture(trajectory, _rule(workdir or file.absolute().parent.parent, asked=workdir is not None))
    except UnknownFormat as trouble:
        raise Unreadable(str(trouble)) from trouble
    except msgspec.MsgspecError as trouble:
        raise Unreadable(f"{file} is no trajectory, or a damaged one: {trouble}") from trouble
    except BrokenTree as trouble:
        raise Unreadable(f"{file}: {trouble}") from trouble


def _file(what: str, workdir: Path | None) -> Path:
    """Raises `Unreadable`."""
    if Path(what).is_file():
        return Path(what)
    folder = (workdir or Path()) / "trajectories"
    named = folder / f"{what}.msgpack"
    if "/" not in what and named.is_file():
        return named
    if "/" in what or what.endswith(".msgpack"):
        raise Unreadable("there is no such file")
    if not folder.is_dir():
        raise Unreadable(f"there is no folder {folder}; name the job's work folder with --workdir")
    known = sorted(path.stem for path in folder.glob("*.msgpack"))
    told = f"it has {', '.join(known[:5])}{' and others' if len(known) > 5 else ''}" if known else "it has none yet"
    raise Unreadable(f"no execution of this name has ended in {folder}; {told}")


def _rule(workdir: Path, *, asked: bool) -> Rule | None:
    """How the job of this folder draws paths. None: it is no job's folder. Raises `Unreadable` where one was named that is none."""
    manifest = workdir / "job.yaml"
    if not manifest.is_file() and not asked:
        return None
    try:
        spec = load_rljob(manifest).spec
    except (OSError, InvalidManifest) as trouble:
        raise Unreadable(f"{workdir} is no job's work folder: {trouble}") from trouble
    return Rule(spec.trajectories.max_per_execution, spec.tasks.seed)
