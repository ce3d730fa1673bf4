"""Has Helm before the first test starts, and its time runs: building it takes a minute."""

from __future__ import annotations

import pytest

from tests.cluster.programs import programs


def pytest_collection_finish(session: pytest.Session) -> None:
    if any("tests/helm/" in item.nodeid for item in session.items) and not session.config.option.collectonly:
        programs(("helm",))
