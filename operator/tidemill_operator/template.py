"""A user's pod template fragment, merged into what the operator built, and what such a merge must leave in place."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.api import template
from tidemill.api.template import Misshapen
from tidemill_operator.names import Manifest

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
        result: Manifest = template.merged(pod, fragment, path)
        problems = tuple(lost(pod, result, path))
    except (Misshapen, TypeError, AttributeError, KeyError) as cause:
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
