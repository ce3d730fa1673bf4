from __future__ import annotations

from pathlib import Path

from tidemill_cell.rdma import Port, ports


def card(root: Path, name: str, verbs: str, counters: dict[str, str], state: str = "4: ACTIVE") -> None:
    (root / name / "device" / "infiniband_verbs" / verbs).mkdir(parents=True)
    port = root / name / "ports" / "1"
    (port / "counters").mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    for file, text in counters.items():
        (port / "counters" / file).write_text(f"{text}\n")


def test_ports_whose_device_file_the_pod_has_are_told_in_bytes_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "uverbs0").touch()
    card(tmp_path / "sys", "mlx5_0", "uverbs0", {"port_xmit_data": "25", "port_rcv_data": "10", "symbol_error": "3", "port_rcv_errors": "0"})
    card(tmp_path / "sys", "mlx5_1", "uverbs1", {"port_xmit_data": "1", "port_rcv_data": "1"})
    assert ports(tmp_path / "sys", tmp_path / "dev") == (Port("mlx5_0", "1", True, 100, 40, (("symbol", 3), ("receive", 0))),)


def test_a_port_that_is_down_and_counts_nothing_tells_that_it_is_down(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "uverbs0").touch()
    card(tmp_path / "sys", "mlx5_0", "uverbs0", {"port_xmit_data": "N/A (no PMA)"}, state="1: DOWN")
    assert ports(tmp_path / "sys", tmp_path / "dev") == (Port("mlx5_0", "1", False, None, None, ()),)


def test_where_there_is_no_rdma_there_is_no_port(tmp_path: Path) -> None:
    assert ports(tmp_path / "sys", tmp_path / "dev") == ()
