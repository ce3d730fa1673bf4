"""The reference of RLJob and GPUCell as Markdown, from the models' own descriptions: `docs/rljob.md`, which a test holds to this."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from tidemill.api.cel import CELL_MUTABLE, MUTABLE
from tidemill.api.explain import default_of, kind_of
from tidemill.api.gpucell import GPUCell
from tidemill.api.loading import model_at
from tidemill.api.rljob import RLJob

_HEAD = """# RLJob reference

Every field of an RLJob manifest, generated from the models in `tidemill/api` (`tidemill explain --markdown`).
On a terminal: `tidemill explain rljob.spec.schedule`. Unknown fields are refused; `tidemill validate FILE` names every mistake at once.
On a cluster a field marked * may change while the job runs; a change of any other is refused, with what to do instead.
The cells that the operator makes of a job, and what both report, stand [below](#status).
"""
_CELL = """
# GPUCell reference

One for each cell of a job, made by the operator. People write `pin` and `cordon` (`kubectl edit gpucell`), and read the rest.
"""


def reference() -> str:
    sections = [
        _HEAD,
        *_section(("spec",), RLJob, MUTABLE),
        *_section(("status",), RLJob),
        _CELL,
        *_section(("spec",), GPUCell, CELL_MUTABLE),
        *_section(("status",), GPUCell),
    ]
    return "".join(sections)


def _section(path: tuple[str, ...], root: type[BaseModel], mutable: frozenset[str] = frozenset()) -> Iterator[str]:
    model = model_at(path, root)
    assert model is not None
    of = () if root is RLJob else (root.__name__.lower(),)
    yield f"\n## {'.'.join((*of, *path))}\n\n| field | type | default | meaning |\n|---|---|---|---|\n"
    inner: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        shown = field.alias or name
        below = (*path, shown)
        nested = model_at(below, root)
        if nested is not None and issubclass(nested, BaseModel):
            inner.append(below)
        kind = kind_of(field.annotation).replace("|", "\\|")
        mark = " *" if any(".".join(below[:end]) in mutable for end in range(1, len(below) + 1)) else ""
        yield f"| `{shown}`{mark} | {kind} | {default_of(field).removeprefix('default: ').replace('|', chr(92) + '|')} | {field.description} |\n"
    for deeper in inner:
        yield from _section(deeper, root, mutable)
