"""A job that does not fit is refused before it starts, with the figures."""

from pathlib import Path

import pytest

from tidemill.local.memory import GIB, Footprint, NotEnoughMemory, available_memory, check_memory

SMOLLM2 = Footprint(weight_bytes=538 * 10**6, parameters=134_515_008, cells=3, standalone=0, kv_bytes=GIB // 2)


def test_too_little_memory_is_refused_with_the_figures() -> None:
    with pytest.raises(NotEnoughMemory, match=r"needs about [0-9.]+ GiB \(3 engines .* but 4\.0 GiB are available; lower spec\.cells\.count"):
        check_memory(SMOLLM2, 4 * GIB)


def test_enough_memory_is_accepted() -> None:
    check_memory(SMOLLM2, SMOLLM2.total_bytes)


def test_more_cells_need_more() -> None:
    two = Footprint(SMOLLM2.weight_bytes, SMOLLM2.parameters, 2, 0, SMOLLM2.kv_bytes)
    assert SMOLLM2.total_bytes - two.total_bytes == SMOLLM2.engine_bytes + SMOLLM2.satellite_bytes


def test_a_cgroup_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 4194304 kB\n")
    assert available_memory(tmp_path, tmp_path) == 4 * GIB
    (tmp_path / "memory.max").write_text(f"{3 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    assert available_memory(tmp_path, tmp_path) == 2 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path, tmp_path) == 4 * GIB
