"""Never worse? The published rule and the recommended default against the best baseline, over seeded random jobs.

    .venv/bin/python bench/random_traces.py [--jobs 300] [--first 0] [--extensions A,B] [--worst 5] [--refill] [--flips FACTOR] [--each]

For every job: Colocate, and Async with every split, of which the fastest is kept with hindsight; Elastic by the published rule; Elastic with the
default's extensions; and the bound. All of them have the same dispatch, prefetch, streaming and staleness. Ratios are Elastic's hours over the
better baseline's: below 1 Elastic wins. A loss is a job that takes longer than the better baseline by more than one flip and its return.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import mean, median

from tidemill.policy.burst import Plan
from tidemill.policy.decide import Mode
from tidemill.policy.extensions import DEFAULT, Extension
from tidemill.simulate.bound import makespan_bound
from tidemill.simulate.costs import Costs
from tidemill.simulate.durations import Durations
from tidemill.simulate.job import Job
from tidemill.simulate.setup import Setup
from tidemill.simulate.traces import Trace

TIGHT = 1.05
TRAINING_BOUND = 0.5
"""Training that takes more of the cells' time than this, of what serving takes, is what most losses have in common."""


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    setup: Setup
    trace: Trace
    costs: Costs
    training_share: float  # cell time of training over cell time of serving

    def __str__(self) -> str:
        how, plan = self.setup, self.setup.plan
        return (
            f"seed {self.seed}: {how.cells} cells of {how.capacity} + {how.standalone}, B {plan.groups_per_step}, N {how.rollouts_per_group}, "
            f"mu {plan.steps_per_burst}, phi {plan.prefetch_steps}, {plan.steps} steps, training {self.training_share:.2f} of serving, "
            f"flip {self.costs.flip_to_training_seconds:.2g} s of {self.trace.mean_seconds:.0f} s"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    scenario: Scenario
    published: float
    default: float
    colocate: float
    asynchronous: float
    split: int
    bound: float

    @property
    def baseline(self) -> float:
        return min(self.colocate, self.asynchronous)

    @property
    def allowance(self) -> float:
        return self.scenario.costs.flip_to_training_seconds + self.scenario.costs.flip_to_rollout_seconds

    def loses(self, seconds: float) -> bool:
        return seconds > self.baseline + self.allowance + 1e-6


def scenario(seed: int) -> Scenario:
    """Light and heavy tails, time-outs or none, rollout-bound and training-bound, 2 to 16 cells, with and without a standalone pool."""
    random = Random(seed)
    cells, standalone = random.randint(2, 16), random.choice((0, 0, 0, 1, 2))
    mu, groups, size = random.randint(1, 3), random.randint(2, 6), random.randint(2, 6)
    phi = random.randint(0, 2 * mu)
    unfinished = (phi + mu) * groups * size
    capacity = max(1, round(unfinished * random.uniform(0.6, 1.5) / (cells + standalone)))
    plan = Plan(groups, mu, phi, steps=mu * random.randint(4, 8))
    setup = Setup(Mode.ELASTIC, plan, size, cells, capacity, standalone)
    usual, share = 1000.0, 10 ** random.uniform(-1.3, 0.3)
    limit = random.choice((float("inf"), 2 * usual, 4 * usual))
    drawn = Durations(usual, random.choice((0.2, 0.5, 0.9, 1.4)), random.uniform(0, 0.7), limit, tokens_per_execution=1000.0)
    trace = drawn.draw(setup.groups, size, seed)
    flip = usual * 10 ** random.uniform(-3.5, -1.5)
    costs = Costs(
        train_tokens_per_second=1000.0 / (share * trace.mean_seconds / capacity),
        optimizer_step_seconds=usual * random.uniform(0, 0.02),
        publish_seconds=usual * random.uniform(0, 0.02),
        flip_to_training_seconds=flip,
        flip_to_rollout_seconds=flip * 0.4,
    )
    return Scenario(seed, setup, trace, costs, share)


def varied(what: Scenario, refill: bool, flips: float) -> Scenario:
    how, costs = what.setup, what.costs
    if refill:
        how = replace(how, refill=True, max_staleness=how.bound + 1)
    to_training, to_rollout = costs.flip_to_training_seconds * flips, costs.flip_to_rollout_seconds * flips
    return replace(what, setup=how, costs=replace(costs, flip_to_training_seconds=to_training, flip_to_rollout_seconds=to_rollout))


def outcome(what: Scenario, extensions: frozenset[Extension] = DEFAULT) -> Outcome:
    def seconds(how: Setup) -> float:
        return Job(how, what.trace, what.costs).run().seconds

    how = what.setup
    splits = {n: seconds(replace(how, mode=Mode.ASYNC, async_training_cells=n)) for n in how.splits}
    best = min(splits, key=lambda n: splits[n])
    bound = makespan_bound(how, what.trace, what.costs)
    return Outcome(
        what, seconds(how), seconds(replace(how, extensions=extensions)), seconds(replace(how, mode=Mode.COLOCATE)), splits[best], best, bound
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="seed of the first job")
    parser.add_argument("--extensions", default=",".join(sorted(DEFAULT)), help="what is on in the default that is tried")
    parser.add_argument("--worst", type=int, default=5, help="how many of the worst jobs are shown")
    parser.add_argument("--refill", action="store_true", help="dispatch Refill for everybody, with one publication more")
    parser.add_argument("--flips", type=float, default=1.0, metavar="FACTOR", help="flips cost this much more")
    parser.add_argument("--each", action="store_true", help="every extension alone, over the published rule, and nothing else")
    options = parser.parse_args()
    extensions = frozenset(Extension(name) for name in options.extensions.split(",") if name)
    seeds = range(options.first, options.first + options.jobs)
    jobs = [varied(scenario(seed), options.refill, options.flips) for seed in seeds]
    if options.each:
        _print_each(jobs)
        return 0
    outcomes = [outcome(job, extensions) for job in jobs]
    print(f"{len(outcomes)} jobs; default: published rule + {', '.join(sorted(extensions)) or 'nothing'}")
    _print_rule("published rule", outcomes, [o.published for o in outcomes], options.worst)
    _print_rule("default", outcomes, [o.default for o in outcomes], options.worst)
    tight = [o for o in outcomes if min(o.baseline, o.published, o.default) < TIGHT * o.bound]
    reached = sum(o.default < TIGHT * o.bound for o in tight)
    print(f"\nthe bound is tight (somebody comes within 5%) on {len(tight)} jobs; the default does on {reached} of them")
    return 0


def _print_each(jobs: Sequence[Scenario]) -> None:
    def seconds(what: Scenario, extensions: frozenset[Extension]) -> float:
        return Job(replace(what.setup, extensions=extensions), what.trace, what.costs).run().seconds

    published = [seconds(job, frozenset()) for job in jobs]
    print(f"{len(jobs)} jobs; hours over the published rule's\n{'extension':28} {'mean':>7} {'best':>7} {'worst':>7} {'faster':>7} {'slower':>7}")
    for on in (*(frozenset({e}) for e in Extension), DEFAULT):
        ratios = [seconds(job, on) / before for job, before in zip(jobs, published, strict=True)]
        faster, slower = sum(r < 0.999 for r in ratios), sum(r > 1.001 for r in ratios)
        print(f"{' + '.join(sorted(on)):28} {mean(ratios):7.4f} {min(ratios):7.3f} {max(ratios):7.3f} {faster:7} {slower:7}")


def _print_rule(name: str, outcomes: Sequence[Outcome], seconds: Sequence[float], worst: int) -> None:
    both = list(zip(outcomes, seconds, strict=True))
    ratios = [s / o.baseline for o, s in both]
    losses = [(s / o.baseline, o) for o, s in both if o.loses(s)]
    print(f"\n{name}: hours over the better baseline's: mean {mean(ratios):.3f}, median {median(ratios):.3f}, worst {max(ratios):.3f}")
    colocate, asynchronous = mean(s / o.colocate for o, s in both), mean(s / o.asynchronous for o, s in both)
    print(f"  over Colocate's {colocate:.3f}, over the best Async split's {asynchronous:.3f} (means)")
    print(f"  losses beyond one flip and its return: {len(losses)} of {len(both)} ({len(losses) / len(both):.1%}), goal at most 5%")
    print(f"  over the bound: median {median(s / o.bound for o, s in both):.3f}, worst {max(s / o.bound for o, s in both):.3f}")
    if losses:
        asynchronous = sum(o.asynchronous < o.colocate for _, o in losses)
        heavy = sum(o.scenario.training_share > TRAINING_BOUND for _, o in losses)
        print(f"  of the losses {asynchronous} are to Async, {heavy} on jobs that train over {TRAINING_BOUND:.0%} as long as they serve")
    for ratio, o in sorted(losses, key=lambda loss: -loss[0])[:worst]:
        better = "Colocate" if o.colocate < o.asynchronous else f"Async with {o.split}"
        print(f"  {ratio:.3f} ({better} is better) {o.scenario}")


if __name__ == "__main__":
    sys.exit(main())
