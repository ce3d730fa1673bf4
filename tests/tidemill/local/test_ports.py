"""Ports are free ones, or those that were asked for."""

import socket
from pathlib import Path

import pytest

from tidemill.local.ports import PortTaken, choose_ports


def test_all_ports_differ_and_none_is_one_that_an_outgoing_connection_may_take() -> None:
    ports = choose_ports(3)
    numbers = [ports.conductor, *ports.gateways, *(p for c in ports.cells for p in (c.agent, c.engine, c.trainer))]
    assert len(set(numbers)) == 11
    assert max(numbers) < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def test_a_taken_port_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        base = held.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {base} is taken .* give another --ports"):
            choose_ports(1, base)


@pytest.mark.parametrize("base", [0, -1, 65_532, 65_535, 10**9])
def test_ports_that_do_not_exist_are_refused(base: int) -> None:
    with pytest.raises(PortTaken, match=f"--ports {base}: the job needs 5 ports from there; give a number from 1 to 65531"):
        choose_ports(1, base)
