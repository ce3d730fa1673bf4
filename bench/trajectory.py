"""One long execution, from records to what is trained: seconds and memory of the tree, beside the usual way, one whole list a branch.

    .venv/bin/python bench/trajectory.py [--tokens 1000000] [--calls 500] [--branches 40] [--json]

The execution is made up: a main agent that is compacted now and then, sub-agents, retries and edits; a third of the tokens is sampled.
Its tokens' own size is 12 bytes each: id, log-probability, version, 32 bits each. Memory is what Python allocated at most (tracemalloc),
measured in a second run, because measuring it costs time.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import tracemalloc
from array import array
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from tidemill.trajectory.packing import pack
from tidemill.trajectory.paths import sequences_of
from tidemill.trajectory.records import Piece, Turn
from tidemill.trajectory.tree import grow

BYTES_PER_TOKEN = 12
J_MAX = 5
SAMPLED_SHARE = 1 / 3
LONGEST_PATH = 120_000
"""Tokens, then the harness compacts its history."""

Raw = tuple[str, str, str, bool, array[int], array[int], array[float], array[int]]
"""id, parent, agent, summary, given, sampled, log-probabilities, versions: as they come out of an engine."""


def execution(tokens: int, calls: int, branches: int, random: Random) -> list[Raw]:
    """Calls in the order in which they end. Most go on; the others begin a branch, so that there are about `branches` leaves."""
    made: list[Raw] = []
    ends = {"": 0}  # tokens up to the end of each turn
    heads: dict[str, str] = {"": ""}  # the last turn of each agent
    for number in range(calls):
        agent = random.choice(list(heads))
        parent, summary = heads[agent], False
        if number and random.random() < (branches - 1) / calls:
            kind = random.random()
            if kind < 0.4:
                agent, parent = f"agent-{number}", ""
            elif kind < 0.8 and parent:
                parent = next(raw[1] for raw in reversed(made) if raw[0] == parent)  # a retry, or an edit of the last message
        if ends[parent] > LONGEST_PATH:
            summary, parent = True, next(raw[1] for raw in reversed(made) if raw[0] == parent)
        size = max(2, round(tokens / calls * random.uniform(0.5, 1.5)))
        sampled = round(size * SAMPLED_SHARE)
        name = f"t{number:020x}"
        columns = (_numbers(random, size - sampled), _numbers(random, sampled), array("f", [-random.random() for _ in range(sampled)]))
        made.append((name, parent, agent, summary, *columns, array("i", [number // 100]) * sampled))
        ends[name] = ends[parent] + size
        heads[agent] = "" if summary else name
    return made


def _numbers(random: Random, count: int) -> array[int]:
    return array("i", random.choices(range(150_000), k=count))


def ours(raw: list[Raw]) -> dict[str, float]:
    clock = _Clock()
    rows = [msgspec.msgpack.encode(_turn(one)) for one in raw]  # as journal and store keep them
    clock.lap("insert")
    rows.reverse()
    turns = []
    while rows:
        turns.append(msgspec.msgpack.decode(rows.pop(), type=Turn))
    leaves = len(grow(turns).leaves)
    clock.lap("read and grow")
    sequences = sequences_of(turns, 1.0, 1, J_MAX, Random(1))
    clock.lap("sample paths")
    del turns  # the conductor goes on with the sequences
    packed = pack([sequence.token_ids for sequence in sequences])
    clock.lap("pack")
    return {
        **clock.laps,
        "branches": leaves,
        "path tokens": sum(len(s.token_ids) for s in sequences),
        "packed tokens": len(packed.token_ids),
    }


def _turn(raw: Raw) -> Turn:
    name, parent, agent, summary, given, sampled, logprobs, versions = raw
    piece = Piece("cell-0", sampled, logprobs, versions)
    return Turn(name, "g1-0", 1, parent, agent, given, (piece,), "stop", 0.0, 0.0, "messages", summary=summary)


def naive(raw: list[Raw]) -> dict[str, float]:
    """Each branch as lists of all its tokens; the sampler recounts what is left; what is shared is found by comparing, and not packed."""
    clock = _Clock()
    branches: dict[str, list[tuple[int, float, int, bool, str]]] = {}
    by_id = {one[0]: one for one in raw}
    for name in by_id.keys() - {one[1] for one in raw}:
        path = []
        at = name
        while at:
            path.append(by_id[at])
            at = by_id[at][1]
        tokens: list[tuple[int, float, int, bool, str]] = []
        for turn, _, _, _, given, sampled, logprobs, versions in reversed(path):
            tokens += [(token, 0.0, 0, False, turn) for token in given]
            tokens += [(token, logprob, version, True, turn) for token, logprob, version in zip(sampled, logprobs, versions, strict=True)]
        branches[name] = tokens
    clock.lap("insert")
    encoded = msgspec.msgpack.encode(branches)
    branches = msgspec.msgpack.decode(encoded, type=dict[str, list[tuple[int, float, int, bool, str]]])
    clock.lap("read and grow")
    taken: set[str] = set()
    random = Random(1)
    for _ in range(J_MAX):
        left = [sum(token[3] and token[4] not in taken for token in tokens) for tokens in branches.values()]
        if not any(left):
            break
        (chosen,) = random.choices(list(branches), weights=left)
        taken |= {token[4] for token in branches[chosen]}
    clock.lap("sample paths")
    return {**clock.laps, "path tokens": sum(map(len, branches.values()))}


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[f"{name} s"] = now - self._last
        self._last = now


def measured(way: Callable[[list[Raw]], dict[str, float]], raw: list[Raw], own_bytes: int) -> dict[str, float]:
    gc.collect()
    figures = way(raw)
    figures["seconds"] = sum(value for name, value in figures.items() if name.endswith(" s"))
    gc.collect()
    tracemalloc.start()
    way(raw)
    figures["peak MB"] = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return figures | {"times own size": figures["peak MB"] * 1e6 / own_bytes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--branches", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    raw = execution(options.tokens, options.calls, options.branches, Random(0))
    tokens = sum(len(one[4]) + len(one[5]) for one in raw)
    own = tokens * BYTES_PER_TOKEN
    result: dict[str, Any] = {"tokens": tokens, "calls": len(raw), "own MB": own / 1e6}
    result |= {"ours": measured(ours, raw, own), "naive": measured(naive, raw, own)}
    result["ratio"] = {name: result["naive"][name] / result["ours"][name] for name in ("seconds", "peak MB")}
    if options.json:
        print(json.dumps(result))
        return 0
    print(f"{tokens} tokens in {len(raw)} calls, {result['ours']['branches']:.0f} branches; their own size is {own / 1e6:.1f} MB")
    for way in ("ours", "naive", "ratio"):
        print(f"{way:6}", "  ".join(f"{name} {value:.4g}" for name, value in result[way].items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
