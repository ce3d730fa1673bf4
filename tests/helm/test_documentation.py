from __future__ import annotations

import re

import pytest

from tests.helm.chart import CHART, ROOT
from tidemill.api.status import JobPhase, Limit
from tidemill.cli.main import main
from tidemill_operator.problems import REMEDIES

TEXT = (ROOT / "docs" / "kubernetes.md").read_text()
SOURCES = "\n".join(file.read_text() for file in sorted((ROOT / "operator" / "tidemill_operator").glob("*.py")))
WORKING = {"Valid", "Fits", "Placed", "AsExpected", "Answers", "Running", "Ready", "NotSuspended"}
"""Reasons of conditions that say that all is well."""
PASSING = {"NoNodes", "ModelSizeUnknown", "NotRunning", "PodsEnding", "Stopping", "Pending", "NotReady", "JobFailed"}
"""Reasons that need no deed of anybody: their message says it all."""


def test_every_reason_of_a_pods_trouble_is_documented_with_the_remedy_that_the_condition_gives() -> None:
    assert not [reason for reason, remedy in REMEDIES.items() if f"| `{reason}` | {remedy} |" not in TEXT]


def test_every_condition_is_documented_and_every_reason_that_asks_for_something() -> None:
    written = re.findall(r'Condition\(\s*"(\w+)",\s*Is\.\w+(?: if [^,]+)?,\s*"(\w+)"', SOURCES)
    assert len(written) > 15
    assert not {kind for kind, _ in written if f"`{kind}`" not in TEXT}
    assert not {reason for _, reason in written if f"`{reason}`" not in TEXT} - WORKING - PASSING


def test_every_event_is_documented() -> None:
    reasons = re.findall(r'(?:_warning\(\s*observed,|_event\(\s*job,\s*EventKind\.\w+,)\s*"(\w+)"', SOURCES)
    assert reasons
    assert not [reason for reason in reasons if f"`{reason}`" not in TEXT]


def test_every_phase_and_every_limit_is_explained() -> None:
    assert not [phase for phase in JobPhase if phase.value not in TEXT]
    assert not [limit for limit in Limit if limit.value not in TEXT]


def test_every_file_and_value_that_is_named_is_there() -> None:
    files = re.findall(r"`((?:examples|helm|images)/[\w./-]+)`", TEXT)
    assert files
    assert not [file for file in files if not (ROOT / file).exists()]
    values = (CHART / "values.yaml").read_text()
    section = TEXT.split("## Values")[1].split("## RDMA")[0]
    named = {name.split(".")[0] for row in re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE) for name in re.findall(r"`([\w.*]+)`", row)}
    assert not [name for name in named if not re.search(rf"^{name}:", values, flags=re.MULTILINE)]


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"(?:^|`)tidemill ([a-z]+)", TEXT, flags=re.MULTILINE))
    assert named >= {"status", "suspend", "drain"}
    for command in named:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0, command
