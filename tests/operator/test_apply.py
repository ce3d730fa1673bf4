from __future__ import annotations

from typing import Any

import pytest

from tidemill_operator.actions import Apply, Delete, DryRun, Event, EventKind, GiveBack, PatchStatus, Ref
from tidemill_operator.apply import Applier, NotLeading, Remembered, Taken
from tidemill_operator.caches import Caches
from tidemill_operator.events import Recorder
from tidemill_operator.kube import Conflict, Gone, KubeError, Unavailable

JOB = Ref("RLJob", "ns", "job")


class Server:
    """Answers as told, and remembers what it was asked."""

    def __init__(self, **failures: Exception) -> None:
        self.failures = failures
        self.asked: list[str] = []
        self.there: dict[str, dict[str, Any]] = {}

    async def apply(self, manifest: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        return self.answer(manifest["metadata"]["name"], manifest)

    async def get(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        if name in self.there:
            return self.there[name]
        raise Gone(404, "nothing")

    async def merge(self, kind: str, namespace: str, name: str, patch: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        return self.answer(f"{kind}/{subresource}", made("ConfigMap", name))

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return self.answer(manifest["kind"], manifest)

    async def delete(self, kind: str, namespace: str, name: str, uid: str, *, force: bool = False) -> None:
        self.answer(f"delete {name}", {})

    def answer(self, what: str, answer: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(what)
        if what in self.failures:
            raise self.failures[what]
        return answer


def made(kind: str, name: str) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": "1", "ownerReferences": [{"uid": "mine"}]}}


def applier(server: Server, leads: bool = True, now: float = 0.0) -> Applier:
    return Applier(server, Caches(), Recorder(server, "me"), lambda: leads, lambda: now)


STATUS = PatchStatus(JOB, "u", {"phase": "Running"})


async def test_what_is_refused_keeps_nothing_else_from_being_written_and_is_remembered_for_the_status() -> None:
    server, memory = Server(a=KubeError(403, "quota")), Remembered()
    with pytest.raises(KubeError, match="quota"):
        await applier(server).carry_out([Apply(made("ConfigMap", "a")), Apply(made("ConfigMap", "b")), STATUS], memory)
    assert server.asked == ["a", "b", "RLJob/status"]
    assert memory.trouble == "quota"
    await applier(Server()).carry_out([Apply(made("ConfigMap", "a"))], memory)
    assert memory.trouble == ""


async def test_an_api_server_that_does_not_answer_is_not_asked_again_in_the_same_pass() -> None:
    server, memory = Server(a=Unavailable(0, "no answer")), Remembered()
    with pytest.raises(Unavailable):
        await applier(server).carry_out([Apply(made("ConfigMap", "a")), Apply(made("ConfigMap", "b"))], memory)
    assert server.asked == ["a"]
    assert memory.trouble == "", "the job is not to blame"


async def test_who_does_not_lead_writes_nothing() -> None:
    server = Server()
    with pytest.raises(NotLeading):
        await applier(server, leads=False).carry_out([STATUS], Remembered())
    assert server.asked == []


async def test_what_is_gone_or_another_one_by_now_needs_no_deletion() -> None:
    failures = {"delete gone": Gone(404, ""), "delete other": Conflict(409, "uid")}
    deletes = [Delete(Ref("Pod", "ns", name), "u", "") for name in ("gone", "other", "there")]
    server = Server(**failures)
    await applier(server).carry_out(deletes, Remembered())
    assert server.asked == ["delete gone", "delete other", "delete there"]


async def test_the_same_status_is_not_written_over_and_over_though_the_server_keeps_less_of_it() -> None:
    server, memory = Server(), Remembered()
    for now in (0.0, 5.0, 59.0, 61.0):
        await applier(server, now=now).carry_out([STATUS], memory)
    assert len(server.asked) == 2


async def test_a_status_that_could_not_be_written_is_tried_again_at_once() -> None:
    memory = Remembered()
    with pytest.raises(Unavailable):
        await applier(Server(**{"RLJob/status": Unavailable(500, "")})).carry_out([STATUS], memory)
    server = Server()
    await applier(server).carry_out([STATUS], memory)
    assert server.asked == ["RLJob/status"]


async def test_a_dry_run_remembers_the_refusal_and_nothing_when_there_was_no_answer() -> None:
    memory = Remembered()
    pods = (made("Pod", "a"), made("Pod", "b"))
    await applier(Server(b=KubeError(403, "violates PodSecurity"))).carry_out([DryRun("u", pods)], memory)
    assert memory.dry_run == "violates PodSecurity"
    await applier(Server()).carry_out([DryRun("u", pods)], memory)
    assert memory.dry_run == ""
    memory = Remembered()
    with pytest.raises(Unavailable):
        await applier(Server(a=Unavailable(503, ""))).carry_out([DryRun("u", pods)], memory)
    assert memory.dry_run is None


async def test_an_event_that_repeats_is_written_once() -> None:
    server = Server()
    recorder = Recorder(server, "me")
    event = Event(JOB, "u", EventKind.WARNING, "PodReplaced", "pod x")
    for _ in range(3):
        await recorder.record(event)
    await recorder.record(Event(JOB, "u", EventKind.WARNING, "PodReplaced", "pod y"))
    assert server.asked == ["Event", "Event"]


async def test_places_given_back_are_remembered_until_they_are_filled() -> None:
    memory = Remembered()
    await applier(Server()).carry_out([GiveBack("cell-1", 2, 50.0)], memory)
    assert memory.back_offs["cell-1"].times == 2
    await applier(Server()).carry_out([GiveBack("cell-1", 0, 0.0)], memory)
    assert memory.back_offs == {}


async def test_what_has_the_name_and_belongs_to_somebody_else_is_left_alone_and_said() -> None:
    server, memory = Server(), Remembered()
    server.there["a"] = {**made("ConfigMap", "a"), "metadata": {"name": "a", "namespace": "ns", "uid": "x", "resourceVersion": "9"}}
    with pytest.raises(Taken, match="ConfigMap a is there"):
        await applier(server).carry_out([Apply(made("ConfigMap", "a")), Apply(made("ConfigMap", "b"))], memory)
    assert server.asked == ["b"]
    assert "another name" in memory.trouble


async def test_what_has_the_name_and_is_ours_was_only_not_seen_yet() -> None:
    server = Server()
    server.there["a"] = made("ConfigMap", "a")
    await applier(server).carry_out([Apply(made("ConfigMap", "a"))], Remembered())
    assert server.asked == ["a"]


async def test_a_clock_that_was_set_back_keeps_no_status_waiting() -> None:
    server, memory = Server(), Remembered()
    await applier(server, now=10_000.0).carry_out([STATUS, GiveBack("cell-0", 1, 13_000.0)], memory)
    memory.not_after(100.0)
    assert memory.status_written <= 100.0
    assert memory.back_offs["cell-0"].until <= 100.0 + 2 * 3600
    await applier(server, now=100.0 + 61).carry_out([STATUS], memory)
    assert server.asked == ["RLJob/status"] * 2
