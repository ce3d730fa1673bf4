"""Which of the fields that we set are still ours. The API server keeps for each manager the fields it was the last to set (managedFields): what
we set and no longer own, somebody else has changed or removed, however long ago that was and whatever the value is now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from tidemill_operator.names import MANAGER, Manifest

LONGEST_LIST = 5


@dataclass(frozen=True, slots=True)
class Managed:
    """Fields of one object, as the server writes sets of them: ours, and everybody else's apart from the status."""

    ours: Manifest
    others: tuple[tuple[str, Manifest], ...] = ()  # manager and fields

    @property
    def managers(self) -> str:
        return ", ".join(sorted({name for name, _ in self.others}))


def managed(meta: Manifest) -> Managed | None:
    """None where the server tells of no managers at all."""
    entries = meta.get("managedFields")
    if not entries:
        return None
    ours = next((e.get("fieldsV1") or {} for e in entries if (e.get("manager"), e.get("operation")) == (MANAGER, "Apply")), {})
    foreign = ((e.get("manager", ""), e.get("fieldsV1") or {}) for e in entries if not e.get("subresource"))
    return Managed(ours, tuple((name, fields) for name, fields in foreign if name not in ("", MANAGER)))


def taken(wanted: Manifest, fields: Managed) -> tuple[str, ...]:
    """Paths that `wanted`, an object as we apply it, sets and that are not ours."""
    identity = ("name", "namespace", "uid")  # these have no managers
    parts = {key: value for key, value in wanted.items() if key not in ("apiVersion", "kind")}
    parts["metadata"] = {key: value for key, value in wanted["metadata"].items() if key not in identity}
    return tuple(_lacking(parts, fields.ours, [others for _, others in fields.others], ""))


def told(paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - LONGEST_LIST} more" if len(paths) > LONGEST_LIST else ""
    return ", ".join(paths[:LONGEST_LIST]) + more


def _lacking(wanted: Manifest, fields: Manifest, foreign: list[Manifest], path: str) -> Iterator[str]:
    for key, value in wanted.items():
        where, field = f"{path}.{key}" if path else key, f"f:{key}"
        theirs = [others[field] for others in foreign if field in others]
        if field not in fields:
            if theirs or value not in ({}, []):  # of what is empty nobody may be a manager
                yield where
        elif not fields[field]:
            continue  # a value, or a list or mapping that is owned as a whole
        elif isinstance(value, dict):
            yield from _lacking(value, fields[field], theirs, where)
        elif isinstance(value, list):
            yield from _lacking_of_list(value, fields[field], where)


def _lacking_of_list(wanted: list[Manifest], fields: Manifest, path: str) -> Iterator[str]:
    """A list whose entries have managers of their own, by their keys. A key that we leave out has its default."""
    known = [(json.loads(name[2:]), inner) for name, inner in fields.items() if name.startswith("k:")]
    for item in wanted:
        for keys, inner in known:
            if all(item.get(key, value) == value for key, value in keys.items()):
                yield from _lacking(item, inner, [], f"{path}[{','.join(map(str, keys.values()))}]") if inner else ()
                break
        else:
            yield f"{path}[{item.get('name', '')}]"
