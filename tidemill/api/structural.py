"""From a pydantic model to the structural schema that a CustomResourceDefinition asks for: one tree, no references, nothing left open."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

# JSON Schema's words that Kubernetes has none for, or that say nothing there.
_DROPPED = ("title", "$defs", "$ref", "anyOf", "const", "prefixItems", "propertyNames", "additionalProperties", "default", "exclusiveMinimum")


def structural(model: type[BaseModel], *, defaults: bool) -> Schema:
    """The model's schema. Without `defaults` an absent field stays absent, as in a status that nobody has written yet."""
    whole = model.model_json_schema(by_alias=True)
    return _plain(whole, whole.get("$defs", {}), defaults)


def _plain(node: Schema, definitions: Schema, defaults: bool) -> Schema:
    node = _resolved(node, definitions)
    ordered = {"description": None, "type": None, **node}
    made: Schema = {key: ordered[key] for key in ordered if key in node and key not in _DROPPED}
    if "const" in node:
        made["enum"] = [node["const"]]
    if "exclusiveMinimum" in node:
        made |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
    if "properties" in node:
        made["properties"] = {name: _plain(inner, definitions, defaults) for name, inner in node["properties"].items()}
    elif isinstance(node.get("additionalProperties"), dict):
        made["additionalProperties"] = _plain(node["additionalProperties"], definitions, defaults)
    if node.get("type") == "array":
        made["items"] = _plain(_items(node), definitions, defaults)
        made.setdefault("x-kubernetes-list-type", "atomic")
    if node.get("x-kubernetes-int-or-string"):
        del made["type"]
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if defaults and node.get("default") is not None:
        made["default"] = _least(node["default"], made)
    return made


def _resolved(node: Schema, definitions: Schema) -> Schema:
    """The node with what it refers to. `null` needs no word: the server drops a null where no field may be null, as if it were absent."""
    if "anyOf" in node:
        (only,) = (choice for choice in node["anyOf"] if choice.get("type") != "null")
        return _resolved({**only, **{key: value for key, value in node.items() if key != "anyOf"}}, definitions)
    if "$ref" in node:
        return {**definitions[node["$ref"].rsplit("/", 1)[1]], **node}
    return node


def _items(node: Schema) -> Schema:
    """A tuple of equals is a list of fixed length."""
    if "prefixItems" not in node:
        return dict(node["items"])
    first, *others = node["prefixItems"]
    assert all(other == first for other in others), f"{node}: a list has one kind of entry"
    return dict(first)


def _least(default: Any, schema: Schema) -> Any:
    """Without what the fields' own defaults will add: mostly `{}`."""
    if not isinstance(default, dict):
        return default
    inner = schema.get("properties", {})
    shorter = {name: _least(value, inner.get(name, {})) for name, value in default.items() if value is not None}
    return {name: value for name, value in shorter.items() if inner.get(name, {}).get("default") != value}
