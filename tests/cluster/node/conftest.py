"""A cluster of two nodes for the whole session; `namespace` and `api_server` mean this cluster's here."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster import programs
from tests.cluster.building import BuildFailed
from tests.cluster.cluster import Cluster, running_cluster
from tests.cluster.machine import obstacle
from tests.cluster.node.installation import install

_KILLS = Path(__file__).parent / "test_kills.py"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A quarter of an hour for those who name it."""
    named = [Path(config.invocation_params.dir, argument.split("::")[0]) for argument in config.args]
    return True if collection_path == _KILLS and _KILLS not in named else None


def pytest_collection_finish(session: pytest.Session) -> None:
    needed = any("cluster" in getattr(item, "fixturenames", ()) for item in session.items)
    if needed and not session.config.option.collectonly:
        with suppress(BuildFailed):
            programs.programs(programs.NODE)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if reason := obstacle():
        pytest.fail(reason)
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def api_server(cluster: Cluster) -> Cluster:
    return cluster


@pytest.fixture(scope="session")
def release(cluster: Cluster) -> None:
    """The product, installed with Helm once."""
    install(cluster)


@pytest.fixture(scope="module")
def installed(cluster: Cluster, release: None) -> Iterator[str]:
    """A namespace for the jobs of one module, served by the installed operators."""
    name = f"lab-{secrets.token_hex(3)}"
    cluster.make_namespace(name)
    yield name
    cluster.delete_namespace(name)
