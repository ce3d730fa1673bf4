"""A fragment of a pod template: what clusters add to the pods that the operator builds. Free form below `metadata` and `spec`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field


def _has_metadata_and_spec(template: dict[str, Any]) -> dict[str, Any]:
    for name, value in template.items():
        if name not in ("metadata", "spec"):
            raise ValueError(f"a pod template has metadata and spec, not {name[:80]!r}; what belongs to pods goes into spec")
        if not isinstance(value, dict):
            raise ValueError(f"{name} is a {type(value).__name__}, expected a mapping with the fields that pods have there")
    return template


# No type in these two: a rule compares two objects whose fields it does not know by the fields of the old one alone, so a renamed field would
# pass for no change. Values without a type it compares whole.
_ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}
_PROPERTIES = {
    "metadata": {"description": "Labels and annotations of the pods.", **_ANYTHING},
    "spec": {"description": "Fields of the pods' spec; lists are merged by name.", **_ANYTHING},
}
Template = Annotated[dict[str, Any], AfterValidator(_has_metadata_and_spec), Field(json_schema_extra={"properties": _PROPERTIES})]
