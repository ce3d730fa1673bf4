"""A user's pod template fragment, merged strategically into what the operator built, and what such a merge must leave in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemill_operator.names import Manifest

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

_KEPT_OF_CONTAINER = ("ports", "livenessProbe", "readinessProbe", "startupProbe")
_PROGRAM_OF_CONTAINER = ("command", "args")  # what is run, also where the image says a part of it
_KEPT_OF_SPEC = ("serviceAccountName", "automountServiceAccountToken", "restartPolicy")


class Refused(Exception):
    """The fragment cannot be merged; the message names the field and the remedy."""


def merged(pod: Manifest, fragment: Manifest, path: str) -> Manifest:
    """`pod` (metadata and spec) with `fragment` merged in. `path` is the fragment's place in the manifest, for messages.

    Raises:
        Refused: the fragment has no pod template's shape, or takes away what the product needs.
    """
    if not fragment:
        return pod
    unknown = sorted(set(fragment) - {"metadata", "spec"})
    if unknown:
        raise Refused(f"{path}.{unknown[0]}: unknown field; a template has metadata (labels, annotations) and spec, as a pod has")
    try:
        result: Manifest = _merge(pod, fragment, path)
        problems = tuple(lost(pod, result, path))
    except (TypeError, AttributeError, KeyError) as cause:
        raise Refused(f"{path}: is not of a pod template's shape ({cause}); see `kubectl explain pod.spec`") from cause
    if problems:
        raise Refused("; ".join(problems[:3]))
    return result


def lost(built: Manifest, result: Manifest, path: str) -> Iterator[str]:
    """What of `built` the product needs and `result` lacks or has changed."""
    for key, value in built["metadata"].get("labels", {}).items():
        if result["metadata"].get("labels", {}).get(key) != value:
            yield f"{path}.metadata.labels.{key}: this label is the operator's own; remove it from the template"
    for key in _KEPT_OF_SPEC:
        if result["spec"].get(key) != built["spec"].get(key):
            yield f"{path}.spec.{key}: is fixed to {built['spec'].get(key)!r}; remove it from the template"
    for kind, key in (("containers", "name"), ("initContainers", "name"), ("volumes", "name")):
        there = {entry.get(key): entry for entry in result["spec"].get(kind) or ()}
        for entry in built["spec"].get(kind, ()):
            name = entry[key]
            where = f"{path}.spec.{kind}[{name}]"
            if name not in there:
                yield f"{where}: is needed and may not be removed"
            elif kind == "volumes" and there[name] != entry:
                yield f"{where}: is the operator's own; give your volume another name"
            elif kind != "volumes":
                yield from _lost_of_container(entry, there[name], where)


def _lost_of_container(built: Manifest, result: Manifest, where: str) -> Iterator[str]:
    for key in (*_PROGRAM_OF_CONTAINER, *(key for key in _KEPT_OF_CONTAINER if key in built)):
        if result.get(key) != built.get(key):
            yield f"{where}.{key}: is fixed, the operator talks to this process; remove it from the template"
    for kind, key in (("env", "name"), ("volumeMounts", "mountPath")):
        there = {entry.get(key): entry for entry in result.get(kind) or ()}
        for entry in built.get(kind, ()):
            if there.get(entry[key]) != entry:
                yield f"{where}.{kind}[{entry[key]}]: is the operator's own; remove it from the template"


def _merge(base: Any, patch: Any, path: str) -> Any:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        if isinstance(base, dict):
            raise TypeError(f"{path} must be a mapping")
        return patch
    result = dict(base)
    for key, value in patch.items():
        where = f"{path}.{key}"
        if value is None:
            result.pop(key, None)
        elif key in _MERGE_KEYS and isinstance(result.get(key, []), list):
            result[key] = _merge_list(result.get(key, []), value, _MERGE_KEYS[key], where)
        elif key in result:
            result[key] = _merge(result[key], value, where)
        else:
            result[key] = value
    return result


def _merge_list(base: list[Manifest], patch: Any, key: str, path: str) -> list[Manifest]:
    if not isinstance(patch, list) or not all(isinstance(entry, dict) and key in entry for entry in patch):
        raise TypeError(f"{path} must be a list of mappings with {key}")
    result = {entry[key]: entry for entry in base}
    for entry in patch:
        name = entry[key]
        if entry.get("$patch") == "delete":
            result.pop(name, None)
        else:
            result[name] = _merge(result[name], entry, f"{path}[{name}]") if name in result else entry
    return list(result.values())
