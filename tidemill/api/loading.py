"""From a file to an RLJob, or to every error in it at once."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tidemill.api.rljob import RLJob
from tidemill.api.rules import violations


class InvalidManifest(Exception):
    """The manifest cannot be run. `errors` has one line for each mistake."""

    def __init__(self, where: str, errors: tuple[str, ...]) -> None:
        super().__init__("\n".join(f"{where}: {error}" for error in errors))
        self.where = where
        self.errors = errors


def load_rljob(path: Path) -> RLJob:
    """Read one RLJob from a YAML file.

    Raises:
        InvalidManifest: the file is missing, is not YAML, or breaks the schema or a rule.
    """
    where = f"rljob {path.name}"
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else "it is not text"
        raise InvalidManifest(where, (f"cannot read {path}: {reason}; give the path of a YAML file with an RLJob",)) from cause
    try:
        documents = [d for d in yaml.load_all(text, Loader=_Loader) if d is not None]
    except yaml.YAMLError as cause:
        raise InvalidManifest(where, (f"not valid YAML: {' '.join(str(cause).split())}",)) from cause
    if len(documents) != 1:
        raise InvalidManifest(where, (f"holds {len(documents)} YAML documents, expected one RLJob; put each job into a file of its own",))
    return parse_rljob(documents[0], where)


def parse_rljob(document: object, where: str = "rljob") -> RLJob:
    """Raises `InvalidManifest` with every mistake."""
    if not isinstance(document, dict):
        raise InvalidManifest(where, (f"is a {type(document).__name__}, expected a mapping with apiVersion, kind, metadata and spec",))
    name = document.get("metadata", {}).get("name") if isinstance(document.get("metadata"), dict) else None
    where = f"rljob {name}" if isinstance(name, str) else where
    try:
        # Through JSON, because pydantic's strict mode then means what JSON can say: "yes" is no boolean and "3" no number.
        job = RLJob.model_validate_json(json.dumps(document), strict=True)
    except ValidationError as cause:
        raise InvalidManifest(where, tuple(_line(e) for e in cause.errors(include_url=False))) from cause
    broken = violations(job.spec)
    if broken:
        raise InvalidManifest(where, tuple(str(v) for v in broken))
    return job


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a key twice is an error, 1e-5 is a number, a date is text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))


def _line(error: ErrorDetails) -> str:
    path = ".".join(str(part) for part in error["loc"]).replace(".[", "[") or "document"
    match error["type"]:
        case "extra_forbidden":
            return f"{path}: unknown field{_nearest(error['loc'])}"
        case "missing":
            return f"{path}: missing; {_help(error['loc'])}"
        case "string_pattern_mismatch":
            return f"{path}: is {error['input']!r}; {_help(error['loc'])}"
        case _:
            shown = repr(error["input"]) if not isinstance(error["input"], dict) else "a mapping"
            return f"{path}: is {shown}; {error['msg'][0].lower()}{error['msg'][1:]}"


def _nearest(location: tuple[int | str, ...]) -> str:
    model = model_at(location[:-1])
    known = [field.alias or name for name, field in model.model_fields.items()] if model else []
    near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; allowed here: {', '.join(known)}"


def _help(location: tuple[int | str, ...]) -> str:
    model = model_at(location[:-1])
    for name, field in model.model_fields.items() if model else ():
        if (field.alias or name) == location[-1] and field.description:
            return field.description
    return "give it a value"


def model_at(location: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model that holds the fields at this path of an RLJob, or None where there is none."""
    model: type[BaseModel] | None = RLJob
    for part in location:
        if model is None:
            return None
        field = next((f for name, f in model.model_fields.items() if (f.alias or name) == part), None)
        model = next((t for t in _types(field.annotation) if issubclass(t, BaseModel)), None) if field else None
    return model


def _types(annotation: Any) -> list[type]:
    if isinstance(annotation, type):
        return [annotation]
    return [t for argument in get_args(annotation) for t in _types(argument)]
