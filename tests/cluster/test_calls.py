import pytest

from tests.cluster.calls import Call, parse


@pytest.mark.parametrize(
    ("request_line", "call"),
    [
        ("GET /api/v1/namespaces/a/pods", Call("list", "pods", "a")),
        ("GET /api/v1/namespaces/a/pods?watch=true&resourceVersion=7", Call("watch", "pods", "a")),
        ("GET /api/v1/pods?watch=1", Call("watch", "pods")),
        ("GET /api/v1/namespaces/a/pods/p", Call("get", "pods", "a", "p")),
        ("GET /api/v1/namespaces/a/pods/p/log", Call("get", "pods/log", "a", "p")),
        ("PATCH /apis/tidemill.dev/v1alpha1/namespaces/a/rljobs/j/status?fieldManager=x", Call("patch", "rljobs/status", "a", "j")),
        ("POST /apis/tidemill.dev/v1alpha1/namespaces/a/gpucells", Call("create", "gpucells", "a")),
        ("PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/l", Call("update", "leases", "a", "l")),
        ("DELETE /api/v1/namespaces/a/pods/p", Call("delete", "pods", "a", "p")),
        ("DELETE /api/v1/namespaces/a/pods", Call("deletecollection", "pods", "a")),
        ("GET /api/v1/namespaces", Call("list", "namespaces")),
        ("GET /api/v1/namespaces/a", Call("get", "namespaces", "", "a")),
        ("PUT /api/v1/namespaces/a/finalize", Call("update", "namespaces/finalize", "", "a")),
        ("GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/c", Call("get", "customresourcedefinitions", "", "c")),
        ("GET /readyz", Call("get")),
        ("GET /apis/apps/v1", Call("get")),
        ("GET /openid/v1/jwks", Call("get")),
    ],
)
def test_a_request_is_named_as_the_api_server_names_it(request_line: str, call: Call) -> None:
    method, target = request_line.split(" ")
    path, _, query = target.partition("?")
    assert parse(method, path, query) == call
