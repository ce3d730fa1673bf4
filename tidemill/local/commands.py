"""The command lines of a local job's processes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemill.api import RLJob
from tidemill.local.cores import CoreShares
from tidemill.local.ports import CellPorts, Ports
from tidemill.local.processes import Command
from tidemill.wire.trust import TOKEN_VARIABLE


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything about this run that the manifest does not say."""

    folder: Path
    model: Path
    ports: Ports
    cores: CoreShares
    gpus: tuple[tuple[int, ...], ...]
    token: str
    resume: bool = False
    unsafe_sandbox: bool = False

    @property
    def conductor_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.conductor}"

    @property
    def gateway_urls(self) -> tuple[str, ...]:
        return tuple(f"http://127.0.0.1:{port}" for port in self.ports.gateways)

    @property
    def gateway_url(self) -> str:
        """Of all gateways, as processes are told them."""
        return ",".join(self.gateway_urls)


def cell_names(job: RLJob) -> tuple[str, ...]:
    """cell-0 (the core), cell-1, ..., then standalone-0, ..."""
    cells = job.spec.cells
    return tuple(f"cell-{i}" for i in range(cells.count)) + tuple(f"standalone-{i}" for i in range(cells.standalone.replicas))


def commands(job: RLJob, layout: Layout) -> Iterator[Command]:
    common = ("--manifest", str(layout.folder / "job.yaml"), "--workdir", str(layout.folder))

    def command(name: str, module: str, *arguments: str) -> Command:
        return Command(name, module, common + arguments, {TOKEN_VARIABLE: layout.token}, layout.folder / "logs" / f"{name}.log")

    conductor = ["--port", str(layout.ports.conductor), "--gateway-url", layout.gateway_url]
    conductor += ["--resume"] * layout.resume + ["--cores-shared"] * layout.cores.shared + ["--unsafe-sandbox"] * layout.unsafe_sandbox
    yield command("conductor", "tidemill_rollout.conductor", *conductor)

    for number, port in enumerate(layout.ports.gateways):
        name = f"gateway-{number}" if number else "gateway"
        gateway = ["--port", str(port), "--conductor-url", layout.conductor_url, "--model", str(layout.model)]
        if number == 0:  # sandboxes have one door; behind it, requests are passed on to the execution's own gateway
            gateway += ["--socket", str(layout.folder / "gateway.sock")]
        if len(layout.ports.gateways) > 1:
            gateway += ["--gateway-url", layout.gateway_url, "--number", str(number)]
        yield command(name, "tidemill_rollout.gateway", *gateway)

    for index, name in enumerate(cell_names(job)):
        yield command(name, "tidemill_cell", *_cell_arguments(name, index, layout, layout.ports.cells[index]))


def _cell_arguments(name: str, index: int, layout: Layout, ports: CellPorts) -> list[str]:
    arguments = ["--cell", name, "--port", str(ports.agent), "--engine-port", str(ports.engine), "--trainer-port", str(ports.trainer)]
    arguments += ["--conductor-url", layout.conductor_url, "--gateway-url", layout.gateway_url, "--model", str(layout.model)]
    arguments += ["--cores", ",".join(str(c) for c in layout.cores.shares[index])]
    if layout.cores.shared:
        arguments += ["--threads", "1"]
    if layout.gpus[index]:
        arguments += ["--gpus", ",".join(str(g) for g in layout.gpus[index])]
    return arguments
