"""One job on a real cluster that lives through kills of all its pods, of its operators, of the API server and of a node. Runs when it is named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.node import sequence, sound
from tests.cluster.node.lived import ClusterJob, manifest
from tests.cluster.node.sequence import BURSTS_WITHOUT_API_SERVER, Outage, Pause
from tests.cluster.node.strikes import Strike
from tidemill.wire.cell import Role

pytestmark = pytest.mark.timeout(2400)

KILLS = (
    sequence.kill_a_cell_in_rollout,
    sequence.kill_the_gateway,
    sequence.kill_a_cell_in_mid_step,
    sequence.kill_the_conductor,
    sequence.kill_the_cores_trainer,
)


@dataclass
class Lived:
    job: ClusterJob
    steps: int
    strikes: dict[str, Strike]
    evicted: str
    leaders: tuple[str, str]
    pause: Pause
    outage: Outage


@pytest.fixture(scope="module")
def lived(cluster: Cluster, installed: str) -> Lived:
    job = ClusterJob(cluster, installed, "tiny")
    job.submit(manifest())
    sequence.start(job)
    strikes = {strike.point: strike for strike in (kill(job) for kill in KILLS)}
    evicted = sequence.evict_a_cell(job)
    leaders = sequence.kill_the_leader(job)
    pause = sequence.suspend_and_resume(job)
    outage = sequence.without_api_server_and_operators(job)
    sequence.restart_etcd(job)
    sequence.stop_and_start_a_node(job)
    return Lived(job, sequence.finish(job), strikes, evicted, leaders, pause, outage)


def test_its_stores_are_sound(lived: Lived) -> None:
    sound.no_execution_is_lost_and_none_counts_twice(lived.job)
    sound.every_step_is_committed_once_and_holds_every_micro_step_once(lived.job, lived.steps)
    sound.every_engine_loaded_exactly_what_was_published(lived.job)
    sound.no_epoch_was_acknowledged_with_two_roles(lived.job)


def test_what_a_killed_trainer_held_was_computed_again(lived: Lived) -> None:
    final = {row["lease"] for row in lived.job.query("SELECT lease FROM microsteps")}
    for point in ("cell in mid-step", "core's trainer in mid-step"):
        assert not final & set(lived.strikes[point].facts), point


def test_without_api_server_and_operators_cells_flip_on(lived: Lived) -> None:
    assert lived.outage.bursts >= BURSTS_WITHOUT_API_SERVER
    assert Counter(lived.outage.flips).keys() == {Role.TRAINING, Role.ROLLOUT}


def test_a_cell_that_is_evicted_hands_over_before_it_ends(lived: Lived) -> None:
    assert lived.evicted == "Leaving"


def test_another_operator_leads_when_the_leader_is_killed(lived: Lived) -> None:
    before, after = lived.leaders
    assert before != after


def test_a_job_that_is_resumed_goes_on_at_the_same_step(lived: Lived) -> None:
    assert lived.pause.steps_after[0] == lived.pause.step + 1
