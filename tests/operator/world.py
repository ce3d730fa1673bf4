"""A cluster as far as plans see one: objects with uids and versions, a kubelet and a scheduler that do as told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidemill.wire.cell import CellKind, CellPhase, CellState, Flip, Role
from tidemill.wire.conductor import CellTide, JobPhase, Tide
from tidemill_operator.actions import Action, Apply, Delete, DryRun, Event, GiveBack, LookAgain, PatchStatus, Ref
from tidemill_operator.caches import Caches, Key, ref_of
from tidemill_operator.config import OperatorConfig
from tidemill_operator.names import Manifest
from tidemill_operator.observed import BackOff, Observed, Reading, own
from tidemill_operator.plan import plan
from tidemill_operator.times import stamp

NOW = 1_800_000_000.0


def config(**more: Any) -> OperatorConfig:
    told = {"images": {"conductor": "c", "cell": "k", "sandbox": "s"}, "operatorNamespace": "tidemill-system", **more}
    return OperatorConfig.model_validate(told)


def manifest(name: str = "job", count: int = 2, **spec: Any) -> Manifest:
    base = {
        "model": {"source": "tiny:qwen3", "maxLength": 2048, "dtype": "float32"},
        "cells": {"count": count, "capacity": 8},
        "schedule": {"groupsPerStep": 2, "rolloutsPerGroup": 2, "steps": 3},
        "sampling": {"maxTokens": 64},
        "tasks": {"source": "path:/tasks"},
    }
    for key, value in spec.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) and key in base else value
    return {"apiVersion": "tidemill.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name, "namespace": "ns"}, "spec": base}


class World:
    def __init__(self, job: Manifest | None = None, operator: OperatorConfig | None = None) -> None:
        self.now = NOW
        self.config = operator or config()
        self.objects: dict[Ref, Manifest] = {}
        self.caches = Caches()
        self.reading = Reading()
        self.back_offs: dict[str, BackOff] = {}
        self.gangs = False
        self.dry_run: str | None = None
        self.refusal = ""
        self.status_written = 0.0
        self.events: list[Event] = []
        self._version = 0
        document = job or manifest()
        self.key: Key = (document["metadata"]["namespace"], document["metadata"]["name"])
        self.put(document)

    @property
    def job(self) -> Manifest:
        return self.objects[Ref("RLJob", *self.key)]

    def condition(self, kind: str) -> Manifest:
        return next((c for c in self.job["status"]["conditions"] if c["type"] == kind), {})

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    def observed(self) -> Observed:
        job = self.caches.job(self.key)
        assert job is not None
        seen = Observed(
            job=job,
            cells=self.caches.cells(self.key),
            pods=self.caches.pods(self.key),
            things=self.caches.things(self.key),
            nodes=self.caches.nodes(),
            reading=self.reading,
            back_offs=dict(self.back_offs),
            trust="{}",
            gangs=self.gangs,
            dry_run=self.dry_run,
            status_written=self.status_written,
        )
        return own(seen)

    def plan(self) -> tuple[Action, ...]:
        return plan(self.observed(), self.config, self.now)

    def settle(self, passes: int = 10) -> None:
        """Plan and apply until nothing is left to do; that this ends is part of every test."""
        for _ in range(passes):
            self.now += 1.0
            actions = tuple(a for a in self.plan() if not isinstance(a, LookAgain) or a.at > self.now + 1)
            if all(isinstance(a, LookAgain) for a in actions):
                return
            for action in actions:
                self.do(action)
        raise AssertionError(f"still planning after {passes} passes: {actions}")

    def do(self, action: Action) -> None:
        match action:
            case Apply(built):
                self.put(built)
            case Delete(ref, uid, _):
                if ref in self.objects and self.objects[ref]["metadata"]["uid"] == uid:
                    self.remove(ref)
            case PatchStatus(ref, _, status):
                self.put({**self.objects[ref], "status": {k: v for k, v in status.items() if v is not None}})
                self.status_written = self.now if ref.kind == "RLJob" else self.status_written
            case Event():
                self.events.append(action)
            case DryRun():
                self.dry_run = self.refusal
            case GiveBack(gang, times, until):
                self.back_offs.pop(gang, None)
                if times:
                    self.back_offs[gang] = BackOff(times, until)

    def put(self, raw: Manifest) -> Manifest:
        """Create or change, as the server would: uid and age stay, the version grows, a Service gets an address."""
        self._version += 1
        ref, old = ref_of(raw), self.objects.get(ref_of(raw), {})
        former = old.get("metadata", {})
        meta = {
            "uid": f"uid-{self._version}",
            "creationTimestamp": stamp(self.now),
            "generation": 1,
            **{k: former[k] for k in ("uid", "creationTimestamp", "generation") if k in former},
            **{k: v for k, v in raw["metadata"].items() if k not in ("uid", "resourceVersion")},
            "resourceVersion": str(self._version),
        }
        new = {**raw, "metadata": meta}
        for field in ("status",):
            if field in old and field not in raw:
                new[field] = old[field]
        if raw["kind"] == "Service":
            new["spec"] = {**raw["spec"], "clusterIP": old.get("spec", raw["spec"]).get("clusterIP") or f"10.96.0.{self._version % 250 + 1}"}
        if raw["kind"] == "GPUCell" and old:
            new["spec"] = {**old["spec"], **raw["spec"]}
        self.objects[ref] = new
        self.caches.absorb(new)
        return new

    def remove(self, ref: Ref) -> None:
        """And what it owns, as the garbage collector would."""
        gone = self.objects.pop(ref)
        uid = gone["metadata"]["uid"]
        self.caches.remove(ref, uid)
        for other, raw in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in raw["metadata"].get("ownerReferences", ())) and other in self.objects:
                self.remove(other)

    # --- those who are not the operator ---

    def edit(self, **spec: Any) -> None:
        job = self.job
        changed = {**job, "spec": {**job["spec"], **spec}}
        changed["metadata"] = {**job["metadata"], "generation": job["metadata"]["generation"] + 1}
        self.put(changed)

    def pods(self) -> dict[str, Manifest]:
        return {ref.name: raw for ref, raw in self.objects.items() if ref.kind == "Pod"}

    def pod(self, name: str, *, node: str = "n0", ready: bool = True, status: Manifest | None = None) -> None:
        raw = self.pods()[name]
        told = status or {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"name": "cell", "ready": ready, "restartCount": 0, "state": {"running": {}}}],
        }
        self.put({**raw, "spec": {**raw["spec"], **({"nodeName": node} if node else {})}, "status": told})

    def unschedulable(self, name: str) -> None:
        told = {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes fit"}],
        }
        self.pod(name, node="", status=told)

    def node(self, name: str, *, ready: bool = True, memory: str = "64Gi", gpus: int = 0, since: float | None = None) -> None:
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": stamp(self.now if since is None else since)}
        raw = {"kind": "Node", "metadata": {"name": name}, "spec": {}, "status": {"conditions": [condition]}}
        raw["status"]["allocatable"] = {"memory": memory, "nvidia.com/gpu": str(gpus)}
        self.put(raw)

    def stateful_pod(self, component: str) -> None:
        """What the StatefulSet controller makes."""
        name = f"{self.key[1]}-{component}"
        owner = self.objects[Ref("StatefulSet", self.key[0], name)]
        labels = owner["spec"]["template"]["metadata"]["labels"]
        by = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": owner["metadata"]["uid"], "controller": True}
        meta = {"name": f"{name}-0", "namespace": self.key[0], "labels": labels, "ownerReferences": [by]}
        self.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": "n0"}})
        self.pod(f"{name}-0")

    def everything_runs(self) -> None:
        self.settle()
        for component in ("conductor", "gateway"):
            self.stateful_pod(component)
        for name in list(self.pods()):
            self.pod(name)
        self.hear(tide(self))
        self.settle()

    def hear(self, told: Tide, **more: Any) -> None:
        self.reading = replace(Reading(told, self.now), **more)


def state(cell: str, role: Role = Role.ROLLOUT, epoch: int = 1, flip: Flip | None = None, phase: CellPhase = CellPhase.READY) -> CellState:
    kind = CellKind.CORE if cell == "cell-0" else CellKind.STANDALONE if cell.startswith("standalone") else CellKind.SATELLITE
    return CellState(cell, kind, int(cell.rsplit("-", 1)[1]), f"http://{cell}:7002", phase, role, epoch, 8, policy_version=0, last_flip=flip)


def cell_tide(cell: str, role: Role = Role.ROLLOUT, epoch: int = 1, **more: Any) -> CellTide:
    told = more.pop("state", state(cell, role, epoch))
    settled = told is not None and (told.role, told.epoch) == (role, epoch)
    ordinal = int(cell.rsplit("-", 1)[1])
    return CellTide(cell, ordinal, 8, role, epoch, told, cell.startswith("standalone"), **{"settled": settled, **more})


def tide(world: World | None = None, cells: tuple[CellTide, ...] | None = None, **more: Any) -> Tide:
    names = [c.name for c in world.caches.cells(world.key)] if world else ["cell-0", "cell-1"]
    values: dict[str, Any] = {
        "sequence": 1,
        "job": "job",
        "mode": "Elastic",
        "phase": JobPhase.RUNNING,
        "step": 0,
        "steps": 3,
        "burst": 1,
        "policy_version": 0,
        "dispatched": 8,
        "started": 8,
        "terminated": 0,
        "ready_groups": 0,
        "staleness_max": 0,
        "cells": cells if cells is not None else tuple(cell_tide(name) for name in names),
        "groups_due": 2,
        "term": 1,
    }
    return Tide(**{**values, **more})
