"""Why a turn stands where it stands: what the harness did between two calls, told from the records alone."""

from __future__ import annotations

import hashlib
from enum import StrEnum

from tidemill.trajectory.tree import Node, Tree


class Origin(StrEnum):
    START = "start"  # the main agent's first call
    GOES_ON = "goes on"
    SUB_AGENT = "sub-agent"  # its first call
    SUMMARY = "summary"  # asked for, to go on from
    COMPACTED = "compacted"  # the first call after such a summary
    RETRY = "retry"  # the same was asked again
    EDITED = "edited"  # an earlier message was changed, dropped or moved


def origins(tree: Tree) -> dict[str, Origin]:
    """By turn id."""
    found: dict[str, Origin] = {}
    last: dict[str, Node] = {}  # of each agent
    asked: set[tuple[str, str, bytes]] = set()  # parent, agent, digest of what was given
    continued: set[tuple[str, str]] = set()  # parent, agent
    for name, node in tree.nodes.items():
        turn = node.turn
        here = (turn.parent, turn.agent)
        question = (*here, hashlib.blake2b(bytes(turn.context_ids), digest_size=16).digest())
        found[name] = _origin(node, last.get(turn.agent), again=question in asked, continued=here in continued)
        asked.add(question)
        last[turn.agent] = node
        if not turn.summary:
            continued.add(here)
    return found


def _origin(node: Node, last: Node | None, *, again: bool, continued: bool) -> Origin:
    turn = node.turn
    if turn.summary:
        return Origin.SUMMARY
    if last is None:
        return Origin.SUB_AGENT if turn.agent else Origin.START
    if again:
        return Origin.RETRY
    if node.parent is not None and node.parent.turn.agent == turn.agent and not continued:
        return Origin.GOES_ON
    return Origin.COMPACTED if last.turn.summary else Origin.EDITED
