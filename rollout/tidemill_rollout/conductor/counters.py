"""Counts of what leaves no other trace in the store. Part of the transaction in which it happens, so they are exact and outlive restarts."""

from __future__ import annotations

from tidemill_rollout.conductor.store import Database


def add(db: Database, name: str, number: int) -> None:
    if number:
        sql = "INSERT INTO counters (name, number) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET number = number + excluded.number"
        db.execute(sql, (name, number))


def read(db: Database) -> dict[str, int]:
    return dict(db.execute("SELECT name, number FROM counters").fetchall())
