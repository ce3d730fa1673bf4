"""What the processes of a local job are told."""

from pathlib import Path

from tests.tidemill.api.test_loading import document
from tidemill.api import parse_rljob
from tidemill.local.commands import Layout, commands
from tidemill.local.cores import CoreShares
from tidemill.local.ports import CellPorts, Ports


def layout(gateways: int, cells: int) -> Layout:
    ports = Ports(1, tuple(range(10, 10 + gateways)), tuple(CellPorts(100 + n, 200 + n, 300 + n) for n in range(cells)))
    return Layout(Path("/w"), Path("/m"), ports, CoreShares(((0,),) * cells, shared=False), ((),) * cells, "token")


def test_every_process_knows_all_gateways_and_each_gateway_its_number() -> None:
    job = parse_rljob(document(gateway__replicas=3))
    told = {command.name: " ".join(command.arguments) for command in commands(job, layout(3, job.spec.cells.count))}
    every = "--gateway-url http://127.0.0.1:10,http://127.0.0.1:11,http://127.0.0.1:12"
    for name, number, port in [("gateway", 0, 10), ("gateway-1", 1, 11), ("gateway-2", 2, 12)]:
        assert f"--port {port} " in told[name]
        assert f"{every} --number {number}" in told[name]
    assert [name for name in told if "--socket" in told[name]] == ["gateway"]
    assert every in told["conductor"]
    assert every in told["cell-0"]


def test_a_gateway_alone_is_told_of_no_others() -> None:
    job = parse_rljob(document())
    told = {command.name: command.arguments for command in commands(job, layout(1, job.spec.cells.count))}
    assert "--gateway-url" not in told["gateway"]
    assert "gateway-1" not in told
