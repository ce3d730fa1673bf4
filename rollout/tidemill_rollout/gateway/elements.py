"""Where the elements of `messages` or `input` lie in the bytes of a request, and which of them another request has as well. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

MOST_ELEMENTS = 5000
"""A conversation of a million tokens has about a thousand. Each costs about a kilobyte to remember."""

_SPACE = re.compile(rb"[ \t\n\r]*")
_NEXT = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*")
_NAME = re.compile(rb'"([^"\\]*)"[ \t\n\r]*:[ \t\n\r]*')
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Split:
    """`raw[:start]` is the beginning of the request, up to and with the bracket that opens the list; what follows the last element is its end."""

    raw: bytes
    start: int
    elements: tuple[tuple[int, int], ...]  # from, to

    @property
    def end(self) -> int:
        """Where the last element ends."""
        return self.elements[-1][1] if self.elements else self.start

    def element(self, number: int) -> bytes:
        return self.raw[slice(*self.elements[number])]

    def around(self, element: bytes) -> bytes:
        """The same request with this one element."""
        return self.raw[: self.start] + element + self.raw[self.end :]


def split(raw: bytes, name: str) -> Split | None:
    """None for what is no request of the usual form: no JSON, a field twice, escapes in a field's name, elements that are no objects."""
    try:
        fields = _fields.decode(raw)
        if name not in fields:
            return None
        items = _items.decode(fields[name])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if len(items) > MOST_ELEMENTS:
        return None
    start = _start_of(raw, fields, name)
    if start is None:
        return None
    spans = []
    at = _space(raw, start)
    for number, item in enumerate(items):
        if number:
            comma = _NEXT.match(raw, at)
            if comma is None:
                return None
            at = comma.end()
        if not raw.startswith(b"{", at):
            return None
        spans.append((at, at + len(memoryview(item))))
        at = spans[-1][1]
    return Split(raw, start, tuple(spans)) if raw.startswith(b"]", _space(raw, at)) else None


def agreed(known: bytes, ends: list[int], raw: bytes) -> int:
    """How many of the known elements, of which `ends` says where they end, `raw` begins with, all before them included."""
    view = memoryview(known)
    if not ends or raw.startswith(view[: ends[-1]]):
        return len(ends)
    low, high = -1, len(ends) - 1  # agrees up to the end of element `low`, not of `high`
    while high - low > 1:
        middle = (low + high) // 2
        from_ = ends[low] if low >= 0 else 0
        if raw.startswith(view[from_ : ends[middle]], from_):
            low = middle
        else:
            high = middle
    return low + 1


def without(raw: bytes, start: int, end: int) -> tuple[bytes, int] | None:
    """The request without the elements that end at `end`, and by how many bytes it is shorter. None unless an element or the list's end follows."""
    comma = _NEXT.match(raw, end)
    at = comma.end() if comma else _space(raw, end)
    if not raw.startswith(b"{" if comma else b"]", at):
        return None
    return raw[:start] + raw[at:], at - start


def _start_of(raw: bytes, fields: dict[str, msgspec.Raw], name: str) -> int | None:
    """Where the list called `name` has its bracket behind it. None unless the fields lie one after the other as they were decoded."""
    found = None
    at = _space(raw, 0) + 1  # after the brace
    for number, (field, value) in enumerate(fields.items()):
        at = _space(raw, at)
        if number:
            if not raw.startswith(b",", at):
                return None
            at = _space(raw, at + 1)
        named = _NAME.match(raw, at)
        if named is None or named[1] != field.encode():
            return None
        if field == name:
            found = named.end() + 1
        at = named.end() + len(memoryview(value))
    return found if raw.startswith(b"}", _space(raw, at)) else None


def _space(raw: bytes, at: int) -> int:
    found = _SPACE.match(raw, at)
    assert found is not None  # it matches nothing as well
    return found.end()
