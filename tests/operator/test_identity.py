from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.wire.trust import NoCredential
from tidemill_operator.identity import credential_of


def test_a_token_that_the_kubelet_renews_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    credential = credential_of({"TIDEMILL_TOKEN_FILE": str(file)})
    assert credential.headers() == {"Authorization": "Bearer one"}
    file.write_text("two")
    assert credential.headers() == {"Authorization": "Bearer two"}
    assert credential.refusal("Bearer one")


def test_without_a_token_it_is_said_what_to_mount() -> None:
    with pytest.raises(NoCredential, match="TIDEMILL_TOKEN_FILE is not set"):
        credential_of({})
