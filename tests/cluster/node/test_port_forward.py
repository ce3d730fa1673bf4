"""`tidemill timeline` through a real kubelet: to a conductor's port, past policies that let nobody in."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import create, python_pod, wait_ready
from tests.tidemill.cluster import documents
from tests.tidemill.report.test_reading import EVENTS
from tidemill.cli.main import main

# Answers as a conductor does: the events in two parts, to those who have a token of its account.
CONDUCTOR = """
import base64, http.server, json, urllib.parse
LINES = {lines!r}
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        after = int(urllib.parse.parse_qs(url.query)["after"][0])
        claims = self.headers["Authorization"].removeprefix("Bearer ").split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(claims + "=="))
        known = (claims["sub"], claims["aud"], url.path) == ({subject!r}, ["tidemill.dev"], "/v1/events")
        body = LINES[after:after + len(LINES) // 2 + 1] if known else b"stranger"
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("", 7000), Answer).serve_forever()
"""


def test_the_report_comes_from_a_conductor_that_no_pod_and_no_person_reaches_otherwise(
    cluster: Cluster, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in EVENTS)
    code = CONDUCTOR.format(lines=lines, subject=f"system:serviceaccount:{namespace}:sail-conductor")
    deny = {"podSelector": {}, "policyTypes": ["Ingress"]}
    create(
        cluster,
        namespace,
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny"}, "spec": deny},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sail-conductor"}},
        python_pod("sail-conductor-0", code),
        documents.MANIFEST,
    )
    status = json.dumps({"status": {"phase": "Running"}})
    cluster.kubectl("patch", "rljob", "sail", "-n", namespace, "--subresource=status", "--type=merge", "--patch", status)
    wait_ready(cluster, namespace, "sail-conductor-0")
    words = ["timeline", "sail", "-n", namespace, "--kubeconfig", str(cluster.kubeconfig), "--out", str(tmp_path)]
    assert main(words) == 0, capsys.readouterr().err
    assert f"{len(EVENTS)} events from conductor sail-conductor-0" in capsys.readouterr().err
    assert (tmp_path / "report.html").exists()
