"""`tidemill flip [JOB] CELL Rollout|Training|--release`: keep a cell in one role, whatever the waterlevel."""

from __future__ import annotations

import argparse
from typing import Any

from tidemill.cli.on_cluster import EXIT_LATE, add_place, add_wait, job_and_cell, on_cluster
from tidemill.cluster.api import Cluster
from tidemill.cluster.changes import is_flipped, pin
from tidemill.cluster.finding import find_cell, find_job
from tidemill.cluster.following import wait_for
from tidemill.cluster.trouble import ClusterTrouble
from tidemill.wire.cell import Role


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "flip",
        help="pin a cell of a job on a cluster to a role, or release it",
        usage="tidemill flip [-h] [JOB] CELL (Rollout | Training | --release) [--wait [SECONDS]] [-n NAME] [--context NAME] [--kubeconfig FILE]",
    )
    parser.add_argument("words", nargs="+", metavar="[JOB] CELL ROLE", help="the cell as cell-1 or JOB-cell-1; Rollout or Training")
    parser.add_argument("--release", action="store_true", help="leave the cell to the waterlevel again")
    add_wait(parser, "the cell is in that role")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    async def flip(cluster: Cluster) -> int:
        words, role = meant(arguments.words, arguments.release)
        named, cell_name = job_and_cell(words)
        job = await find_job(cluster, named)
        cell = await find_cell(cluster, job, cell_name)
        await pin(cluster, job, cell, role)
        print(f"{cell.object_name}: {f'pinned to {role.value}' if role else 'left to the waterlevel again'}")
        if role and arguments.wait and not await wait_for(cluster, job.name, lambda seen: is_flipped(seen, cell.name, role), arguments.wait):
            reason = "; a cell leaves rollout only when the others can carry the load" if role is Role.TRAINING else ""
            print(f"{cell.object_name}: not in {role.value} after {arguments.wait:g} s{reason}; the pin stays")
            return EXIT_LATE
        return 0

    return on_cluster(arguments, flip)


def meant(words: list[str], release: bool) -> tuple[list[str], Role | None]:
    """What names the cell, and the role; None to release it. Raises `ClusterTrouble`."""
    role = {r.value.lower(): r for r in Role}.get(words[-1].lower())
    if release and role is None:
        return words, None
    if release or role is None:
        raise ClusterTrouble("say one of Rollout, Training or --release, after the cell: tidemill flip JOB cell-1 Rollout")
    return words[:-1], role
