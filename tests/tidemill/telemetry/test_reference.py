"""docs/metrics.md is what the catalogue says."""

from pathlib import Path

import pytest

from tidemill.cli.main import main
from tidemill.telemetry.catalogue import ALL
from tidemill.telemetry.reference import reference


def test_the_committed_reference_is_what_the_catalogue_says() -> None:
    committed = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    assert committed == reference(), "write it anew: .venv/bin/tidemill metrics --markdown > docs/metrics.md"


def test_every_metric_is_in_it_with_its_query() -> None:
    text = reference()
    for metric in ALL:
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{metric.name}`<br>")]
        assert metric.formula.replace("|", "\\|") in row
        assert all(f"`{label}`" in row for label in metric.labels)


def test_words_choose_metrics_and_words_that_choose_none_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "water", "level"]) == 0
    assert capsys.readouterr().out.startswith("tidemill_waterlevel{job}  gauge of the conductor\n")
    assert main(["metrics", "ebb"]) == 2
    assert "ebb" in capsys.readouterr().err
