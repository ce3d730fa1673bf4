"""The class of a leaf: which of an execution's branches are trained first."""

from __future__ import annotations

from enum import IntEnum

from tidemill.trajectory.records import Turn


class LeafClass(IntEnum):
    """In the order in which they are drawn. Summaries of a compaction are told apart by the harness's preset; none of ours compacts yet."""

    MAIN = 0
    MAIN_SUMMARY = 1
    SUB_AGENT = 2
    SUB_AGENT_SUMMARY = 3


def leaf_class(leaf: Turn) -> LeafClass:
    return LeafClass.SUB_AGENT if leaf.agent else LeafClass.MAIN
