"""What is asked of Prometheus, as strings: the selectors that every panel of a board shares."""

from __future__ import annotations

FLEET = 'cluster=~"$cluster", namespace=~"$namespace"'
JOB = f'{FLEET}, job=~"$job"'
CELL = f'{JOB}, cell=~"$cell"'
OPERATOR = FLEET

RANGE = "$__rate_interval"
"""What Grafana fills in: at least four scrapes, so that a rate has two samples."""


def rate(metric: str, where: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{where}}}[{RANGE}]))"


def mean(histogram: str, where: str, by: str, window: str = "1h") -> str:
    """Mean of what a histogram counted in `window`."""
    return " / ".join(f"sum by ({by}) (increase({histogram}_{part}{{{where}}}[{window}]))" for part in ("sum", "count"))


def average(counted: str, total: str, where: str, window: str = "6h") -> str:
    """Mean of something whose sum and number are counters: `counted` events took `total` together."""
    return f"sum(increase({total}{{{where}}}[{window}])) / sum(increase({counted}{{{where}}}[{window}]))"


def quantile(share: float, histogram: str, where: str, by: str = "", window: str = RANGE) -> str:
    return f"histogram_quantile({share:g}, sum by ({f'{by}, ' if by else ''}le) (rate({histogram}_bucket{{{where}}}[{window}])))"


def role_of_cells(where: str, by: str = "cell") -> str:
    """A number for what each cell does; `ROLES` says which."""
    parts = (f'{number} * (tidemill_cell_role{{{where}, role="{role}"}} == 1)' for number, role in enumerate(ROLE_NAMES, start=1))
    return f"max by ({by}) ({' or '.join(parts)})"


ROLE_NAMES = ("Rollout", "Training", "Flipping", "Starting", "Failed")
