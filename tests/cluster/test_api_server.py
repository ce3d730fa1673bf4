"""The API-server level does what tests rely on: it is a real one, it issues tokens, it tells what was asked of it, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jwt
import pytest
from kubernetes.aio.client import CoreV1Api, V1Namespace

from tests.cluster.access import KubectlFailed
from tests.cluster.api_server import ApiServer
from tests.cluster.calls import audited
from tests.cluster.control_plane import ISSUER
from tests.cluster.sweeping import marked

ROOT = Path(__file__).parents[2]
AUDIENCE = "tidemill.dev"
HOLDER = """
import time
from tests.cluster.api_server import running
with running() as server:
    print(server.control_plane.folder.path, flush=True)
    time.sleep(600)
"""


def test_a_client_of_the_kubernetes_package_reads_what_kubectl_wrote(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("create", "configmap", "seen", "--from-literal=key=value", f"--namespace={namespace}")
    assert api_server.get("configmap", "seen", f"--namespace={namespace}")["data"] == {"key": "value"}


async def test_a_service_account_may_do_nothing_until_a_role_allows_it_and_the_audit_log_shows_both(api_server: ApiServer, namespace: str) -> None:
    account = f"system:serviceaccount:{namespace}:default"
    restricted = api_server.kubeconfig_for("default", namespace)
    with pytest.raises(KubectlFailed, match="forbidden"):
        api_server.control_plane.access.kubectl("get", "pods", kubeconfig=restricted)
    api_server.kubectl("create", "rolebinding", "reads", "--clusterrole=view", f"--serviceaccount={namespace}:default", f"--namespace={namespace}")
    async with api_server.client(restricted) as client:
        assert (await CoreV1Api(client).list_namespaced_pod(namespace)).items == []
    assert [call.status for call in audited(api_server.audit, account) if (call.verb, call.resource) == ("list", "pods")] == [403, 200]


async def test_a_deleted_namespace_takes_what_is_in_it_along(api_server: ApiServer) -> None:
    api_server.make_namespace("short-lived")
    async with api_server.client() as client:
        core = CoreV1Api(client)
        await core.create_namespaced_config_map("short-lived", {"metadata": {"name": "goes"}})
        api_server.kubectl("delete", "namespace", "short-lived", "--timeout=60s")
        names = [V1Namespace.to_dict(item)["metadata"]["name"] for item in (await core.list_namespace()).items]
    assert "short-lived" not in names


def test_a_token_for_our_audience_is_verified_offline_with_the_servers_published_keys(api_server: ApiServer, namespace: str) -> None:
    token = api_server.token_for("default", namespace, AUDIENCE)
    keys = jwt.PyJWKSet.from_json(api_server.kubectl("get", "--raw", "/openid/v1/jwks"))
    key = keys[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(token, key, algorithms=["RS256"], audience=AUDIENCE, issuer=ISSUER)
    assert claims["sub"] == f"system:serviceaccount:{namespace}:default"
    with pytest.raises(jwt.InvalidAudienceError):
        jwt.decode(token, key, algorithms=["RS256"], audience="somebody-else", issuer=ISSUER)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_it_however_the_tests_end(end: signal.Signals) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests that run in a shell's background were told to ignore it
    )
    try:
        assert holder.stdout
        folder = Path(holder.stdout.readline().strip())
        assert folder.parent == Path(tempfile.gettempdir())
        assert len(marked(folder.name)) == 3  # etcd, the API server, the controllers
    finally:
        holder.send_signal(end)
        holder.wait()
    deadline = time.monotonic() + 30
    while folder.exists() or marked(folder.name):
        assert time.monotonic() < deadline, f"{folder} exists: {folder.exists()}; processes {marked(folder.name)}"
        time.sleep(0.05)
