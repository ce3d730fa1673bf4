from __future__ import annotations

import json

import pytest

from tidemill_operator.kube import Conflict, Gone, KubeError, Unavailable, error_of


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (404, "not found", Gone),
        (409, "the object has been modified", Conflict),
        (429, "too many requests", Unavailable),
        (500, "etcdserver: leader changed", Unavailable),
        (503, "apiserver not ready", Unavailable),
        (403, "exceeded quota", KubeError),
        (422, "invalid", KubeError),
        (500, "failed to create typed patch object (ns/p; /v1, Kind=Pod): .spec.tolerations: expected list", KubeError),
    ],
)
def test_an_answer_is_an_error_by_what_can_be_done_about_it(status: int, message: str, kind: type[KubeError]) -> None:
    error = error_of(status, "PATCH /x", json.dumps({"message": message}).encode(), "3")
    assert type(error) is kind
    assert str(error) == f"PATCH /x: status {status}: {message}"
    assert error.retry_after_seconds == (3.0 if kind is Unavailable or status == 429 else 0.0)


def test_an_answer_that_is_no_status_is_shown_as_it_is() -> None:
    assert str(error_of(502, "GET /x", b"<html>", "")) == "GET /x: status 502: <html>"
