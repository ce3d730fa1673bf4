"""The RLJob reference as Markdown, from the models' own descriptions: `docs/rljob.md`, which a test holds to this."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from tidemill.api.explain import default_of, kind_of
from tidemill.api.loading import model_at

_HEAD = """# RLJob reference

Every field of an RLJob manifest, generated from the models in `tidemill/api` (`tidemill explain --markdown`).
On a terminal: `tidemill explain rljob.spec.schedule`. Unknown fields are refused; `tidemill validate FILE` names every mistake at once.
"""


def reference() -> str:
    return _HEAD + "".join(_section(("spec",)))


def _section(path: tuple[str, ...]) -> Iterator[str]:
    model = model_at(path)
    assert model is not None
    yield f"\n## {'.'.join(path)}\n\n| field | type | default | meaning |\n|---|---|---|---|\n"
    inner: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        shown = field.alias or name
        nested = model_at((*path, shown))
        if nested is not None and issubclass(nested, BaseModel):
            inner.append((*path, shown))
        kind = kind_of(field.annotation).replace("|", "\\|")
        yield f"| `{shown}` | {kind} | {default_of(field).removeprefix('default: ').replace('|', chr(92) + '|')} | {field.description} |\n"
    for deeper in inner:
        yield from _section(deeper)
