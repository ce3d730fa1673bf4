"""The examples and the chart's networks, as the pods that the operator makes of them, on a real API server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cluster.api_server import ApiServer
from tests.helm.chart import ROOT, Manifest, context_of, text_of
from tidemill.api import load_rljob
from tidemill.api.rljob import RLJob
from tidemill_operator import access, cells, conductor, gateway, memory, names, network, storage
from tidemill_operator.conditions import Is
from tidemill_operator.observed import Node
from tidemill_operator.plan import samples
from tidemill_operator.pods import Context

EXAMPLES = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
OWNER = names.owner("GPUCell", "cell", "00000000-0000-0000-0000-000000000000")


def cell_pods(context: Context) -> list[Manifest]:
    """Of every cell the first node and the last."""
    return [
        cells.pod(context, cell, rank, OWNER, "10.96.0.22" if cell.nodes > 1 else "")
        for cell in cells.wanted(context)
        for rank in sorted({0, cell.nodes - 1})
    ]


def make_accounts(api_server: ApiServer, namespace: str, context: Context) -> None:
    """Which pods need to be admitted. Without their owner, which is not there: the garbage collector would take them away again."""
    accounts = [{**account, "metadata": {"name": account["metadata"]["name"]}} for account in access.accounts(context)]
    api_server.kubectl("apply", f"--namespace={namespace}", "-f", "-", input=text_of(accounts))


def accepted(api_server: ApiServer, namespace: str, manifests: list[Manifest]) -> int:
    """How many of them the API server takes; it says what is wrong with the first that it does not."""
    apply = ("apply", "--server-side", "--dry-run=server", "--validate=strict", f"--namespace={namespace}", "-f", "-")
    return len(api_server.kubectl(*apply, input=text_of(manifests)).splitlines())


def test_there_are_examples_from_the_first_job_to_the_largest() -> None:
    nodes = {f.stem: job.spec.cells.count * job.spec.cells.nodes_per_cell for f in EXAMPLES for job in [load_rljob(f)]}
    assert nodes == {"quickstart": 3, "small-gpu": 4, "122b": 32, "2.4t": 192}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_the_api_server_accepts_an_example_and_every_object_the_operator_makes_of_it(api_server: ApiServer, namespace: str, file: Path) -> None:
    context = context_of(load_rljob(file), namespace)
    make_accounts(api_server, namespace, context)
    assert accepted(api_server, namespace, [yaml.safe_load(file.read_text())]) == 1
    manifests = [
        storage.config_map(context, "{}", "{}"),
        storage.checkpoints(context),
        access.role(context),
        access.role_binding(context),
        conductor.service(context),
        conductor.stateful_set(context, 1),
        gateway.service(context, 0),
        gateway.stateful_set(context, 1),
        *network.policies(context),
        *network.budgets(context),
        *(cells.gpucell(context, cell) for cell in cells.wanted(context)),
        *cell_pods(context),
        *samples(context),
    ]
    assert accepted(api_server, namespace, manifests) == len(manifests)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_the_memory_an_example_asks_for_holds_its_core(file: Path) -> None:
    job = load_rljob(file)
    node = Node("n", ready=True, since=0, memory_bytes=2**41, gpus=job.spec.cells.gpus_per_node)
    assert memory.host_memory_fits(job, [node]).status is Is.TRUE


@pytest.mark.parametrize("profile", ["none", "shared-device-plugin", "sriov-multus", "dra", "compute-domain", "efa"])
def test_the_api_server_accepts_a_cells_pod_on_every_network_of_the_chart(api_server: ApiServer, namespace: str, profile: str) -> None:
    document = yaml.safe_load((ROOT / "examples/kubernetes/small-gpu.yaml").read_text())
    document["spec"]["cells"]["network"] = {"profile": profile}
    context = context_of(RLJob.model_validate(document), namespace)
    wanted = context.config.network_profiles[profile]
    make_accounts(api_server, namespace, context)
    pod = cell_pods(context)[0]
    assert accepted(api_server, namespace, [pod]) == 1
    container = pod["spec"]["containers"][0]
    assert wanted.resources.items() <= container["resources"]["limits"].items()
    assert {c["name"] for c in wanted.claims} == {c["name"] for c in container["resources"].get("claims", [])}
    assert set(wanted.env) <= {e["name"] for e in container["env"]}
