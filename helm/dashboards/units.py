"""Numbers with their unit, short enough for an axis. The units are Grafana's words."""

from __future__ import annotations

_SECONDS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))
_MANY = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_SUFFIX = {"watt": " W", "celsius": " °C", "reqps": "/s"}


def shown(value: float, unit: str) -> str:
    """`shown(0.125, "percentunit")` is `12.5%`."""
    match unit:
        case "percentunit":
            return f"{100 * value:.3g}%"
        case "s":
            return _scaled(value, _SECONDS, " s", 120.0)
        case "bytes":
            return _scaled(value, _BYTES, " B")
        case "Bps":
            return _scaled(value, _BYTES, " B") + "/s"
    return _scaled(value, _MANY, "", space="") + _SUFFIX.get(unit, "")


def _scaled(value: float, steps: tuple[tuple[float, str], ...], small: str, least: float | None = None, space: str = " ") -> str:
    for size, name in steps:
        if abs(value) >= (size if least is None else max(size, least)):
            return f"{value / size:.3g}{space}{name}"
    return f"{value:.3g}{small}"
