"""Counters of the node's RDMA ports that this cell may use, from sysfs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CLASS = Path("/sys/class/infiniband")
DEVICES = Path("/dev/infiniband")
WORD_BYTES = 4  # port_*_data count words of four lanes

ERRORS = {
    "symbol_error": "symbol",
    "link_error_recovery": "link_recovery",
    "link_downed": "link_down",
    "port_rcv_errors": "receive",
    "port_xmit_discards": "discarded",
    "local_link_integrity_errors": "link_integrity",
    "excessive_buffer_overrun_errors": "buffer_overrun",
}


@dataclass(frozen=True, slots=True)
class Port:
    """One port, since it came up. Whoever else uses the port is counted, too."""

    device: str  # "mlx5_0"
    port: str  # "1"
    active: bool | None
    sent_bytes: int | None
    received_bytes: int | None
    errors: tuple[tuple[str, int], ...]


def ports(root: Path = CLASS, devices: Path = DEVICES) -> tuple[Port, ...]:
    """Those whose device file is here: sysfs shows a pod every port of its node, the device plugin gives it some. Empty where there is no RDMA."""
    return tuple(_ports(root, devices))


def _ports(root: Path, devices: Path) -> Iterator[Port]:
    for device in sorted(root.glob("*")):
        verbs = [entry.name for entry in (device / "device" / "infiniband_verbs").glob("uverbs*")]
        if not any((devices / name).exists() for name in verbs):
            continue
        for port in sorted((device / "ports").glob("*")):
            counters = port / "counters"
            sent, received = _number(counters / "port_xmit_data"), _number(counters / "port_rcv_data")
            state = _text(port / "state")  # "4: ACTIVE"
            errors = [(kind, _number(counters / file)) for file, kind in ERRORS.items()]
            yield Port(
                device.name,
                port.name,
                None if state is None else state.startswith("4:"),
                None if sent is None else sent * WORD_BYTES,
                None if received is None else received * WORD_BYTES,
                tuple((kind, count) for kind, count in errors if count is not None),
            )


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text is not None and text.isdecimal() else None


def _text(file: Path) -> str | None:
    """None where a card does not count this, or is being reset."""
    try:
        return file.read_text().strip()
    except OSError:
        return None
