"""From a file, or from an object as an API server keeps it, to an RLJob or a GPUCell, or to every error in it at once."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tidemill.api.document import TOO_DEEP, Unreadable, read_document
from tidemill.api.gpucell import GPUCell
from tidemill.api.metadata import Metadata
from tidemill.api.partial import right_part
from tidemill.api.rljob import RLJob, RLJobSpec
from tidemill.api.rules import Rule, cell_violations, violations, violations_of_part


class InvalidManifest(Exception):
    """The manifest cannot be run. `errors` has one line for each mistake."""

    def __init__(self, where: str, errors: tuple[str, ...]) -> None:
        super().__init__("\n".join(f"{where}: {error}" for error in errors))
        self.where = where
        self.errors = errors


def load_rljob(path: Path, also: tuple[Rule, ...] = ()) -> RLJob:
    """Read one RLJob from a YAML file. `also`: rules of one machine, whose violations are named with all others.

    Raises:
        InvalidManifest: the file is missing, is not YAML, or breaks the schema or a rule.
    """
    where = f"rljob {path.name}"
    try:
        document = read_document(path)
    except Unreadable as cause:
        raise InvalidManifest(where, (str(cause),)) from cause
    return parse_rljob(document, where, also)


def parse_rljob(document: object, where: str = "rljob", also: tuple[Rule, ...] = ()) -> RLJob:
    """Raises `InvalidManifest` with every mistake."""
    job, where = _parsed(RLJob, document, where, also)
    broken = violations(job.spec, also)
    if broken:
        raise InvalidManifest(where, tuple(str(v) for v in broken))
    return job


def rljob_of(document: object) -> RLJob:
    """An RLJob as the API server keeps it: strict in spec and status, while metadata may hold what only Kubernetes reads.

    Raises:
        InvalidManifest: with every mistake, for a condition.
    """
    return parse_rljob(_with_known_metadata(document))


def gpucell_of(document: object) -> GPUCell:
    """A GPUCell as the API server keeps it. Raises `InvalidManifest` with every mistake."""
    cell, where = _parsed(GPUCell, _with_known_metadata(document), "gpucell")
    broken = cell_violations(cell.spec)
    if broken:
        raise InvalidManifest(where, tuple(str(v) for v in broken))
    return cell


def _with_known_metadata(document: object) -> object:
    """managedFields, ownerReferences, finalizers and whatever a later Kubernetes adds are not the product's."""
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        return document
    known = {field.alias or name for name, field in Metadata.model_fields.items()} | {"name"}
    return {**document, "metadata": {key: value for key, value in document["metadata"].items() if key in known}}


def _parsed[M: BaseModel](model: type[M], document: object, where: str, also: tuple[Rule, ...] = ()) -> tuple[M, str]:
    if not isinstance(document, dict):
        raise InvalidManifest(where, (f"is a {type(document).__name__}, expected a mapping with apiVersion, kind, metadata and spec",))
    name = document.get("metadata", {}).get("name") if isinstance(document.get("metadata"), dict) else None
    where = f"{model.__name__.lower()} {_cut(name)}" if isinstance(name, str) and name.isprintable() else where
    try:
        text = json.dumps(document)
    except RecursionError as cause:
        raise InvalidManifest(where, (TOO_DEEP,)) from cause
    except TypeError as cause:
        raise InvalidManifest(where, (f"holds what JSON has no word for: {cause}; write it as text",)) from cause
    try:
        # Through JSON, because pydantic's strict mode then means what JSON can say: "yes" is no boolean and "3" no number.
        return model.model_validate_json(text, strict=True), where
    except ValidationError as cause:
        wrong = [_line(e, model) for e in cause.errors(include_url=False)]
        spec = document.get("spec")
        broken = violations_of_part(right_part(RLJobSpec, spec), also) if model is RLJob and isinstance(spec, dict) else ()
        raise InvalidManifest(where, (*wrong, *(str(v) for v in broken))) from cause


_SHOWN = 80  # characters of a wrong value; a condition's message has room for more than one mistake


def _line(error: ErrorDetails, root: type[BaseModel]) -> str:
    path = ".".join(_cut(str(part)) for part in error["loc"]).replace(".[", "[") or "document"
    match error["type"]:
        case "extra_forbidden":
            return f"{path}: unknown field{_nearest(error['loc'], root)}"
        case "json_invalid" if "recursion" in error["msg"]:
            return TOO_DEEP
        case "missing":
            return f"{path}: missing; {_help(error['loc'], root)}"
        case "value_error":
            return f"{path}: {error['msg'].removeprefix('Value error, ')}"
        case "string_pattern_mismatch":
            return f"{path}: is {_shown(error['input'])}; {_help(error['loc'], root)}"
        case _:
            return f"{path}: is {_shown(error['input'])}; {error['msg'][0].lower()}{error['msg'][1:]}"


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else f"a list of {len(value)}" if len(repr(value)) > _SHOWN else repr(value)
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _nearest(location: tuple[int | str, ...], root: type[BaseModel]) -> str:
    model = model_at(location[:-1], root)
    known = [field.alias or name for name, field in model.model_fields.items()] if model else []
    near = difflib.get_close_matches(str(location[-1])[:_SHOWN], known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; allowed here: {', '.join(known)}"


def _help(location: tuple[int | str, ...], root: type[BaseModel]) -> str:
    model = model_at(location[:-1], root)
    for name, field in model.model_fields.items() if model else ():
        if (field.alias or name) == location[-1] and field.description:
            return field.description
    return "give it a value"


def model_at(location: tuple[int | str, ...], root: type[BaseModel] = RLJob) -> type[BaseModel] | None:
    """The model that holds the fields at this path of an object, or None where there is none."""
    model: type[BaseModel] | None = root
    for part in location:
        if model is None:
            return None
        if isinstance(part, int):
            continue
        field = next((f for name, f in model.model_fields.items() if (f.alias or name) == part), None)
        model = next((t for t in _types(field.annotation) if issubclass(t, BaseModel)), None) if field else None
    return model


def _types(annotation: Any) -> list[type]:
    if isinstance(annotation, type):
        return [annotation]
    return [t for argument in get_args(annotation) for t in _types(argument)]
