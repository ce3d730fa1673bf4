"""Trees as text. A node is what was given, line by line, then `> ` what was sampled; what continues it is indented below it.

    system: Be brief.
    user: what is here?
    > Look.\\n[bash {"command": "ls"}]
      tool: README
      > a file

`tools: bash` at a root are the tools that the template shows. `[name {...}]` is a call as the policy writes it. `>> ` is an answer that was cut
short by its length: it has no end marker, the next turn gives it. `> (a1) ` was sampled for the sub-agent a1, `> (a2 of a1) ` for one that
a1 had started, `> (summary) ` when a compaction was asked for. `\\n` is a line's end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from tests.rollout.gateway.corpus.tools import as_template
from tests.rollout.gateway.world import END
from tidemill.trajectory.records import Turn

OPENS = "<|im_start|>assistant\n"
CLOSES = "<|im_end|>"

_CALL = re.compile(r"\[(\w+) (\{.*?\})\](?=$|\n|\[| )")
_WHO = re.compile(r"\((?:(?P<agent>(?!summary)\w+)(?: of (?P<parent>\w+))?)?(?:, )?(?P<summary>summary)?\) ")
_HASH = re.compile(r"[0-9a-f]{20}")
"""The name of an agent that has none, made of what it was told first."""
_SPECIAL = {"<|endoftext|>": 256, "<|im_start|>": 257, CLOSES: END}
_TEXT = {token: text for text, token in _SPECIAL.items()}
_BYTE = re.compile(r"\\x[0-9a-f]{2}")
_SPLIT = re.compile(r"((?<!\\)<\|(?:endoftext|im_start|im_end)\|>|\\x[0-9a-f]{2})")


@dataclass(frozen=True)
class Node:
    parent: int  # its number, -1 for a root
    who: tuple[str, str, bool]  # agent, parent agent, summary
    given: tuple[int, ...]
    sampled: tuple[int, ...]


def expected(tree: str) -> list[str]:
    """The nodes that the notation says, in its order."""
    nodes: list[Node] = []
    open_nodes: list[int] = []  # by depth
    given: list[str] = []
    for line in filter(str.strip, tree.splitlines()):
        text = line.lstrip(" ")
        depth = (len(line) - len(text)) // 2
        if not text.startswith(">"):
            role, _, said = text.partition(":")
            given.append(_message(role, said.removeprefix(" ")))
            continue
        del open_nodes[depth:]
        parent = open_nodes[-1] if open_nodes else -1
        cut = text.startswith(">> ")
        said = text.lstrip(">").removeprefix(" ")
        who = _WHO.match(said)
        sampled = tokens(written(said[who.end() :] if who else said)) + (() if cut else (END,))
        between = "" if parent < 0 else "\n" if nodes[parent].sampled[-1:] == (END,) else CLOSES + "\n"
        agent = (who["agent"] or "", who["parent"] or "", bool(who["summary"])) if who else ("", "", False)
        nodes.append(Node(parent, agent, tokens(between + "".join(given) + OPENS), sampled))
        open_nodes.append(len(nodes) - 1)
        given = []
    assert not given, f"given to nobody: {given}"
    return sorted(_shown(nodes, node) for node in nodes)


def recorded(turns: list[Turn]) -> list[str]:
    """The same of what was recorded."""
    numbers = {turn.id: number for number, turn in enumerate(turns)}
    nodes = [Node(numbers.get(t.parent, -1), _who(t), tuple(t.context_ids), tuple(t.sampled_ids)) for t in turns]
    return sorted(_shown(nodes, node) for node in nodes)


def written(notation: str) -> str:
    """As the policy writes it."""
    text = notation.replace("\\n", "\n")
    return _CALL.sub(lambda found: f'<tool_call>\n{{"name": "{found[1]}", "arguments": {found[2]}}}\n</tool_call>', text)


def tokens(text: str) -> tuple[int, ...]:
    """Of the world's tokenizer: bytes, and three special tokens. `\\<|im_end|>` is its text and no special token, `\\xNN` a byte that is no UTF-8."""
    return tuple(token for part in _SPLIT.split(text) for token in ([_SPECIAL[part]] if part in _SPECIAL else _bytes(part)))


def text_of(ids: tuple[int, ...]) -> str:
    """The other way round: equal texts are equal tokens."""
    shown = ""
    for special, tokens_of_a_kind in groupby(ids, key=lambda token: token in _TEXT):
        run = list(tokens_of_a_kind)
        shown += "".join(_TEXT[token] for token in run) if special else bytes(run).decode(errors="backslashreplace").replace("<|", "\\<|")
    return shown


def _bytes(part: str) -> bytes:
    return bytes([int(part[2:], 16)]) if _BYTE.fullmatch(part) else part.replace("\\<|", "<|").encode()


def _who(turn: Turn) -> tuple[str, str, bool]:
    return "hashed" if _HASH.fullmatch(turn.agent) else turn.agent, turn.parent_agent, turn.summary


def _message(role: str, text: str) -> str:
    if role == "tools":
        return f"<|im_start|>system\nTools:{''.join(' ' + as_template(name) for name in text.split())}<|im_end|>\n"
    if role == "tool":
        role, text = "user", f"<tool_response>\\n{text}\\n</tool_response>"
    return f"<|im_start|>{role}\n{written(text)}<|im_end|>\n"


def _shown(nodes: list[Node], node: Node) -> str:
    """With all that comes before it, so that the order of branches does not matter."""
    before = _shown(nodes, nodes[node.parent]) if node.parent >= 0 else ""
    return f"{before}{text_of(node.given)}«{text_of(node.sampled)}»{node.who if any(node.who) else ''}"
