"""A trajectory in a terminal: who branched where, and what of it is trained."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree as Drawing

from tidemill.report.strands import Picture, Strand
from tidemill.trajectory.branches import Origin

COLOURS = {
    Origin.START: "bold",
    Origin.SUB_AGENT: "bold cyan",
    Origin.SUMMARY: "magenta",
    Origin.COMPACTED: "magenta",
    Origin.RETRY: "yellow",
    Origin.EDITED: "yellow",
}


def drawing(seen: Picture) -> RenderableType:
    root = Drawing(Text(heading(seen), style="bold"), guide_style="grey50")
    drawn: dict[int | None, Drawing] = {None: root}
    for strand in seen.strands:
        drawn[strand.number] = drawn[strand.parent].add(_line(seen, strand))
    return Group(root, Text("\n".join(("", *facts(seen)))))


def heading(seen: Picture) -> str:
    told = seen.trajectory
    score = "dropped, no score" if told.score is None else f"score {told.score:g}"
    return f"{told.execution}  task {told.task}, attempt {told.attempt}, dispatched under version {told.dispatched_version}: {score}"


def facts(seen: Picture) -> Iterable[str]:
    """What there is to say of the whole."""
    told, nodes = seen.trajectory, seen.tree.downward
    given, sampled = sum(len(node.turn.context_ids) for node in nodes), sum(node.turn.sampled for node in nodes)
    yield f"{count(len(nodes), 'call')} on {count(len(seen.tree.leaves), 'branch')}; {given:,} tokens given, {sampled:,} sampled"
    if seen.drawn is None:
        yield "Which paths are trained cannot be told without the job: give its work folder with --workdir."
    elif told.judged is not None and not told.judged.valid:
        yield "Nothing of it is trained: there was nothing that could be judged."
    elif told.score is None:
        yield "Nothing of it is trained: it was dropped."
    else:
        yield (
            f"{seen.drawn_tokens(nodes):,} sampled tokens on {count(seen.paths_drawn, 'path')} are drawn for training; "
            "they are trained if the scores of the group differ."
        )
    if told.ended:
        yield f"The harness {told.ended}; its work was judged as it stood then." if "time-out" in told.ended else f"The harness {told.ended}."
    if told.judged is not None:
        asked = f" (evaluator asked {told.judged.evaluations} times)" if told.judged.evaluations > 1 else ""
        yield f"Judged: {told.judged.reason}{asked}."
        if told.judged.work:
            yield f"Work: {told.judged.work} {told.judged.digest}".rstrip()


def parts(seen: Picture, strand: Strand) -> Iterable[str]:
    """What a strand holds."""
    by = ", ".join(f"{number} {role}" if number > 1 else role for role, number in strand.given_by.items())
    yield count(len(strand.nodes), "call")
    yield f"{strand.given:,} given" + (f" ({by})" if by else "")
    yield f"{strand.sampled:,} sampled"
    if seen.drawn is not None:
        yield f"{seen.drawn_tokens(strand.nodes):,} drawn"
    if versions := span(strand.versions):
        yield f"version {versions}"
    cells = strand.cells
    if cells:
        yield ", ".join(cells) if len(cells) == 1 else ", ".join(f"{cell} {tokens:,}" for cell, tokens in cells.most_common())
    if strand.moved:
        yield f"{count(strand.moved, 'answer')} moved"
    if (reason := strand.nodes[-1].turn.finish_reason) != "stop":
        yield f"ends with {reason}"


def span(versions: tuple[int, ...]) -> str:
    if not versions:
        return ""
    first, last = versions[0], versions[-1]
    return str(first) if first == last else f"{first}-{last}" if len(versions) == last - first + 1 else ", ".join(map(str, versions))


def count(number: int, what: str) -> str:
    plural = what + ("es" if what.endswith("ch") else "s")
    return f"{number:,} {what if number == 1 else plural}"


def _line(seen: Picture, strand: Strand) -> Text:
    text = Text(strand.name, style=COLOURS.get(strand.origin, ""))
    at = f" at token {strand.start:,}" if strand.parent is not None else ""
    text.append(f"{at}  {' · '.join(parts(seen, strand))}", style="not bold default")
    return text
