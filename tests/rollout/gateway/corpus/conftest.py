from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.rollout.gateway.corpus.desk import Desk, desk


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def one_desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """All tests here run in its loop."""
    async with desk(tmp_path_factory.mktemp("corpus")) as sitting:
        yield sitting
