"""The class of a leaf: which of an execution's branches are trained first."""

from __future__ import annotations

from enum import IntEnum

from tidemill.trajectory.records import Turn


class LeafClass(IntEnum):
    """In the order in which they are drawn. Who made a call, and whether for the summary of a compaction, the harness's preset has told."""

    MAIN = 0
    MAIN_SUMMARY = 1
    SUB_AGENT = 2
    SUB_AGENT_SUMMARY = 3


def leaf_class(leaf: Turn) -> LeafClass:
    if leaf.agent:
        return LeafClass.SUB_AGENT_SUMMARY if leaf.summary else LeafClass.SUB_AGENT
    return LeafClass.MAIN_SUMMARY if leaf.summary else LeafClass.MAIN
