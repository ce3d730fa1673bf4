from __future__ import annotations

from pathlib import Path

import pytest

from tidemill_operator.config import InvalidConfig, load_config

LEAST = "images: {conductor: a, cell: b, sandbox: c}\noperatorNamespace: tidemill-system\n"


def test_the_least_configuration_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "operator.yaml"
    file.write_text(LEAST)
    config = load_config(file)
    assert (config.lease.duration_seconds, config.lease.renew_seconds, config.lease.retry_seconds) == (15, 10, 2)
    assert config.node_loss_seconds == 60


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("operatorNamespace: x", "images: field required"),
        (LEAST + "nodeLossSeconds: soon", "nodeLossSeconds"),
        (LEAST + "nodeLosSeconds: 5", "nodeLosSeconds"),
        (LEAST + "healthPort: 0", "healthPort"),
        (LEAST + "lease: {durationSeconds: 5}", "lease: retrySeconds 2 < renewSeconds 10 < durationSeconds 5"),
        (LEAST + "networkProfiles: {efa: {capabilites: []}}", "networkProfiles.efa.capabilites"),
        ("- a list", "is a list"),
        ("a: [", "while parsing"),
    ],
)
def test_a_mistake_names_the_field(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "operator.yaml"
    file.write_text(text)
    with pytest.raises(InvalidConfig) as wrong:
        load_config(file)
    assert named in str(wrong.value)
