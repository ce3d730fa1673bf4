"""What an API server refuses, in words that say what to do. The bodies are those of a real one, 1.37."""

import json

import pytest

from tidemill.cluster.trouble import ClusterTrouble, NotThere, Outdated, Unanswered, refusal


def body(reason: str, message: str, **details: str) -> bytes:
    return json.dumps({"kind": "Status", "status": "Failure", "reason": reason, "message": message, "details": details}).encode()


FORBIDDEN = 'rljobs.tidemill.dev "sail" is forbidden: User "ann" cannot patch resource "rljobs" in API group "tidemill.dev" in the namespace "sea"'


@pytest.mark.parametrize(
    ("right", "role"),
    [
        ("patch rljobs.tidemill.dev", "edit"),
        ("create serviceaccounts/token", "edit"),
        ("create pods/portforward", "edit"),
        ("list gpucells.tidemill.dev", "view"),
        ("get configmaps", "view"),
    ],
)
def test_a_right_that_is_lacking_is_named_with_the_role_that_has_it(right: str, role: str) -> None:
    told = str(refusal(403, body("Forbidden", FORBIDDEN), right, "sea"))
    assert told == f"you lack a right: {right} in namespace sea (the cluster knows you as ann); the role {role} has it, ask for it"


def test_an_object_that_is_missing_and_a_kind_that_is_missing_are_told_apart() -> None:
    missing = refusal(404, body("NotFound", 'rljobs.tidemill.dev "x" not found', name="x", kind="rljobs"), "get rljobs.tidemill.dev", "sea")
    assert isinstance(missing, NotThere)
    for unknown in (b"404 page not found\n", body("NotFound", "the server could not find the requested resource")):
        told = refusal(404, unknown, "list rljobs.tidemill.dev", "sea")
        assert not isinstance(told, NotThere)
        assert "does not know rljobs.tidemill.dev: install Tidemill with helm" in str(told)


def test_what_may_pass_is_told_apart_from_what_will_not() -> None:
    for status in (429, 500, 503, 504):
        assert isinstance(refusal(status, b"busy", "list pods", "sea"), Unanswered)
    assert isinstance(refusal(410, body("Expired", "too old resource version"), "watch pods", "sea"), Outdated)
    for status in (400, 401, 409, 422):
        assert type(refusal(status, body("Invalid", "spec.steps: no"), "patch rljobs.tidemill.dev", "sea")) is ClusterTrouble


def test_the_words_of_the_cluster_are_passed_on() -> None:
    assert "spec.steps: no" in str(refusal(422, body("Invalid", "spec.steps: no"), "patch rljobs.tidemill.dev", "sea"))
    assert "log in again" in str(refusal(401, body("Unauthorized", "Unauthorized"), "get rljobs.tidemill.dev", "sea"))
