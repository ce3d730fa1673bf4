"""From a file to one YAML document, as Kubernetes reads YAML, and to no more than a manifest can need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

LARGEST = 2**20
"""Bytes of a file. An API server stores no larger object."""

LARGEST_EXPANDED = 2 * 2**20
"""Characters and values once every alias is written out: nine aliases of nine aliases, nine times over, fill any memory."""

TOO_DEEP = "mappings and lists are nested too deeply; nothing in a manifest needs more than a few dozen levels"


class Unreadable(Exception):
    """There is no document in the file. The message says why and what to do."""


def read_document(path: Path) -> object:
    """The one document of the file. Raises `Unreadable`."""
    text = _text(path)
    try:
        documents = [d for d in yaml.load_all(text, Loader=_Loader) if d is not None]
    except yaml.YAMLError as cause:
        raise Unreadable(f"not valid YAML: {' '.join(str(cause).split())}") from cause
    except RecursionError as cause:
        raise Unreadable(TOO_DEEP) from cause
    except ValueError as cause:  # Python's bound on the digits of a number
        raise Unreadable(f"holds a number that is too long: {cause}") from cause
    if len(documents) != 1:
        raise Unreadable(f"holds {len(documents)} YAML documents, expected one RLJob; put each job into a file of its own")
    return documents[0]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise Unreadable(f"{path} is longer than {LARGEST} bytes; a manifest has a few thousand")
        return text.decode("utf-8-sig")
    except UnicodeDecodeError:
        reason = "it is not text"
    except OSError as cause:
        reason = cause.strerror or str(cause)
    except ValueError as cause:  # a NUL in the name
        reason = str(cause)
    raise Unreadable(f"cannot read {str(path)!r}: {reason}; give the path of a YAML file with an RLJob")


class _Loader(yaml.SafeLoader):
    """A key twice is an error, 1e-5 is a number, a date and 1:30 are text; `<<` merges."""

    def construct_document(self, node: yaml.Node) -> Any:
        _expanded(self, node, {})
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        for key in made:
            if not isinstance(key, str):  # merged from elsewhere
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", node.start_mark)
        return made


_OPEN = -1  # size of a node whose content is still being counted: who meets it again stands in itself


def _expanded(loader: _Loader, node: yaml.Node, sizes: dict[int, int]) -> int:
    """How large `node` is with its aliases written out."""
    known = sizes.get(id(node))
    if known == _OPEN:
        raise yaml.constructor.ConstructorError(None, None, "an alias stands inside of what it names", node.start_mark)
    if known is not None:
        return known
    sizes[id(node)] = _OPEN
    if isinstance(node, yaml.ScalarNode):
        size = 1 + len(node.value)
        _check_tag(loader, node, node.value)
    elif isinstance(node, yaml.MappingNode):
        size = 1 + sum(_expanded(loader, key, sizes) + _expanded(loader, value, sizes) for key, value in node.value)
        _check_tag(loader, node, None)
    else:
        size = 1 + sum(_expanded(loader, inner, sizes) for inner in node.value)
        _check_tag(loader, node, None)
    if size > LARGEST_EXPANDED:
        raise yaml.constructor.ConstructorError(None, None, "aliases make it too large; write out what they stand for", node.start_mark)
    sizes[id(node)] = size
    return size


def _check_tag(loader: Any, node: yaml.Node, value: str | None) -> None:
    """A tag that is written out may ask for what JSON cannot say, or for a number where there is none."""
    usual = {loader.resolve(type(node), value, (True, False)), "tag:yaml.org,2002:str" if value is not None else ""}
    if node.tag not in usual:
        written = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise yaml.constructor.ConstructorError(None, None, f"JSON has no word for {written}; write it as text", node.start_mark)


_MERGE = "tag:yaml.org,2002:merge"
_OWN = {  # YAML 1.1 reads 1:30 as ninety; Kubernetes does not
    "tag:yaml.org,2002:int": (re.compile(r"^[-+]?(0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"), "-+0123456789"),
    "tag:yaml.org,2002:float": (
        re.compile(r"^([-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.?[0-9]+[eE][-+]?[0-9]+|\.[0-9]+|\.(inf|Inf|INF))|\.(nan|NaN|NAN))$"),
        "-+.0123456789",
    ),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp" and tag not in _OWN]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
for _tag, (_pattern, _first) in _OWN.items():
    _Loader.add_implicit_resolver(_tag, _pattern, list(_first))
