"""One pass over one job: what to write, as a pure function of what is seen. Applying the answer and asking again yields nothing."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.api.not_yet import not_yet
from tidemill_operator import access, addresses, announcements, cells, conductor, gateway, lifecycle, names, network, ownership, placement, storage
from tidemill_operator.actions import Action, Apply, Delete, DryRun, Event, EventKind, GiveBack, LookAgain, PatchStatus, Ref, digest, stamped
from tidemill_operator.cell_status import cell_status, due
from tidemill_operator.conditions import Condition, Is
from tidemill_operator.config import OperatorConfig
from tidemill_operator.lifecycle import Stage
from tidemill_operator.memory import host_memory_fits
from tidemill_operator.names import CONFINED, Manifest
from tidemill_operator.observed import Observed, Pod
from tidemill_operator.pods import Context
from tidemill_operator.status import due_at, job_status
from tidemill_operator.template import Refused

INSIST_SECONDS = 60.0


def plan(observed: Observed, config: OperatorConfig, now: float) -> tuple[Action, ...]:
    job = observed.job
    if job.deleting:
        return ()
    if lifecycle.outlived(observed, now):
        return (Delete(job.ref, job.uid, "ttlSecondsAfterFinished is over"),)
    stage = lifecycle.stage_of(observed, now)
    context = context_of(observed, config)
    problem = hindrance(observed, context)
    fits = host_memory_fits(job.model, observed.nodes) if job.model and not observed.things else _remembered(observed)
    actions: list[Action] = []
    held_back = problem is not None or (fits is not None and fits.status is Is.FALSE)
    if context is not None and (observed.things or not held_back):
        actions += _of_stage(observed, context, stage, held_back, now)
    leaving = {action.ref for action in actions if isinstance(action, Delete)}
    actions += (a for a in _statuses(observed, stage, problem, fits, now) if not (isinstance(a, PatchStatus) and a.ref in leaving))
    return tuple(actions)


def context_of(observed: Observed, config: OperatorConfig) -> Context | None:
    job = observed.job
    if job.model is None:
        return None
    known = addresses.addresses(observed)
    shards = range(job.model.spec.gateway.replicas)
    gateway_ips = tuple(known.get(names.gateway_shard(job.name, shard), "") for shard in shards)
    return Context(job.model, job.namespace, job.uid, config, known.get(names.conductor(job.name), ""), gateway_ips, observed.gangs)


def hindrance(observed: Observed, context: Context | None) -> Condition | None:
    """What keeps anything of the job from being made, as a condition that says what to do."""
    if context is None:
        return Condition("Invalid", Is.TRUE, "BreaksRules", "\n".join(observed.job.errors))
    spec = context.job.spec
    profile = spec.cells.network.profile
    if refused := tuple(not_yet(spec)):
        return Condition("Invalid", Is.TRUE, "NotSupported", "\n".join(map(str, refused)))
    if profile != "none" and profile not in context.config.network_profiles:
        known = ", ".join(sorted(context.config.network_profiles)) or "none"
        text = (
            f"spec.cells.network.profile: is {profile}, which this installation does not define; use one of: {known}, or add it to the chart's values"
        )
        return Condition("Invalid", Is.TRUE, "UnknownNetworkProfile", text)
    try:
        samples(context)
    except Refused as refusal:
        return Condition("Invalid", Is.TRUE, "TemplateRefused", str(refusal))
    if observed.dry_run:
        return Condition(
            "Created", Is.FALSE, "DryRunRefused", f"the API server would not take this job's pods: {observed.dry_run}; it is asked again"
        )
    return None


def samples(context: Context) -> tuple[Manifest, ...]:
    """A pod of each kind, for the API server to try."""
    pods = [cells.pod(context, cells.wanted(context)[0], 0, context.owner)]
    for template, name in ((conductor.template(context), names.conductor(context.name)), (gateway.template(context), names.gateway(context.name))):
        meta = {**template["metadata"], "name": f"{name}-0", "namespace": context.namespace}
        volumes = [*template["spec"]["volumes"]]
        if not any(volume["name"] == "work" for volume in volumes):
            volumes.append({"name": "work", "emptyDir": {}})  # the StatefulSet's claim
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**template["spec"], "volumes": volumes}})
    # Accounts do not exist yet, and admission would refuse their pods for that alone.
    return tuple({**pod, "spec": {k: v for k, v in pod["spec"].items() if k != "serviceAccountName"}} for pod in pods)


def _of_stage(observed: Observed, context: Context, stage: Stage, held_back: bool, now: float) -> Iterator[Action]:
    if not observed.things and observed.dry_run is None:
        yield DryRun(observed.job.uid, samples(context))
        return
    running = stage in (Stage.RUN, Stage.STOPPING)
    yield from _applied(observed, foundation(context), now)
    if not context.conductor_ip or not all(context.gateway_ips) or not observed.trust:
        return
    conductor_stays = running or stage is Stage.ENDING
    yield from _applied(observed, processes(context, observed, int(conductor_stays), len(context.gateway_ips) if running else 0), now)
    if not running:
        yield from (_delete(observed, pod, f"the job is {stage.name.lower()}") for pod in observed.of("cell") if not pod.deleting)
        return
    if stage is Stage.RUN and not held_back:
        yield from _retired(observed, context)
        yield from _pods(observed, context, now)


def foundation(context: Context) -> tuple[Manifest, ...]:
    """What exists as long as the job does. The Services come first, because everything else carries their addresses."""
    return (
        conductor.service(context),
        *(gateway.service(context, shard) for shard in range(len(context.gateway_ips))),
        *access.accounts(context),
        access.role(context),
        access.role_binding(context),
        storage.checkpoints(context),
        *network.policies(context),
        *network.budgets(context),
    )


def processes(context: Context, observed: Observed, conductors: int, gateways: int) -> tuple[Manifest, ...]:
    wanted = cells.wanted(context)
    refused = any(not_yet(context.job.spec))  # a job that runs is not told what ends the conductor that starts next
    config_map = storage.config_map(context, observed.trust, addresses.written(addresses.addresses(observed)))
    return (
        *(() if refused else (config_map,)),
        *(cells.gpucell(context, cell) for cell in wanted),
        *(cells.leader_service(context, cell) for cell in wanted if cell.nodes > 1),
        *(cells.pod_group(context, cell) for cell in wanted if cells.is_gang(context, cell)),
        conductor.stateful_set(context, conductors),
        gateway.stateful_set(context, gateways),
    )


def _applied(observed: Observed, manifests: tuple[Manifest, ...], now: float) -> Iterator[Action]:
    known = addresses.addresses(observed)
    for manifest in manifests:
        there = observed.thing(manifest["kind"], manifest["metadata"]["name"])
        if there is not None and there.deleting:
            continue
        immutable = manifest["kind"] in ("PersistentVolumeClaim", "RoleBinding")
        if there is None:
            yield Apply(addresses.at_its_address(stamped(manifest), known))
        elif not immutable and there.applied != digest(manifest):
            yield Apply(stamped(manifest), there.uid)
        elif there.fields is not None and _may_insist(observed, there.uid, now) and (paths := ownership.taken(manifest, there.fields)):
            yield _warning(observed, "ChangeReverted", _reverted(there.ref, paths, there.fields.managers))
            yield Apply(stamped(manifest), there.uid)


def _may_insist(observed: Observed, uid: str, now: float) -> bool:
    """A controller that changes it again each time is answered once a minute, not as fast as both can write."""
    return uid not in observed.unmoved and now - observed.applied.get(uid, 0.0) >= INSIST_SECONDS


def _reverted(ref: Ref, paths: tuple[str, ...], by: str) -> str:
    return (
        f"{ref.kind} {ref.name}: {ownership.told(paths)} changed{f' by {by}' if by else ''}; set back, because the operator builds this object "
        "from the job: change the job, or put what pods need into its templates"
    )


def _retired(observed: Observed, context: Context) -> Iterator[Action]:
    """Standalone cells beyond their number. The conductor has been told first, and reports them no longer."""
    wanted = {cell.name for cell in cells.wanted(context)}
    serving = {cell.cell for cell in observed.reading.tide.cells} if observed.reading.tide else {cell.name for cell in observed.cells}
    for cell in observed.cells:
        if cell.name not in wanted and cell.name not in serving and not cell.deleting:
            ref = Ref("GPUCell", observed.job.namespace, names.gpucell(observed.job.name, cell.name))
            yield Delete(ref, cell.uid, "the job asks for fewer cells")


def _pods(observed: Observed, context: Context, now: float) -> Iterator[Action]:
    config = context.config
    gone: set[str] = set()
    ours = (p for p in (*observed.pods, *(p for p in observed.left if p.deleting)) if p.component not in CONFINED)
    for pod, why in placement.lost(ours, observed.nodes, config.node_loss_seconds, now):
        gone.add(pod.name)
        force = why.startswith("node")
        yield Delete(Ref("Pod", observed.job.namespace, pod.name), pod.uid, why, force)
        yield _warning(observed, "PodReplaced", f"pod {pod.name} is replaced: {why}")
    given_back: set[str] = set()
    for half in placement.half_placed(observed, config.placement_seconds, now):
        given_back |= {pod.cell for pod in half.pods}
        yield GiveBack(half.gang, half.back_off.times, half.back_off.until)
        yield from (_delete(observed, pod, "its cell is only half placed") for pod in half.pods if pod.name not in gone)
        what = f"cell {half.gang}" if half.gang else "the job"
        wait = half.back_off.until - now
        yield _warning(
            observed, "PlacesGivenBack", f"{what} found nodes for only some of its pods; it gives them back and tries again in {wait:.0f} s"
        )
    yield from (GiveBack(gang, 0, 0.0) for gang in placement.settled_gangs(observed))
    there = {pod.name for pod in (*observed.pods, *observed.left)}
    known = addresses.addresses(observed)
    objects = {cell.name: cell for cell in observed.cells if not cell.deleting}
    for cell in cells.wanted(context):
        if cell.name not in objects or cell.name in given_back or placement.waiting(observed, cell.name, now):
            continue
        leader_ip = known.get(names.gpucell(context.name, cell.name), "")
        if cell.nodes > 1 and not leader_ip:
            continue
        owner = names.owner("GPUCell", names.gpucell(context.name, cell.name), objects[cell.name].uid)
        for rank in range(cell.nodes):
            if names.pod_of_cell(context.name, cell.name, rank) not in there:
                yield Apply(stamped(cells.pod(context, cell, rank, owner, leader_ip)))


def _delete(observed: Observed, pod: Pod, why: str) -> Delete:
    return Delete(Ref("Pod", observed.job.namespace, pod.name), pod.uid, why)


def _warning(observed: Observed, reason: str, message: str) -> Event:
    return Event(observed.job.ref, observed.job.uid, EventKind.WARNING, reason, message)


def _remembered(observed: Observed) -> Condition | None:
    """What was admitted stays admitted: a node that leaves later must not take the job down."""
    found = next((c for c in observed.job.status.get("conditions") or () if c["type"] == "HostMemoryFits"), None)
    return Condition("HostMemoryFits", Is(found["status"]), found["reason"], found["message"]) if found else None


def _statuses(observed: Observed, stage: Stage, problem: Condition | None, fits: Condition | None, now: float) -> Iterator[Action]:
    job = observed.job
    tide = observed.reading.tide
    told = {cell.cell: cell for cell in tide.cells} if tide else {}
    for cell in observed.cells:
        if cell.deleting:
            continue
        pods = tuple(p for p in observed.of("cell") if p.cell == cell.name and not p.deleting)
        status = cell_status(cell, told.get(cell.name), pods, now, awaited=observed.reading.awaited(now))
        if due(cell.status, status, observed.cells_written.get(cell.uid, 0.0), now):
            yield PatchStatus(Ref("GPUCell", job.namespace, names.gpucell(job.name, cell.name)), cell.uid, status)
    status = job_status(observed, stage, problem, fits, now)
    at = due_at(job.status, status, observed.status_written)
    if at is not None and at <= now:
        yield PatchStatus(job.ref, job.uid, status)
        yield from announcements.announced(job, status)
    elif at is not None:
        yield LookAgain(at)
