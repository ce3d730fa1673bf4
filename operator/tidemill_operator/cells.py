"""The cells' objects: a GPUCell each, and one pod for every node of a cell."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.api.model import API_VERSION
from tidemill.wire.cell import CellKind
from tidemill_operator import names, pods
from tidemill_operator.config import NetworkProfileConfig
from tidemill_operator.names import Manifest
from tidemill_operator.pods import Context
from tidemill_operator.template import merged

COMPONENT = "cell"
GPU = "nvidia.com/gpu"
QUEUE = "kueue.x-k8s.io/queue-name"
GROUP, GROUP_SIZE = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A cell the job asks for."""

    name: str
    ordinal: int
    kind: CellKind
    nodes: int


def wanted(context: Context) -> tuple[Wanted, ...]:
    cells = context.job.spec.cells
    core_and_satellites = (Wanted(f"cell-{n}", n, CellKind.CORE if n == 0 else CellKind.SATELLITE, cells.nodes_per_cell) for n in range(cells.count))
    standalone = (Wanted(f"standalone-{n}", n, CellKind.STANDALONE, cells.standalone.nodes_per_replica) for n in range(cells.standalone.replicas))
    return (*core_and_satellites, *standalone)


def gpucell(context: Context, cell: Wanted) -> Manifest:
    """Without role and epoch: those are written by whoever mirrors grants, those without a grant have the CRD's defaults."""
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUCell",
        "metadata": context.meta(names.gpucell(context.name, cell.name), COMPONENT, cell=cell.name),
        "spec": {"job": context.name, "ordinal": cell.ordinal, "kind": cell.kind.value},
    }


def leader_service(context: Context, cell: Wanted) -> Manifest:
    """Where the other nodes of a cell find rank 0. A cell of one node needs none."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": context.meta(names.gpucell(context.name, cell.name), COMPONENT, cell=cell.name),
        "spec": {
            "selector": {names.JOB: context.name, names.CELL: cell.name, names.RANK: "0"},
            "ports": [{"name": "agent", "port": names.AGENT_PORT, "protocol": "TCP"}],
            "publishNotReadyAddresses": True,
        },
    }


def is_gang(context: Context, cell: Wanted) -> bool:
    """Whether the cluster's scheduler is told to place the cell's pods all or none. A queue does that for its jobs."""
    return context.gangs and cell.nodes > 1 and not queue_of(context)


def pod_group(context: Context, cell: Wanted) -> Manifest:
    """Over the nodes of a cell, not over cells: the group of a pod cannot change, and cells are placed anew one by one."""
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": context.meta(names.gpucell(context.name, cell.name), COMPONENT, cell=cell.name),
        "spec": {"schedulingPolicy": {"gang": {"minCount": cell.nodes}}},
    }


def pod(context: Context, cell: Wanted, rank: int, owner: Manifest, leader_ip: str = "") -> Manifest:
    """A bare pod: no controller of the cluster ever makes two of one rank. `owner` is the GPUCell.

    Raises:
        template.Refused: the job's template takes away what the product needs.
    """
    built = template(context, cell, rank, leader_ip)
    name = names.pod_of_cell(context.name, cell.name, rank)
    meta = {**built["metadata"], "name": name, "namespace": context.namespace, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": built["spec"]}


def template(context: Context, cell: Wanted, rank: int, leader_ip: str = "") -> Manifest:
    spec = context.job.spec.cells
    profile = context.config.network_profiles.get(spec.network.profile, NetworkProfileConfig())
    mounts = [*pods.common_mounts(), {"name": "shm", "mountPath": "/dev/shm"}]
    command = _command(context, cell, rank, leader_ip)
    main = pods.container(context, COMPONENT, context.config.images.cell, command, mounts, **_ports_and_probes(cell, rank))
    main["resources"] = _resources(context, profile)
    main["env"] = [*main["env"], *({"name": key, "value": value} for key, value in profile.env.items())]
    if profile.capabilities:
        main["securityContext"]["capabilities"]["add"] = list(profile.capabilities)
    volumes = [
        *pods.common_volumes(context),
        {"name": "work", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    claim = pods.model_claim(context.job.spec.model.source)
    origin = [{"name": "model", "mountPath": f"{pods.CLAIMS}/{claim}", "readOnly": True}] if claim else []
    volumes += [{"name": "model", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    init = [pods.model_container(context, context.config.images.cell, [*pods.common_mounts(), *origin])]
    body = pods.pod_spec(context, names.cell_account(context.name), [main], volumes, init)
    if profile.claims:
        body["resourceClaims"] = [dict(claim) for claim in profile.claims]
    if profile.host_network:
        body |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    meta = pods.pod_meta(context, COMPONENT, cell=cell.name, rank=str(rank))
    meta["annotations"] |= profile.annotations
    if is_gang(context, cell):
        body["schedulingGroup"] = {"podGroupName": names.gpucell(context.name, cell.name)}
    queue = queue_of(context)
    if queue:
        meta["labels"] |= {QUEUE: queue, GROUP: names.gpucell(context.name, cell.name)}
        meta["annotations"][GROUP_SIZE] = str(cell.nodes)
    return merged({"metadata": meta, "spec": body}, spec.template, "spec.cells.template")


def queue_of(context: Context) -> str:
    """The Kueue queue that admits the cells' pods, each cell as one group; named by a label of the job, as for every kind that Kueue knows."""
    return context.job.metadata.labels.get(QUEUE, "")


def _command(context: Context, cell: Wanted, rank: int, leader_ip: str) -> list[str]:
    command = ["python", "-m", "tidemill_cell", "--manifest", pods.MANIFEST, "--workdir", pods.WORK, "--cell", cell.name, "--host", "0.0.0.0"]
    command += ["--port", str(names.AGENT_PORT), "--advertise", f"http://$(POD_IP):{names.AGENT_PORT}"]
    command += ["--engine-port", str(names.ENGINE_PORT), "--trainer-port", str(names.TRAINER_PORT)]
    command += ["--trainer-advertise", f"http://$(POD_IP):{names.TRAINER_PORT}"]
    command += ["--conductor-url", context.conductor_url, "--gateway-url", context.gateway_url, "--model", pods.MODEL]
    if gpus := context.job.spec.cells.gpus_per_node:
        command += ["--gpus", ",".join(str(index) for index in range(gpus))]  # all that the device plugin gave this pod
    if cell.nodes > 1:
        command += ["--rank", str(rank), "--ranks", str(cell.nodes)]
        command += ["--leader", f"http://{leader_ip}:{names.AGENT_PORT}"] if rank else []
    return command


def _resources(context: Context, profile: NetworkProfileConfig) -> Manifest:
    """Requests equal limits: an engine that is throttled or killed for its neighbour's sake stalls a whole burst."""
    spec = context.job.spec.cells
    amounts = {"cpu": spec.resources.cpu, "memory": spec.resources.memory, **profile.resources}
    if spec.gpus_per_node:
        amounts[GPU] = str(spec.gpus_per_node)
    resources: Manifest = {"requests": dict(amounts), "limits": dict(amounts)}
    if profile.claims:
        resources["claims"] = [{"name": claim["name"]} for claim in profile.claims]
    return resources


def _ports_and_probes(cell: Wanted, rank: int) -> Manifest:
    agent = {"name": "agent", "containerPort": names.AGENT_PORT, "protocol": "TCP"}
    trainer = {"name": "trainer", "containerPort": names.TRAINER_PORT, "protocol": "TCP"}
    return {
        # What is declared is scraped: a port on which nobody listens would be a target that is down for ever.
        "ports": [agent, trainer] if cell.kind is not CellKind.STANDALONE and rank == 0 else [agent],
        # An engine may take minutes to come up, the agent seconds.
        "startupProbe": pods.probe("/healthz", names.AGENT_PORT, period_seconds=2, failures=150),
        "livenessProbe": pods.probe("/healthz", names.AGENT_PORT, period_seconds=10, failures=6),
        "readinessProbe": pods.probe("/readyz", names.AGENT_PORT, period_seconds=5, failures=1),
    }
