"""What the server says of managers, as it said it of a Service and of a StatefulSet, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.operator.world import World
from tidemill_operator.actions import Apply, Event, Ref
from tidemill_operator.ownership import Managed, managed, taken, told
from tidemill_operator.plan import plan

WANTED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "s", "namespace": "ns", "labels": {"a": "1", "b": "2"}, "ownerReferences": [{"uid": "u", "kind": "RLJob"}]},
    "spec": {
        "selector": {"app": "s"},
        "ports": [{"name": "http", "port": 7000}, {"name": "more", "port": 7001, "protocol": "TCP"}],
        "template": {"containers": [{"name": "c", "env": [{"name": "E", "value": "1"}, {"name": "F", "value": "2"}], "emptyDir": {}}]},
    },
}
PORT, OTHER = 'k:{"port":7000,"protocol":"TCP"}', 'k:{"port":7001,"protocol":"TCP"}'
OURS: dict[str, Any] = {
    "f:metadata": {"f:labels": {"f:a": {}, "f:b": {}}, "f:ownerReferences": {'k:{"uid":"u"}': {}}},
    "f:spec": {
        "f:selector": {},
        "f:ports": {PORT: {".": {}, "f:name": {}, "f:port": {}}, OTHER: {".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}}},
        "f:template": {
            "f:containers": {
                'k:{"name":"c"}': {
                    ".": {},
                    "f:name": {},
                    "f:env": {'k:{"name":"E"}': {".": {}, "f:name": {}, "f:value": {}}, 'k:{"name":"F"}': {}},
                    "f:emptyDir": {},
                }
            }
        },
    },
}


def without(path: str) -> dict[str, Any]:
    """Our fields after somebody else has taken one: names of the tree, with spaces between them."""

    def cut(fields: dict[str, Any], names: list[str]) -> dict[str, Any]:
        first, *rest = names
        return {key: cut(inner, rest) if key == first else inner for key, inner in fields.items() if key != first or rest}

    return cut(OURS, path.split(" "))


def meta(*entries: tuple[str, str, str]) -> dict[str, Any]:
    return {"managedFields": [{"manager": who, "operation": how, "subresource": what, "fieldsV1": {"f:x": {}}} for who, how, what in entries]}


def test_what_nobody_has_touched_is_ours() -> None:
    assert taken(WANTED, Managed(OURS)) == ()


@pytest.mark.parametrize(
    ("path", "lacking"),
    [
        ("f:spec f:selector", "spec.selector"),
        (f"f:spec f:ports {PORT}", "spec.ports[http]"),
        (f"f:spec f:ports {PORT} f:port", "spec.ports[7000,TCP].port"),
        ('f:spec f:template f:containers k:{"name":"c"} f:env', "spec.template.containers[c].env"),
        ('f:spec f:template f:containers k:{"name":"c"} f:env k:{"name":"E"}', "spec.template.containers[c].env[E]"),
        ("f:metadata f:labels f:a", "metadata.labels.a"),
        ("f:metadata f:ownerReferences", "metadata.ownerReferences"),
    ],
)
def test_what_we_set_and_no_longer_own_is_named(path: str, lacking: str) -> None:
    assert taken(WANTED, Managed(without(path))) == (lacking,)


def test_of_what_we_leave_empty_only_somebody_else_can_be_the_manager() -> None:
    wanted = {"metadata": {}, "spec": {"ingress": [], "egress": [{"to": []}], "initContainers": []}}
    ours = {"f:spec": {"f:egress": {}}}
    assert taken(wanted, Managed(ours)) == ()
    assert taken(wanted, Managed(ours, (("somebody", {"f:spec": {"f:ingress": {}}}),))) == ("spec.ingress",)


def test_only_the_entry_of_our_applies_counts_and_managers_of_the_status_are_nobody() -> None:
    entries = meta(("tidemill-operator", "Update", ""), ("kubectl-edit", "Update", ""), ("kube-controller-manager", "Update", "status"))
    assert managed(entries) == Managed({}, (("kubectl-edit", {"f:x": {}}),))
    assert managed({}) is None, "nothing is known, so nothing is said"
    assert managed(meta(("tidemill-operator", "Apply", ""))) == Managed({"f:x": {}})


def test_many_paths_are_not_all_told() -> None:
    assert told(tuple(f"p{n}" for n in range(7))) == "p0, p1, p2, p3, p4 and 2 more"


def test_a_change_by_hand_is_set_back_and_said_once_it_is_seen() -> None:
    world = World()
    world.everything_runs()
    ref = Ref("NetworkPolicy", "ns", "job-sandboxes")
    policy = world.objects[ref]
    edited = [{"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:spec": {"f:egress": {}}}}]
    world.put({**policy, "metadata": {**policy["metadata"], "managedFields": edited}})
    event, apply = (action for action in world.plan() if isinstance(action, Event | Apply))
    assert isinstance(event, Event)
    assert (event.reason, "NetworkPolicy job-sandboxes" in event.message, "by kubectl-edit" in event.message) == ("ChangeReverted", True, True)
    assert isinstance(apply, Apply)
    assert (apply.ref, apply.uid) == (ref, policy["metadata"]["uid"])


def test_with_somebody_who_changes_it_again_and_again_there_is_no_race() -> None:
    world = World()
    world.everything_runs()
    policy = world.objects[Ref("NetworkPolicy", "ns", "job-sandboxes")]
    edited = [{"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:spec": {"f:egress": {}}}}]
    world.put({**policy, "metadata": {**policy["metadata"], "managedFields": edited}})
    seen = replace(world.observed(), applied={policy["metadata"]["uid"]: world.now - 10})
    assert not [action for action in plan(seen, world.config, world.now) if isinstance(action, Apply)]
    assert [action for action in plan(seen, world.config, world.now + 50) if isinstance(action, Apply)]


def test_volumes_may_be_enlarged_and_cells_pinned() -> None:
    world = World()
    world.everything_runs()
    for ref in (Ref("PersistentVolumeClaim", "ns", "job-checkpoints"), Ref("GPUCell", "ns", "job-cell-0")):
        raw = world.objects[ref]
        world.put({**raw, "metadata": {**raw["metadata"], "managedFields": [{"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {}}]}})
    assert not [action for action in world.plan() if isinstance(action, Apply)]
