from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.operator.world import World, cell_tide, manifest, state, tide
from tidemill.policy.outlook import Outlook
from tidemill.wire.cell import Role
from tidemill.wire.conductor import JobPhase, Tide
from tidemill_operator.flips import Ask, Carry, Constrain, FlipAction, Hold, plan_flip
from tidemill_operator.observed import Cell

OURS = 1


@cache
def made() -> tuple[Cell, ...]:
    world = World(manifest())
    world.settle()
    return world.caches.cells(world.key)


def cells(**epochs: int) -> dict[str, Cell]:
    names = {"cell_0": "cell-0", "cell_1": "cell-1"}
    found = {cell.name: cell for cell in made()}
    for key, name in names.items():
        spec = found[name].spec.model_copy(update={"epoch": epochs.get(key, 1)})
        found[name] = replace(found[name], spec=spec)
    return found


def decided(told: Tide, known: dict[str, Cell], **more: Any) -> tuple[FlipAction, ...]:
    values = {"suspend": False, "async_training_cells": 1, "delivered": {}, "now": 100.0, **more}
    return plan_flip(told, known, values.pop("term", OURS), **values)


def test_below_the_waterlevel_the_core_is_asked_for_and_above_it_nothing_is() -> None:
    assert decided(tide(terminated=0), cells()) == (Ask("cell-0"),)
    assert decided(tide(dispatched=9), cells()) == ()


def test_a_satellite_that_the_rule_sends_back_in_mid_burst_is_asked_for_by_name() -> None:
    training = (cell_tide("cell-0", Role.TRAINING, 2), cell_tide("cell-1", Role.TRAINING, 2))
    outlook = Outlook(pending=3, idle_cells=("cell-1",), next_ready_seconds=60.0, flip_seconds=3.0, return_seconds=2.0)
    told = msgspec.structs.replace(tide(dispatched=20, cells=training), extensions=("EarlyReturn",), outlook=outlook)
    assert decided(told, cells(cell_0=2, cell_1=2)) == (Ask("cell-1", Role.ROLLOUT),)
    assert decided(msgspec.structs.replace(told, extensions=()), cells(cell_0=2, cell_1=2)) == ()


def test_without_our_term_nothing_is_asked_for_but_grants_are_still_carried_on() -> None:
    training = cell_tide("cell-0", Role.TRAINING, 2, state=state("cell-0"))
    told = tide(cells=(training, cell_tide("cell-1")), term=7)
    assert decided(told, cells()) == (Carry("cell-0", Role.TRAINING, 2, True, "http://cell-0:7002"),)


def test_a_grant_made_by_the_conductor_itself_is_mirrored_and_not_delivered_when_it_is_acknowledged() -> None:
    told = tide(cells=(cell_tide("cell-0", Role.TRAINING, 4), cell_tide("cell-1")), dispatched=99)
    assert decided(told, cells()) == (Carry("cell-0", Role.TRAINING, 4, True, ""),)


def test_what_a_former_operator_wrote_but_did_not_deliver_is_delivered() -> None:
    told = tide(cells=(cell_tide("cell-0", Role.TRAINING, 2, state=state("cell-0")), cell_tide("cell-1")))
    assert decided(told, cells(cell_0=2)) == (Carry("cell-0", Role.TRAINING, 2, False, "http://cell-0:7002"),)


def test_an_order_is_repeated_only_after_a_while() -> None:
    told = tide(cells=(cell_tide("cell-0", Role.TRAINING, 2, state=state("cell-0")), cell_tide("cell-1")))
    assert decided(told, cells(cell_0=2), delivered={("cell-0", 2): 98.0}) == ()
    assert decided(told, cells(cell_0=2), delivered={("cell-0", 2): 90.0})


def test_a_spec_ahead_of_the_reading_is_never_taken_back() -> None:
    assert decided(tide(dispatched=99), cells(cell_0=9)) == ()


def test_pins_and_cordons_are_told_once() -> None:
    known = cells()
    known["cell-1"] = replace(known["cell-1"], spec=known["cell-1"].spec.model_copy(update={"cordon": True}))
    told = tide(dispatched=99)
    assert decided(told, known) == (Constrain("cell-1", None, True),)
    heard = msgspec.structs.replace(told, cells=(told.cells[0], msgspec.structs.replace(told.cells[1], cordoned=True)))
    assert decided(heard, known) == ()


def test_a_job_to_be_suspended_is_held_and_nothing_flips_meanwhile() -> None:
    assert decided(tide(), cells(), suspend=True) == (Hold(resume=False),)
    assert decided(tide(suspended=True), cells(), suspend=True) == ()
    assert decided(tide(suspended=True), cells()) == (Hold(resume=True),)


def test_a_job_that_has_ended_is_left_alone() -> None:
    assert decided(tide(phase=JobPhase.SUCCEEDED), cells()) == ()


@given(granted=st.integers(0, 5), written=st.integers(0, 5), acknowledged=st.integers(0, 5), role=st.sampled_from(Role))
def test_an_epoch_is_written_only_forwards_and_delivered_only_when_it_is_the_granted_one(
    granted: int, written: int, acknowledged: int, role: Role
) -> None:
    told = tide(cells=(cell_tide("cell-0", role, granted, state=state("cell-0", epoch=acknowledged)), cell_tide("cell-1")), dispatched=99)
    carries = [a for a in decided(told, cells(cell_0=written)) if isinstance(a, Carry)]
    for carry in carries:
        assert (carry.epoch, carry.role) == (granted, role)
        assert carry.write == (written < granted)
        assert not carry.url or acknowledged < granted
    assert bool(carries) == (written <= granted and (written < granted or acknowledged < granted))
