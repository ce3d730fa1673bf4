"""docs/rljob.md is what the models say."""

from pathlib import Path

from tidemill.api.reference import reference


def test_the_reference_has_not_drifted() -> None:
    committed = (Path(__file__).parents[3] / "docs" / "rljob.md").read_text()
    assert committed == reference(), "write it anew: .venv/bin/tidemill explain --markdown > docs/rljob.md"
