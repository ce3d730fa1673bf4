from pathlib import Path

import msgspec
import pytest

from tidemill.trajectory.files import UnknownFormat, read_trajectory, write_trajectory
from tidemill.trajectory.records import FORMAT_VERSION, Piece, Trajectory, Turn

TURN = Turn("t1", "g1-0", 2, "", "", (1, 2), (Piece("cell-0", (3,), (-0.5,), (1,)),), "stop", 0.0, 1.0, "messages")


def trajectory(score: float | None = 1.0) -> Trajectory:
    return Trajectory(FORMAT_VERSION, "g1-0", 1, "sum", 2, 0, score, (TURN,))


def test_what_is_written_is_read_back_and_a_second_writing_replaces_it(tmp_path: Path) -> None:
    write_trajectory(tmp_path, trajectory(None))
    path = write_trajectory(tmp_path, trajectory())
    assert read_trajectory(path) == trajectory()
    assert [p.name for p in tmp_path.iterdir()] == ["g1-0.msgpack"]


def test_a_file_of_a_later_format_is_refused_by_name(tmp_path: Path) -> None:
    path = write_trajectory(tmp_path, msgspec.structs.replace(trajectory(), format=FORMAT_VERSION + 1))
    with pytest.raises(UnknownFormat, match=r"g1-0\.msgpack: format 2"):
        read_trajectory(path)
