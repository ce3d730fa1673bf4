"""Conversations in the shapes in which real harnesses were seen to have them: of each the whole tree, token by token."""

from random import Random

import pytest

from tests.rollout.gateway.corpus import chat_cases, claude_agents, claude_cases, claude_edits, codex_cases, mini_cases, peer_cases
from tests.rollout.gateway.corpus.case import Case
from tests.rollout.gateway.corpus.desk import Desk
from tests.rollout.gateway.corpus.notation import expected, recorded
from tidemill.trajectory.paths import sequences_of
from tidemill.trajectory.tree import grow

KINDS = (claude_cases, claude_edits, claude_agents, mini_cases, chat_cases, codex_cases, peer_cases)
CASES = [case for kind in KINDS for case in kind.cases]


@pytest.mark.asyncio(loop_scope="package")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_tree_of(one_desk: Desk, case: Case) -> None:
    await one_desk.begin(f"c{CASES.index(case)}", case.harness)
    await case.play(one_desk)
    turns = await one_desk.end()
    assert recorded(turns) == expected(case.tree)
    sequences = sequences_of(turns, 1.0, 1, len(turns), Random(0))
    assert sum(s.trained_tokens for s in sequences) == sum(turn.sampled for turn in turns), "each sampled token is trained once"
    assert len(sequences) <= len(grow(turns).leaves), "a conversation of eight turns is one sample, not eight (slime#2288)"


def test_the_corpus_is_large_and_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 80
    assert {case.harness for case in CASES} == {"claude-code", "codex", "mini-swe-agent", "qwen-code", "opencode", "generic"}
