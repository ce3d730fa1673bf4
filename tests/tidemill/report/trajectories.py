"""One execution with all that can happen to it: a retry, an edit, a compaction, sub-agents, a call that moved, one that was cut."""

from __future__ import annotations

from tidemill.trajectory.records import FORMAT_VERSION, Judgement, Piece, Trajectory, Turn


def turn(name: str, parent: str, given: tuple[int, ...], agent: str = "", of: str = "", summary: bool = False, *pieces: Piece) -> Turn:
    sampled = pieces or (Piece("cell-0", (7, 8), (-0.5, -0.25), (3, 3)),)
    roles = ("tool",) if parent else ("system", "user")
    return Turn(name, "g1-0", 1, parent, agent, given, sampled, "stop", 1.0, 3.5, "messages", of, summary, given_by=roles)


TURNS = (
    turn("t1", "", (1, 2, 3)),
    turn("t2", "t1", (4,), "", "", False, Piece("cell-0", (5,), (-0.5,), (3,)), Piece("cell-1", (6,), (-0.5,), (4,))),
    turn("s1", "", (9, 9), "look<up>"),
    turn("s2", "", (9,), "deeper", "look<up>"),
    turn("r2", "t1", (4,)),
    turn("e2", "t1", (5,)),
    turn("c1", "t1", (4, 4), "", "", True),
    turn("n1", "", (1, 6)),
    turn("n2", "n1", (7,)),
)
WHOLE = Trajectory(
    FORMAT_VERSION, "g1-0", 1, "fix", 1, 3, 0.5, TURNS, "ran into its time-out", Judgement(True, "tests ended", "executions/g1-0/1/work", "d", 2)
)
