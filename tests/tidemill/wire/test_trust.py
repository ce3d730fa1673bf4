import base64
import hmac
import json
import os
import time
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.ports import free_port
from tidemill.wire.http import Client, Rejected, application, reply, serve
from tidemill.wire.trainer import Nothing
from tidemill.wire.trust import ClusterIdentity, NoCredential, SharedSecret, from_environment

ISSUER = "https://kubernetes.default.svc.cluster.local"
CELL, STRANGER = "system:serviceaccount:lab:quickstart-cell", "system:serviceaccount:lab:default"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def public(key: Key, name: str) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        described: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        return described | {"kid": name, "alg": "RS256", "use": "sig"}
    described = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return described | {"kid": name, "alg": "ES256", "use": "sig"}


def signed(key: Key = RSA, name: str = "first", **changes: Any) -> str:
    now = int(time.time())
    usual = {"iss": ISSUER, "aud": ["tidemill.dev"], "sub": CELL, "iat": now, "nbf": now, "exp": now + 3600}
    claims = {k: v for k, v in (usual | changes).items() if v is not None}
    return jwt.encode(claims, key, algorithm="RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256", headers={"kid": name})


def write_trust(file: Path, keys: list[dict[str, Any]]) -> None:
    trust = {"issuer": ISSUER, "audience": "tidemill.dev", "subjects": [CELL], "keys": {"keys": keys}}
    part = file.with_suffix(".part")
    part.write_text(json.dumps(trust))
    part.replace(file)


def base64url(content: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def identity(folder: Path, token: str = "", keys: list[dict[str, Any]] | None = None) -> ClusterIdentity:
    (folder / "token").write_text(token or signed())
    write_trust(folder / "trust.json", [public(RSA, "first"), public(EC, "second")] if keys is None else keys)
    return ClusterIdentity(folder / "token", folder / "trust.json")


def test_a_token_of_the_cluster_for_this_job_is_believed_with_either_kind_of_key(tmp_path: Path) -> None:
    here = identity(tmp_path)
    assert here.refusal(f"Bearer {signed()}") == ""
    assert here.refusal(f"Bearer {signed(EC, 'second')}") == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": -120}, "has expired"),
        ({"nbf": 120}, "not valid yet"),
        ({"aud": ["https://kubernetes.default.svc"]}, "another audience"),
        ({"iss": "https://elsewhere"}, "another cluster"),
        ({"sub": STRANGER}, "nobody who takes part"),
        ({"exp": None}, "is not valid"),
        ({"sub": None}, "is not valid"),
    ],
)
def test_a_token_that_is_wrong_in_one_claim_is_refused_with_the_reason(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    now = time.time()  # the changes of times are seconds from now
    token = signed(**{name: now + value if isinstance(value, int) else value for name, value in changes.items()})
    refusal = identity(tmp_path).refusal(f"Bearer {token}")
    assert reason in refusal
    assert STRANGER not in refusal
    assert token not in refusal


def test_clocks_of_two_nodes_may_differ_by_a_minute(tmp_path: Path) -> None:
    here = identity(tmp_path)
    assert here.refusal(f"Bearer {signed(exp=time.time() - 50)}") == ""
    assert here.refusal(f"Bearer {signed(nbf=time.time() + 50, iat=time.time() + 50)}") == ""


def test_a_token_signed_by_somebody_else_under_a_known_key_id_is_refused(tmp_path: Path) -> None:
    forger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert "not valid" in identity(tmp_path).refusal(f"Bearer {signed(forger)}")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic dXNlcg==", "Bearer nonsense", "Bearer a.b.c", f"Bearer {signed()[:-9]}"])
def test_what_is_no_token_at_all_is_refused(tmp_path: Path, header: str) -> None:
    assert identity(tmp_path).refusal(header)


def test_a_token_without_signature_or_signed_with_the_public_key_as_a_secret_is_refused(tmp_path: Path) -> None:
    here = identity(tmp_path)
    claims = jwt.decode(signed(), options={"verify_signature": False})
    unsigned = jwt.encode(claims, None, algorithm="none", headers={"kid": "first"})
    assert here.refusal(f"Bearer {unsigned}")
    public_key = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    body = f"{base64url({'alg': 'HS256', 'kid': 'first'})}.{base64url(claims)}"  # by hand: the library itself does not sign like this
    signature = base64.urlsafe_b64encode(hmac.digest(public_key, body.encode(), "sha256")).decode().rstrip("=")
    assert here.refusal(f"Bearer {body}.{signature}")


def test_a_new_key_of_the_cluster_is_taken_from_the_file_when_the_first_token_signed_with_it_comes(tmp_path: Path) -> None:
    here = identity(tmp_path, keys=[public(RSA, "first")])
    token = signed(EC, "second")
    assert "key that this cluster does not have" in here.refusal(f"Bearer {token}")
    before = (tmp_path / "trust.json").stat()
    write_trust(tmp_path / "trust.json", [public(RSA, "first"), public(EC, "second")])
    os.utime(tmp_path / "trust.json", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert here.refusal(f"Bearer {token}") == ""


def test_what_the_operator_takes_back_is_no_longer_believed(tmp_path: Path) -> None:
    here = identity(tmp_path)
    write_trust(tmp_path / "trust.json", [public(EC, "second")])
    assert here.refusal(f"Bearer {signed()}")


def test_a_renewed_token_is_sent_as_soon_as_the_kubelet_turns_its_link(tmp_path: Path) -> None:
    for folder, token in (("..one", "old"), ("..two", "new")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "token").write_text(token)
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "token").symlink_to("..data/token")
    write_trust(tmp_path / "trust.json", [public(RSA, "first")])
    here = ClusterIdentity(tmp_path / "token", tmp_path / "trust.json")
    assert here.headers() == {"Authorization": "Bearer old"}
    (tmp_path / "..next").symlink_to("..two")
    (tmp_path / "..next").replace(tmp_path / "..data")
    assert here.headers() == {"Authorization": "Bearer new"}


def test_a_file_that_is_broken_for_a_while_changes_nothing(tmp_path: Path) -> None:
    here = identity(tmp_path)
    (tmp_path / "trust.json").write_text("{")
    (tmp_path / "token").unlink()
    assert here.refusal(f"Bearer {signed()}") == ""
    assert here.headers()["Authorization"].startswith("Bearer ey")


def test_the_environment_says_which_of_the_two_it_is(tmp_path: Path) -> None:
    identity(tmp_path)
    on_cluster = {"TIDEMILL_TOKEN_FILE": str(tmp_path / "token"), "TIDEMILL_TRUST": str(tmp_path / "trust.json")}
    assert isinstance(from_environment({"TIDEMILL_TOKEN": "secret"}), SharedSecret)
    assert isinstance(from_environment(on_cluster), ClusterIdentity)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "TIDEMILL_TOKEN is not set; set TIDEMILL_TOKEN to"),
        ({"TIDEMILL_TOKEN_FILE": "/nowhere/token"}, "TIDEMILL_TRUST is not set"),
        ({"TIDEMILL_TOKEN_FILE": "/nowhere/token", "TIDEMILL_TRUST": "/nowhere/trust.json"}, "TIDEMILL_TOKEN_FILE: /nowhere/token cannot be used"),
        ({"TIDEMILL_TOKEN": "secret", "TIDEMILL_TOKEN_FILE": "/nowhere/token"}, "are both set; unset TIDEMILL_TOKEN"),
    ],
)
def test_an_environment_that_does_not_say_who_a_process_is_names_variable_and_remedy(environment: dict[str, str], said: str) -> None:
    with pytest.raises(NoCredential, match=said):
        from_environment(environment)


@pytest.mark.parametrize("content", ["", "{}", '{"issuer": "i", "audience": "a", "subjects": [], "keys": {"keys": []}}', "not json"])
def test_a_trust_file_that_makes_no_sense_is_an_error_at_the_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text("token")
    (tmp_path / "trust.json").write_text(content)
    with pytest.raises(NoCredential, match=r"TIDEMILL_TRUST: .*cannot be used"):
        ClusterIdentity(tmp_path / "token", tmp_path / "trust.json")


async def test_two_processes_with_tokens_of_one_cluster_talk_and_a_stranger_learns_why_not(tmp_path: Path) -> None:
    server = application(identity(tmp_path))

    async def answer(_: web.Request) -> web.Response:
        return reply(Nothing())

    server.router.add_get("/v1/thing", answer)
    port = free_port()
    runner = await serve(server, "127.0.0.1", port)
    try:
        async with aiohttp.ClientSession() as session:
            friend = Client(f"http://127.0.0.1:{port}", ClusterIdentity(tmp_path / "token", tmp_path / "trust.json"), session)
            assert await friend.call("GET", "/v1/thing", Nothing) == Nothing()
            for caller, reason in ((signed(sub=STRANGER), "nobody who takes part in this job"), ("guessed", "key that this cluster does not have")):
                with pytest.raises(Rejected, match=reason) as refused:
                    await Client(f"http://127.0.0.1:{port}", caller, session).call("GET", "/v1/thing", Nothing)
                assert refused.value.status == 401
    finally:
        await runner.cleanup()


def test_a_header_of_any_bytes_is_refused_and_no_failure(tmp_path: Path) -> None:
    assert SharedSecret("the-job").refusal("Bearer \udcff")
    assert SharedSecret("the-job").refusal("Bearer sch\u00f6n")
    here = identity(tmp_path)
    assert here.refusal("Bearer \udcff.x.y") == "missing bearer token"
    deep = base64.urlsafe_b64encode(b'{"kid":' * 20_000).decode().rstrip("=")
    assert "does not have" in here.refusal(f"Bearer {deep}.e30.eA")
