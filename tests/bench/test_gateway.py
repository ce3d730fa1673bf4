"""The benchmark of the gateway runs, and counts every answer."""

import json
import subprocess
import sys


def test_it_measures_the_gateway_beside_a_bare_proxy() -> None:
    ended = subprocess.run([sys.executable, "-m", "bench.gateway", "--small", "--json"], capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr[-3000:]
    result = json.loads(ended.stdout)
    assert [row["kind"] for row in result["rows"]] == ["bare", "ours"]
    for row in result["rows"]:
        assert row["failed"] == 0
        assert row["streams_per_second"] > 1
        assert row["cpu_ms_per_stream"] > 0
    assert result["memory"]["opened"] == result["memory"]["streams"] == 60
    assert result["memory"]["kb_per_stream"] > 0
