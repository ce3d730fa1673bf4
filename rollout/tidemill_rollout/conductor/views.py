"""What people are shown of the store: executions with the reason why their group is not ready."""

from __future__ import annotations

from collections import defaultdict

from tidemill.wire.conductor import ExecutionView
from tidemill_rollout.conductor.store import Database


def executions_of(db: Database, now: float) -> tuple[ExecutionView, ...]:
    """All executions, in the order of dispatch. The age is the time since it first started, up to its end."""
    rows = db.execute(
        "SELECT e.*, g.task, g.state AS group_state, g.reason AS group_reason, g.step FROM executions e "
        "JOIN groups g ON g.id = e.group_id ORDER BY e.group_id, e.rowid"
    ).fetchall()
    unfinished: dict[int, list[str]] = defaultdict(list)
    for row in rows:
        if row["state"] not in ("Scored", "Dropped"):
            unfinished[row["group_id"]].append(f"{row['id']} {row['state']}")
    views = []
    for row in rows:
        if row["group_state"] == "Open":
            group = f"group {row['group_id']} waits for {', '.join(unfinished[row['group_id']])}"
        else:
            group = f"group {row['group_id']} is {row['group_state']}"
            group += f" (step {row['step'] + 1})" if row["step"] is not None else f" ({row['group_reason']})" if row["group_reason"] else ""
        begun = row["created"] if row["started"] is None else row["started"]
        views.append(
            ExecutionView(
                id=row["id"],
                group=row["group_id"],
                task=row["task"],
                state=row["state"],
                attempt=row["attempt"],
                age_seconds=(now if row["ended"] is None else row["ended"]) - begun,
                score=row["score"],
                reason=f"{row['reason']}; {group}" if row["reason"] else group,
            )
        )
    return tuple(views)
