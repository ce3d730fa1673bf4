from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.tiny_job import Finished, tiny_job


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    with tiny_job(tmp_path_factory.mktemp("job")) as job:
        yield job
