"""`tidemill flip [JOB] CELL Rollout|Training|--release`: keep a cell in one role, whatever the waterlevel.
`tidemill drain [JOB] CELL [--undo]`: take a cell out of its job, for instance before its node is repaired, or in again."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidemill.cli.on_cluster import EXIT_LATE, add_place, add_wait, job_and_cell, on_cluster
from tidemill.cluster.api import Cluster
from tidemill.cluster.changes import cordon, is_back, is_drained, is_flipped, pin
from tidemill.cluster.finding import find_cell, find_job
from tidemill.cluster.following import Seen, wait_for
from tidemill.cluster.objects import Cell, Job
from tidemill.cluster.trouble import ClusterTrouble
from tidemill.wire.cell import Role


@dataclass(frozen=True, slots=True)
class Change:
    """What is done to a cell, and how that is told."""

    apply: Callable[[Cluster, Job, Cell], Awaitable[None]]
    said: str
    done: Callable[[Seen, str], bool] | None = None  # None: there is nothing to wait for
    late: str = ""  # what the cell is not in time
    remark: str = ""
    waited: str = ""  # said when it has come about


@dataclass(frozen=True, slots=True)
class CellVerb:
    name: str
    help: str
    usage: str
    words: str
    words_help: str
    option: str
    option_help: str
    waits_for: str
    meant: Callable[[list[str], bool], tuple[list[str], Change]]
    """From the words and whether the option is given: what names the cell, and the change. Raises `ClusterTrouble`."""

    def add_to(self, commands: Any) -> None:
        usage = f"tidemill {self.name} [-h] {self.usage} [--wait [SECONDS]] [-n NAME] [--context NAME] [--kubeconfig FILE]"
        parser = commands.add_parser(self.name, help=self.help, usage=usage)
        parser.add_argument("words", nargs="+", metavar=self.words, help=self.words_help)
        parser.add_argument(self.option, dest="option", action="store_true", help=self.option_help)
        add_wait(parser, self.waits_for)
        add_place(parser)
        parser.set_defaults(run=self._run)

    def _run(self, arguments: argparse.Namespace) -> int:
        async def act(cluster: Cluster) -> int:
            words, change = self.meant(arguments.words, arguments.option)
            named, cell_name = job_and_cell(words)
            job = await find_job(cluster, named)
            cell = await find_cell(cluster, job, cell_name)
            await change.apply(cluster, job, cell)
            print(f"{cell.object_name}: {change.said}")
            done, wait = change.done, arguments.wait
            if done is None or not wait:
                return 0
            if not await wait_for(cluster, job.name, lambda seen: done(seen, cell.name), wait):
                print(f"{cell.object_name}: not {change.late} after {wait:g} s{change.remark or f'; see tidemill status {job.name}'}")
                return EXIT_LATE
            if change.waited:
                print(f"{cell.object_name}: {change.waited}")
            return 0

        return on_cluster(arguments, act)


def flip(words: list[str], release: bool) -> tuple[list[str], Change]:
    named, role = meant(words, release)
    apply = partial(_pin, role)
    if role is None:
        return named, Change(apply, "left to the waterlevel again")
    reason = "; a cell leaves rollout only when the others can carry the load" if role is Role.TRAINING else ""
    return named, Change(apply, f"pinned to {role.value}", partial(_is_in, role), f"in {role.value}", f"{reason}; the pin stays")


def drain(words: list[str], undo: bool) -> tuple[list[str], Change]:
    apply = partial(_cordon, not undo)
    if undo:
        return words, Change(apply, "takes part again", is_back, "back")
    return words, Change(apply, "drains", is_drained, "drained", waited="drained")


def meant(words: list[str], release: bool) -> tuple[list[str], Role | None]:
    """What names the cell, and the role; None to release it. Raises `ClusterTrouble`."""
    role = {r.value.lower(): r for r in Role}.get(words[-1].lower())
    if release and role is None:
        return words, None
    if release or role is None:
        raise ClusterTrouble("say one of Rollout, Training or --release, after the cell: tidemill flip JOB cell-1 Rollout")
    return words[:-1], role


async def _pin(role: Role | None, cluster: Cluster, job: Job, cell: Cell) -> None:
    await pin(cluster, job, cell, role)


async def _cordon(wanted: bool, cluster: Cluster, job: Job, cell: Cell) -> None:
    await cordon(cluster, job, cell, wanted)


def _is_in(role: Role, seen: Seen, name: str) -> bool:
    return is_flipped(seen, name, role)


FLIP = CellVerb(
    "flip",
    "pin a cell of a job on a cluster to a role, or release it",
    "[JOB] CELL (Rollout | Training | --release)",
    "[JOB] CELL ROLE",
    "the cell as cell-1 or JOB-cell-1; Rollout or Training",
    "--release",
    "leave the cell to the waterlevel again",
    "the cell is in that role",
    flip,
)
DRAIN = CellVerb(
    "drain",
    "take a cell of a job on a cluster out, or in again",
    "[JOB] CELL [--undo]",
    "[JOB] CELL",
    "the cell as cell-1 or JOB-cell-1",
    "--undo",
    "take the cell in again",
    "the cell has come back from training and is counted out",
    drain,
)
