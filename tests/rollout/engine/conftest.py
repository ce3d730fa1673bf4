"""One engine for all tests here, its two clients, and the weights it serves."""

from collections.abc import AsyncIterator
from itertools import count

import aiohttp
import pytest

from tests.engines import Publisher, RunningEngine, shared_engine
from tidemill.wire.engine import EngineClient
from tidemill.wire.engine_control import EngineControl

_versions = count()


@pytest.fixture(scope="session")
def engine() -> RunningEngine:
    return shared_engine()


@pytest.fixture(scope="session")
def publisher(engine: RunningEngine) -> Publisher:
    return Publisher(engine.model)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
def control(engine: RunningEngine, session: aiohttp.ClientSession) -> EngineControl:
    return EngineControl(engine.url, engine.token, session)


@pytest.fixture
async def version(control: EngineControl, publisher: Publisher) -> int:
    """A new version of the publisher's weights, loaded."""
    number = next(_versions)
    await control.update_weights(publisher.snapshot(number))
    return number


@pytest.fixture
def client(engine: RunningEngine, session: aiohttp.ClientSession, version: int) -> EngineClient:
    """Of an engine that serves."""
    return EngineClient(engine.url, engine.token, session)
