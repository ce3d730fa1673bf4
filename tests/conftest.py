"""What every test runs under: no model hub, no display, property tests that time cannot fail, and whom it shares the machine with."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm otherwise asks the network for a price list at import
os.environ["MPLBACKEND"] = "Agg"

settings.register_profile("tidemill", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tidemill")

TESTS = Path(__file__).parent
ENGINES = ("end_to_end", "rollout/engine", "trainer")
"""They run engines and trainers, which want the cores and the memory for themselves: one after the other."""

SUITES = (TESTS / "cluster" / "node", TESTS / "faults", TESTS / "harnesses")
"""Whole jobs that take many minutes, the machine for themselves, or root: they run when somebody names their folder, as `make test-faults` does."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = [Path(config.invocation_params.dir, argument.split("::")[0]) for argument in config.args]
    return True if any(collection_path == suite and not any(path.is_relative_to(suite) for path in named) for suite in SUITES) else None


GROUPS = ("engines", "operators", "cluster")
"""They wait a lot, and are started first: what only computes fills the cores beside them, and is shared out evenly at the end."""


def group(nodeid: str) -> str:
    path = nodeid.partition("::")[0].removeprefix("tests/")
    if path.startswith(ENGINES):
        return "engines"
    if path.startswith("cluster/"):
        return "operators" if path.startswith("cluster/test_operator_") else "cluster"
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: number for number, name in enumerate(GROUPS)}
    items.sort(key=lambda item: rank.get(group(item.nodeid), len(GROUPS)))


class Groups(LoadScopeScheduling):
    """Where several processes share the tests, each group is run by one of them: what waits for an API server runs beside what computes.

    (xdist's own groups, by marks, need node ids of a pytest before 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    config.option.loadscopereorder = False  # by our order, not by the number of tests
    return Groups(config, log)
