"""The API explained to a terminal, as `kubectl explain` does, from the models' own descriptions."""

from __future__ import annotations

import difflib
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tidemill.api.gpucell import GPUCell
from tidemill.api.loading import model_at
from tidemill.api.rljob import RLJob


class UnknownPath(Exception):
    """There is no such field. The message names the nearest one."""


_KINDS: dict[str, type[BaseModel]] = {
    **dict.fromkeys(("rljob", "rljobs", "rlj"), RLJob),
    **dict.fromkeys(("gpucell", "gpucells", "gcell"), GPUCell),
}


def explain(path: str) -> str:
    """Text for `rljob`, `rljob.spec.schedule`, `gpucell.status`, ...

    Raises:
        UnknownPath: the path leads nowhere.
    """
    kind, *parts = path.strip(".").split(".")
    root = _KINDS.get(kind.lower())
    if root is None:
        raise UnknownPath(f"{path}: unknown kind {kind}; try rljob.spec or gpucell.spec")
    shown = root.__name__.lower()
    model: type[BaseModel] = root
    field: FieldInfo | None = None
    for depth, part in enumerate(parts):
        named = {f.alias or name: f for name, f in model.model_fields.items()}
        if part not in named:
            near = difflib.get_close_matches(part, list(named), n=1)
            raise UnknownPath(
                f"{shown}.{'.'.join(parts[: depth + 1])}: no such field; {f'did you mean {near[0]}?' if near else 'fields: ' + ', '.join(named)}"
            )
        field = named[part]
        inner = model_at(tuple(parts[: depth + 1]), root)
        if inner is None and depth + 1 < len(parts):
            raise UnknownPath(f"{shown}.{'.'.join(parts)}: {part} has no fields")
        model = inner or model
    title = ".".join([shown, *parts])
    if field is not None and model_at(tuple(parts), root) is None:
        return f"{title} <{kind_of(field.annotation)}>\n  {field.description}\n  {default_of(field)}\n"
    lines = [title + (f"\n  {field.description}" if field else f"\n  {(root.__doc__ or '').strip()}".rstrip()), "", "FIELDS"]
    for name, entry in model.model_fields.items():
        lines += [f"  {entry.alias or name} <{kind_of(entry.annotation)}> {default_of(entry)}".rstrip(), f"    {entry.description}"]
    return "\n".join(lines) + "\n"


def kind_of(annotation: Any) -> str:
    """A field's type in a word, or its allowed values."""
    if get_origin(annotation) is Literal:
        return " | ".join(str(v) for v in get_args(annotation))
    if isinstance(annotation, type):
        if issubclass(annotation, Enum):
            return " | ".join(m.value or '""' for m in annotation)
        return (
            "object"
            if issubclass(annotation, BaseModel)
            else {"int": "integer", "str": "string", "float": "number", "bool": "boolean"}.get(annotation.__name__, annotation.__name__)
        )
    if get_origin(annotation) is dict:
        return "map"
    if get_origin(annotation) is tuple:
        return "list"
    inner = [a for a in get_args(annotation) if a is not type(None)]
    return kind_of(inner[0]) if inner else str(annotation)


def default_of(field: FieldInfo) -> str:
    """`required`, `default: X`, or nothing where an empty value is the default."""
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, BaseModel) or field.default in ({}, (), None, ""):
        return ""
    return f"default: {field.default.value if isinstance(field.default, Enum) else field.default}"
