"""Tokens that a real API server signs, as the kubelet projects them into pods: checked without asking it."""

import json
from pathlib import Path

import jwt
import pytest

from tests.cluster.api_server import ApiServer
from tidemill.wire.trust import ClusterIdentity


def identity(api_server: ApiServer, namespace: str, folder: Path) -> ClusterIdentity:
    """That of a cell of job `q`, with the trust that an operator writes."""
    for name in ("q-cell", "q-conductor", "stranger"):
        api_server.kubectl("create", "serviceaccount", name, f"--namespace={namespace}")
    trust = {
        "issuer": json.loads(api_server.kubectl("get", "--raw", "/.well-known/openid-configuration"))["issuer"],
        "audience": "tidemill.dev",
        "subjects": [f"system:serviceaccount:{namespace}:q-cell", f"system:serviceaccount:{namespace}:q-conductor"],
        "keys": json.loads(api_server.kubectl("get", "--raw", "/openid/v1/jwks")),
    }
    (folder / "trust.json").write_text(json.dumps(trust))
    (folder / "token").write_text(api_server.token_for("q-cell", namespace, "tidemill.dev"))
    return ClusterIdentity(folder / "token", folder / "trust.json")


def test_tokens_for_this_job_are_believed_and_all_others_of_the_same_cluster_are_not(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    here = identity(api_server, namespace, tmp_path)
    assert here.refusal(here.headers()["Authorization"]) == ""
    assert here.refusal(f"Bearer {api_server.token_for('q-conductor', namespace, 'tidemill.dev')}") == ""
    assert "another audience" in here.refusal(f"Bearer {api_server.token_for('q-conductor', namespace)}")
    assert "nobody who takes part" in here.refusal(f"Bearer {api_server.token_for('stranger', namespace, 'tidemill.dev')}")


@pytest.mark.parametrize("part", [1, 2])
def test_a_token_of_which_one_character_was_changed_is_not_believed(api_server: ApiServer, namespace: str, tmp_path: Path, part: int) -> None:
    here = identity(api_server, namespace, tmp_path)
    token = here.headers()["Authorization"].removeprefix("Bearer ")
    assert jwt.decode(token, options={"verify_signature": False})["sub"].endswith(":q-cell")
    parts = token.split(".")
    middle = len(parts[part]) // 2
    parts[part] = parts[part][:middle] + ("A" if parts[part][middle] != "A" else "B") + parts[part][middle + 1 :]
    assert here.refusal(f"Bearer {'.'.join(parts)}")
