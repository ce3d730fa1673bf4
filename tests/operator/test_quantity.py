from __future__ import annotations

import pytest

from tidemill_operator.quantity import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64Gi", 64 * 2**30),
        ("32925836Ki", 32925836 * 1024),
        ("500m", 0.5),
        ("8", 8),
        ("1e3", 1000),
        ("12E", 12e18),
        ("129e6", 129e6),
        ("lots", 0),
        ("1Xi", 0),
    ],
)
def test_what_nodes_report_is_read_and_nonsense_counts_as_nothing(text: str, value: float) -> None:
    assert quantity(text) == pytest.approx(value)
