"""The job's own fragment of a sandbox pod, merged in as Kubernetes would: lists by name. What keeps a sandbox in stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemill.api import template
from tidemill.api.template import Misshapen

Manifest = dict[str, Any]

WHERE = "spec.sandbox.template"

_FIXED = ("restartPolicy", "automountServiceAccountToken", "enableServiceLinks", "activeDeadlineSeconds", "serviceAccountName", "serviceAccount")
_FORBIDDEN = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "ephemeralContainers")


class SandboxRefused(Exception):
    """The template would open the sandbox. The text names the field and says what to do."""


def merged(pod: Manifest, fragment: Manifest) -> Manifest:
    """`pod` with `fragment` (metadata and spec) merged in.

    Raises:
        SandboxRefused
    """
    unknown = sorted(set(fragment) - {"metadata", "spec"})
    if unknown:
        raise SandboxRefused(f"{WHERE}.{unknown[0]}: unknown field; a template has metadata and spec, as a pod has")
    try:
        result: Manifest = template.merged(pod, fragment, WHERE)
    except Misshapen as cause:
        raise SandboxRefused(str(cause)) from cause
    for kind in ("containers", "initContainers"):  # sidecars are confined as we are, unless they say otherwise
        for container in result["spec"].get(kind, ()):
            confined = pod["spec"]["containers"][0]["securityContext"]
            container["securityContext"] = confined | container.get("securityContext", {})
    for problem in _problems(pod, result):
        raise SandboxRefused(f"{WHERE}.{problem}")
    return result


def _problems(built: Manifest, result: Manifest) -> Iterator[str]:
    for key, value in built["metadata"].items():
        given = result["metadata"].get(key)
        lost = next((k for k in value if given.get(k) != value[k]), "") if key == "labels" else key if given != value else ""
        if lost:
            yield f"metadata.{key}: {lost} is ours; remove it from the template"
    spec = result["spec"]
    for key in _FIXED:
        if spec.get(key) != built["spec"].get(key):
            yield f"spec.{key}: is fixed to {built['spec'].get(key)!r}; remove it from the template"
    for key in _FORBIDDEN:
        if spec.get(key):
            yield f"spec.{key}: opens the sandbox; remove it from the template"
    yield from _of_context(
        spec.get("securityContext") or {}, built["spec"]["securityContext"], "spec.securityContext", ("runAsNonRoot", "seccompProfile")
    )
    yield from _of_volumes(built["spec"]["volumes"], spec.get("volumes") or [])
    for kind in ("containers", "initContainers"):
        ours = {container["name"]: container for container in built["spec"][kind]}
        there = {container.get("name"): container for container in spec.get(kind) or []}
        for name in ours.keys() - there.keys():
            yield f"spec.{kind}[{name}]: is needed and may not be removed"
        for name, container in there.items():
            yield from _of_container(ours.get(name), container, f"spec.{kind}[{name}]")


def _of_volumes(ours: list[Manifest], theirs: list[Manifest]) -> Iterator[str]:
    there = {volume.get("name"): volume for volume in theirs}
    for volume in ours:
        if set(there.get(volume["name"], {})) != set(volume):
            yield f"spec.volumes[{volume['name']}]: is ours; give your volume another name"
    for name, volume in there.items():
        if any("serviceAccountToken" in source for source in (volume.get("projected") or {}).get("sources") or ()):
            yield f"spec.volumes[{name}].projected: a sandbox gets no token of the cluster; remove it from the template"


def _of_container(built: Manifest | None, result: Manifest, where: str) -> Iterator[str]:
    context = result["securityContext"]
    if context.get("privileged"):
        yield f"{where}.securityContext.privileged: opens the sandbox; remove it from the template"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}.securityContext.allowPrivilegeEscalation: must be false; remove it from the template"
    capabilities = context.get("capabilities") or {}
    if capabilities.get("add") or "ALL" not in (capabilities.get("drop") or ()):
        yield f"{where}.securityContext.capabilities: all must be dropped and none added; remove it from the template"
    yield from _of_context(context, {}, f"{where}.securityContext", ())
    if built is None:
        return
    yield from _of_context(context, built["securityContext"], f"{where}.securityContext", ("readOnlyRootFilesystem",))
    for key in ("command", "args", "lifecycle"):
        if result.get(key) != built.get(key):
            yield f"{where}.{key}: is fixed; remove it from the template"
    for kind, key in (("env", "name"), ("volumeMounts", "mountPath")):
        there = {entry.get(key): entry for entry in result.get(kind) or []}
        for entry in built[kind]:
            if there.get(entry[key]) != entry:
                yield f"{where}.{kind}[{entry[key]}]: is ours; remove it from the template"


def _of_context(context: Manifest, built: Manifest, where: str, fixed: tuple[str, ...]) -> Iterator[str]:
    for key in fixed:
        if context.get(key) != built[key]:
            yield f"{where}.{key}: is fixed to {built[key]!r}; remove it from the template"
    if context.get("runAsUser") == 0 or context.get("runAsNonRoot") is False:
        yield f"{where}: a sandbox does not run as root; remove it from the template"
    if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
        yield f"{where}.seccompProfile: opens the sandbox; remove it from the template"
