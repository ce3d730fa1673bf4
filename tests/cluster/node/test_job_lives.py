"""One job on a real cluster, from `helm install` to its last step; then its objects and stores are asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from tests.cluster.calls import audited
from tests.cluster.cluster import Cluster
from tests.cluster.node import sequence, sound
from tests.cluster.node.installation import NAMESPACE, OPERATOR, RELEASE, run_helm
from tests.cluster.node.lived import ClusterJob, manifest
from tests.cluster.node.sequence import CELLS
from tests.cluster.node.strikes import ready
from tidemill.telemetry.events import FlipEnded, JobEnded
from tidemill.wire.cell import Role

pytestmark = pytest.mark.timeout(1500)

FIRST_FLIPS = 6


@dataclass
class Lived:
    """The job when it has ended, and what was noted of it before."""

    job: ClusterJob
    steps: int
    untouched: tuple[dict[str, str], dict[str, str]]
    reached: dict[str, str]


@pytest.fixture(scope="module")
def lived(cluster: Cluster, installed: str, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    job = ClusterJob(cluster, installed, "tiny")
    job.submit(manifest())
    sequence.start(job)
    untouched = sequence.flips_in_place(job, FIRST_FLIPS)
    reached = sequence.from_inside_a_sandbox(job)
    sequence.report(job, tmp_path_factory.mktemp("while it runs"))
    steps = sequence.finish(job)
    sequence.report(job, tmp_path_factory.mktemp("when it has ended"))
    return Lived(job, steps, untouched, reached)


def test_the_job_succeeds_and_its_objects_say_so(lived: Lived) -> None:
    status = lived.job.status
    assert (status["phase"], status["step"], status["progress"]) == ("Succeeded", lived.steps, f"{lived.steps}/{lived.steps}")
    assert status["completionTime"]
    assert [event.phase for event in lived.job.events() if isinstance(event, JobEnded)] == ["Succeeded"]
    assert len(status["flips"]) >= 4
    assert 0 < status["scores"]["last"] <= status["scores"]["best"] <= 1


def test_cells_flip_inside_their_pods(lived: Lived) -> None:
    before, after = lived.untouched
    assert before == after
    assert len(before) == len(CELLS)
    flips = [event for event in lived.job.events() if isinstance(event, FlipEnded)]
    assert Counter(flip.to for flip in flips).keys() == {Role.TRAINING, Role.ROLLOUT}
    assert all(list(flip.phases) == ["drain", "sleep", "join"] for flip in flips if flip.to is Role.TRAINING)


def test_its_stores_are_sound(lived: Lived) -> None:
    sound.no_execution_is_lost_and_none_counts_twice(lived.job)
    sound.every_step_is_committed_once_and_holds_every_micro_step_once(lived.job, lived.steps)
    sound.every_engine_loaded_exactly_what_was_published(lived.job)
    sound.no_epoch_was_acknowledged_with_two_roles(lived.job)


def test_a_sandbox_reaches_its_gateway_and_nothing_else(lived: Lived) -> None:
    reached = dict(lived.reached)
    assert reached.pop("gateway") == "open"
    assert reached.pop("token") == "none"
    assert len(reached) > 8
    assert not {name: said for name, said in reached.items() if said == "open" or said[0].isdigit()}


def test_the_operators_had_every_right_they_asked_for(cluster: Cluster, lived: Lived) -> None:
    calls = list(audited(cluster.audit, f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"))
    assert {"gpucells", "pods", "rljobs/status", "leases"} <= {call.resource for call in calls}
    assert not {(call.verb, call.resource) for call in calls if call.status == 403}


def test_the_charts_own_test_passes(cluster: Cluster, lived: Lived) -> None:
    assert "Phase:          Succeeded" in run_helm(cluster, "test", RELEASE, "--timeout=120s")


def test_a_job_that_is_deleted_while_it_starts_leaves_nothing(cluster: Cluster, lived: Lived) -> None:
    job = ClusterJob(cluster, lived.job.namespace, "brief")
    short = manifest()
    short["metadata"]["name"] = job.name
    job.submit(short)
    job.wait_for("the conductor is ready", lambda: any(ready(pod) for pod in job.pods("conductor").values()))
    job.kubectl("delete", "rljob", job.name, "--timeout=60s")
    job.wait_for("no pod is left", lambda: not job.pods(), 60)
    kinds = "statefulsets,services,configmaps,serviceaccounts,persistentvolumeclaims,networkpolicies,poddisruptionbudgets,roles,rolebindings,gpucells"
    job.wait_for("nothing is left", lambda: not job.get(kinds, f"--selector=tidemill.dev/job={job.name}")["items"], 60)
