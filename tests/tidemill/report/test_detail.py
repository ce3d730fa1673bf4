"""The lower half of the live view."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.tidemill.report.test_page import events
from tidemill.report.detail import BARS, Detail, Measured, details, spark
from tidemill.report.recent import COLUMNS, FLIPS, WINDOW_SECONDS, Recent, Sighting, Sightings, roles
from tidemill.telemetry.events import AnyEvent, FlipEnded, JobEnded, JobStarted, RoleAcknowledged, TideRead
from tidemill.telemetry.roles import RoleSpan
from tidemill.wire.cell import Role


def drawn(detail: Detail) -> str:
    out = io.StringIO()
    Console(file=out, width=120, color_system=None).print(details(detail))
    return out.getvalue()


def recent(*told: AnyEvent) -> Recent:
    made = Recent()
    for event in told:
        made.take(event)
    return made


def started(time: float = 0.0) -> JobStarted:
    return JobStarted(time=time, job="tiny", mode="Elastic", steps=4, cells=("cell-0", "cell-1"), capacities=(4, 4), cores_shared=False)


def tide(time: float, level: int) -> TideRead:
    return TideRead(time=time, dispatched=level, started=0, terminated=0, rollout_capacity=8, ready_groups=0, step=0, burst=1)


def test_each_column_shows_what_a_cell_did_in_most_of_it() -> None:
    spans = [RoleSpan("cell-0", "Rollout", 0.0, 6.0), RoleSpan("cell-0", "Flipping", 6.0, 9.0), RoleSpan("cell-0", "Training", 9.0, 30.0)]
    assert roles(spans, [0.0, 10.0, 20.0, 30.0, 40.0]) == ("Rollout", "Training", "Training", "")


def test_strips_show_the_last_minutes_of_a_long_job_and_all_of_a_short_one() -> None:
    short = recent(started(), tide(1.0, 5), RoleAcknowledged(time=2.0, cell="cell-0", role=Role.ROLLOUT, epoch=1)).strips(60.0)
    assert (short.seconds, len(short.waterlevel), short.waterlevel[-1]) == (60.0, COLUMNS, 5)
    assert (short.roles["cell-0"][0], short.roles["cell-0"][-1]) == ("", "Rollout")
    assert set(short.roles["cell-1"]) == {""}
    many = recent(started(), *(tide(float(second), second % 7) for second in range(20_000)))
    assert many.strips(20_000.0).seconds == WINDOW_SECONDS
    assert len(many._tides) <= WINDOW_SECONDS + 2
    over = recent(started(), tide(1.0, 5), JobEnded(time=30.0, phase="Succeeded"))
    assert over.strips(1e9).seconds == 30.0, "time stands still when the job has ended"


def test_readings_become_strips_too_as_far_back_as_anybody_watched() -> None:
    seen = Sightings()
    for second in range(61):
        seen.take(Sighting(float(second), {"cell-0": "Rollout" if second < 30 else "Training"}, 60 - second, 8, 0.5 if second < 50 else 0.75))
    strips = seen.strips(())
    assert strips.seconds == 60.0
    assert (strips.roles["cell-0"][0], strips.roles["cell-0"][-1]) == ("Rollout", "Training")
    assert abs(strips.roles["cell-0"].count("Rollout") - COLUMNS / 2) <= 1
    assert (strips.waterlevel[-1], strips.capacity[-1], strips.scores) == (0, 8, (0.5, 0.75))
    seen.take(Sighting(10_000.0, {"cell-0": "Training"}, 1, 8, 0.75))
    assert len(seen._seen) == 2, "what is older is forgotten, but for the one that still stood at the beginning"


def test_the_newest_flips_are_shown_first() -> None:
    told = [
        FlipEnded(time=float(n), cell=f"cell-{n}", to=Role.TRAINING, epoch=n, seconds=1.0, phases={"drain": 1.0}, calls_in_flight=0) for n in range(9)
    ]
    assert [flip.cell for flip in recent(started(), *told).strips(10.0).flips] == ["cell-8", "cell-7", "cell-6", "cell-5"]
    assert FLIPS == 4


@given(st.lists(st.none() | st.floats(-10, 10), max_size=60), st.floats(-5, 0), st.floats(0, 5))
def test_a_spark_has_one_character_a_value_and_higher_is_never_lower(values: list[float | None], low: float, high: float) -> None:
    shown = spark(values, low, high)
    assert len(shown) == len(values)
    known = sorted((value, BARS.index(bar)) for value, bar in zip(values, shown, strict=True) if value is not None)
    assert [bar for _, bar in known] == sorted(bar for _, bar in known)


def test_everything_that_is_known_is_said_and_nothing_else() -> None:
    told = recent(*events())
    bare = drawn(Detail(told.strips(1e9)))
    for part in ("waterlevel", "capacity", "score of", "last flips", "drain", "█"):
        assert part in bare
    assert "idle" not in bare
    assert "gateway" not in bare
    measured = Measured({"cell-0": "Rollout"}, {"cell-0": {"NoWork": 0.61, "Flipping": 0.001}, "cell-1": {}}, 2.5, 40.0, 3, 0, 0)
    full = drawn(Detail(told.strips(1e9), measured))
    assert "cell-0   61%: 61% no work" in full
    assert "flipping" not in full, "a thousandth is not worth a word"
    assert "gateway: 2.5 calls/s, 40 tokens/s, 3 under way\n" in full
