"""What of an object is right, where some of it is wrong: rules between fields are then told too, for the fields that can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo


def right_part[M: BaseModel](model: type[M], document: dict[str, Any]) -> M:
    """`document` as a `model` that lacks what is wrong or missing: reading that raises AttributeError."""
    made = model.model_construct()
    made.__dict__.clear()
    made.__dict__.update(_values(model, document))
    return made


def _values(model: type[BaseModel], document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key not in document:
            if not field.is_required():
                yield name, field.get_default(call_default_factory=True)
            continue
        try:
            yield name, _read(field, document[key])
        except ValidationError:
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel) and isinstance(document[key], dict):
                yield name, right_part(field.annotation, document[key])


def _read(field: FieldInfo, value: Any) -> Any:
    return TypeAdapter(field.rebuild_annotation()).validate_json(json.dumps(value), strict=True)
