"""A fragment of a pod template: what clusters add to the pods that the product builds. Free form below `metadata` and `spec`, merged in as
Kubernetes merges: lists by name."""

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

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "claims": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists of the pod API that merge by a key (its patchMergeKey). All other lists are replaced whole."""


class Misshapen(Exception):
    """A fragment has no pod template's shape. The text names the field and says what is expected."""


def merged(base: Any, fragment: Any, path: str) -> Any:
    """`base` with `fragment` merged in; null takes away. `path` is the fragment's place in the manifest, for messages.

    Raises:
        Misshapen
    """
    if not isinstance(base, dict):
        return fragment
    if not isinstance(fragment, dict):
        raise Misshapen(f"{path}: must be a mapping")
    result = dict(base)
    for key, value in fragment.items():
        where = f"{path}.{key}"
        if value is None:
            result.pop(key, None)
        elif key in _MERGE_KEYS and isinstance(result.get(key, []), list):
            result[key] = _merged_list(result.get(key, []), value, _MERGE_KEYS[key], where)
        elif key in result:
            result[key] = merged(result[key], value, where)
        else:
            result[key] = value
    return result


def _merged_list(base: list[dict[str, Any]], fragment: Any, key: str, path: str) -> list[dict[str, Any]]:
    if not isinstance(fragment, list) or not all(isinstance(entry, dict) and key in entry for entry in fragment):
        raise Misshapen(f"{path}: must be a list of mappings with {key}")
    result = {entry[key]: entry for entry in base}
    for entry in fragment:
        name = entry[key]
        if entry.get("$patch") == "delete":
            result.pop(name, None)
        else:
            result[name] = merged(result[name], entry, f"{path}[{name}]") if name in result else entry
    return list(result.values())
