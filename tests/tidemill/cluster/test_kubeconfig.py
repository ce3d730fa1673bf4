"""Which cluster is meant, and what is said when there is none."""

import sys
from pathlib import Path

import pytest
import yaml

from tidemill.cluster.kubeconfig import Place, connect, found, sought
from tidemill.cluster.trouble import ClusterTrouble


def text(**namespaces: str) -> str:
    """With a context for each name."""
    contexts = [{"name": name, "context": {"cluster": "c", "user": "u", "namespace": namespace}} for name, namespace in namespaces.items()]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": contexts,
        "current-context": contexts[0]["name"],
    }
    return yaml.safe_dump(document)


async def namespace_of(place: Place) -> str:
    async with connect(place) as cluster:
        return cluster.namespace


async def why_not(place: Place) -> str:
    with pytest.raises(ClusterTrouble) as trouble:
        await namespace_of(place)
    return str(trouble.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config").write_text(text(staging="of-staging", production="of-production"))
    return tmp_path / "config"


def test_the_option_comes_before_the_variable_and_the_variable_before_the_home(file: Path) -> None:
    assert sought(Place(kubeconfig="a"), {"KUBECONFIG": "b"}) == "a"
    assert sought(Place(), {"KUBECONFIG": "b:c"}) == "b:c"
    assert sought(Place(), {}) == "~/.kube/config"
    assert found(Place(), {"KUBECONFIG": f"/nowhere/config:{file}"}) == str(file)


async def test_the_namespace_is_that_of_the_option_then_of_the_context(file: Path) -> None:
    assert await namespace_of(Place(kubeconfig=str(file))) == "of-staging"
    assert await namespace_of(Place(kubeconfig=str(file), context="production")) == "of-production"
    assert await namespace_of(Place("sea", kubeconfig=str(file))) == "sea"
    file.write_text(text(staging=""))
    assert await namespace_of(Place(kubeconfig=str(file))) == "default"


async def test_what_cannot_be_used_is_told_with_what_could_be(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "/nowhere is not there; give --kubeconfig FILE" in await why_not(Place(kubeconfig="/nowhere"))
    assert "no context producton; did you mean production?" in await why_not(Place(kubeconfig=str(file), context="producton"))
    assert "no context x; it has staging, production" in await why_not(Place(kubeconfig=str(file), context="x"))
    for bad in ("", "[1, 2]", "a: {b", "clusters: 3", "just words"):
        (tmp_path / "bad").write_text(bad)
        assert "--kubeconfig" in await why_not(Place(kubeconfig=str(tmp_path / "bad")))


async def test_a_cluster_that_does_not_answer_is_named(file: Path) -> None:
    from tidemill.cluster.finding import find_job

    async with connect(Place(kubeconfig=str(file))) as cluster:
        with pytest.raises(ClusterTrouble, match=r"the cluster at http://127.0.0.1:9 does not answer .*kubectl cluster-info"):
            await find_job(cluster, None)


async def test_without_the_kubernetes_package_the_remedy_is_an_extra(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.aio", None)
    assert await why_not(Place(kubeconfig=str(file))) == "the package kubernetes is not installed; pip install 'tidemill[cluster]'"
