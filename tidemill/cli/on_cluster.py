"""What the commands for jobs on a cluster have in common: the options that kubectl has too, and how trouble is told."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable

from tidemill.cluster.api import Cluster
from tidemill.cluster.kubeconfig import Place, connect
from tidemill.cluster.trouble import ClusterTrouble

EXIT_REFUSED = 2
EXIT_LATE = 1  # what was asked for is under way, but not done in time
EXIT_STOPPED = 130


def add_place(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which cluster, as for kubectl")
    group.add_argument("-n", "--namespace", metavar="NAME", default="", help="default: the context's")
    group.add_argument("--context", metavar="NAME", default="", help="default: the current one of the kubeconfig")
    group.add_argument("--kubeconfig", metavar="FILE", default="", help="default: $KUBECONFIG, then ~/.kube/config")


def add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", help="may be left out where the namespace has one job")


def add_wait(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--wait", type=float, nargs="?", const=600.0, metavar="SECONDS", help=f"until {what}; exit 1 when it takes longer (default 600)"
    )


def on_cluster(arguments: argparse.Namespace, act: Callable[[Cluster], Awaitable[int]]) -> int:
    """Runs `act` with a connection. Trouble becomes one line and exit code 2."""

    async def connected() -> int:
        async with connect(Place(arguments.namespace, arguments.context, arguments.kubeconfig)) as cluster:
            return await act(cluster)

    try:
        return asyncio.run(connected())
    except ClusterTrouble as trouble:
        print(trouble, file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_STOPPED


def job_and_cell(words: list[str]) -> tuple[str | None, str]:
    """`[JOB] CELL`. Raises `ClusterTrouble` for another number of words."""
    if len(words) not in (1, 2):
        raise ClusterTrouble(f"expected [JOB] CELL, got {' '.join(words) or 'nothing'}")
    return (words[0] if len(words) == 2 else None), words[-1]
