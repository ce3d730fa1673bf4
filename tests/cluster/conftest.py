"""A real API server for the whole test session, a fresh namespace for each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.cluster import programs
from tests.cluster.api_server import ApiServer, running
from tests.cluster.building import BuildFailed
from tests.cluster.proxy import FaultProxy


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the programs before the first test starts, and its time runs: building them takes minutes."""
    needed = any("api_server" in getattr(item, "fixturenames", ()) for item in session.items)
    if needed and not session.config.option.collectonly:
        with suppress(BuildFailed):  # those tests will say so; the others run
            programs.programs(programs.API)


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    with running() as server:
        yield server


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    """Its default service account is there already. It is deleted after the test, in the background."""
    name = f"test-{secrets.token_hex(4)}"
    api_server.make_namespace(name)
    yield name
    api_server.delete_namespace(name)


@pytest.fixture
def proxy(api_server: ApiServer) -> Iterator[FaultProxy]:
    """Between a client and the API server; no trouble until a test asks for some."""
    with FaultProxy(api_server).running() as proxy:
        yield proxy
