"""Whatever the family: a known turn keeps its tokens, and what follows it is what the family's template puts there."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rollout.gateway import families
from tests.rollout.gateway.world import text_of
from tidemill.api.rljob import Tools
from tidemill_rollout.gateway.conversation import Fault, Message, Tool, ToolCall
from tidemill_rollout.gateway.family import recognised
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.gateway.tokens import Tokens

BASH = Tool("bash", "Run", {"type": "object", "properties": {"command": {"type": "string"}, "seconds": {"type": "number"}}})
ASKED = Message("user", "one")

words = st.text(max_size=20).map(str.strip)
given_messages = st.lists(st.builds(Message, st.sampled_from(["user", "system"]), words), max_size=3)
dialogues = st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), words), max_size=3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Renderer]:
    """A renderer of a family, made once."""
    known: dict[tuple[str, Tools], Renderer] = {}

    def make(name: str, tools: Tools = Tools.NATIVE) -> Renderer:
        if (name, tools) not in known:
            where = tmp_path_factory.mktemp(name)
            if name in families.SPECIAL:
                template = {"llama-3": families.LLAMA_3, "mistral": families.MISTRAL, "thoughts": families.STRIPS_THOUGHTS}[name]
                folder = families.folder(where, template, families.SPECIAL[name], end=families.END[name])
            else:
                folder = getattr(families, name)(where)
            known[name, tools] = Renderer(folder, tools)
        return known[name, tools]

    return make


@pytest.mark.parametrize(("name", "family"), [("qwen3", "qwen3"), ("glm45", "glm-4.5"), ("llama-3", ""), ("mistral", ""), ("thoughts", "")])
def test_a_family_is_recognised_by_what_its_template_does(made: Callable[..., Renderer], name: str, family: str) -> None:
    renderer = made(name)
    found = recognised(renderer._tokens, renderer._rendered, renderer.end_ids)
    assert (found.name if found else "") == family


def test_a_family_is_asked_where_the_template_alone_does_not_suffice(made: Callable[..., Renderer]) -> None:
    assert made("glm45").family == "glm-4.5"  # calls in a form of its own
    assert [made(name, tools).family for name in ("qwen3", "thoughts") for tools in Tools] == [""] * 4
    assert made("glm45", Tools.TEXT).family == ""


def test_one_other_word_in_the_template_and_it_is_no_longer_that_family(tmp_path: Path) -> None:
    folder = families.glm45(tmp_path)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("<tool_response>", "<tool_result>"))
    assert Renderer(folder, Tools.NATIVE).family == ""


@pytest.mark.parametrize(
    ("name", "before_words", "end"),
    [
        ("qwen3", "", "<|im_end|>"),
        ("glm45", "\n<think></think>\n", "<|user|>"),
        ("llama-3", "", "<|eot_id|>"),
        ("mistral", " ", "</s>"),
        ("thoughts", "", "<|im_end|>"),
    ],
)
@settings(max_examples=30)
@given(asked=words, answer=words.filter(bool), after=given_messages.filter(bool))
def test_prompt_answer_and_bridge_are_the_whole_conversation(
    made: Callable[..., Renderer], name: str, before_words: str, end: str, asked: str, answer: str, after: list[Message]
) -> None:
    renderer = made(name)
    tokens: Tokens = renderer._tokens
    if name == "glm45":
        after = [Message("user", "then"), *after]  # the answer ended with the token that begins a user's message
    before, answered = [Message("user", asked)], Message("assistant", answer)
    sampled = [*tokens.encode(before_words + tokens.guard(answer)), tokens.number(end)]
    assert sampled[-1] in renderer.end_ids
    bridge = renderer.bridge(answered, sampled[-1], after, ())
    assert bridge is not None
    assert renderer.prompt(before, ()) + sampled + bridge == renderer.prompt([*before, answered, *after], ())


@pytest.mark.parametrize("name", ["qwen3", "glm45", "llama-3", "mistral", "thoughts"])
@pytest.mark.parametrize("tools", list(Tools))
def test_an_answer_that_was_cut_is_closed_and_gone_on_with(made: Callable[..., Renderer], name: str, tools: Tools) -> None:
    renderer = made(name, tools)
    bridge = renderer.bridge(Message("assistant", "tw"), ord("w"), [Message("user", "go on")], ())
    assert bridge is not None
    if name != "glm45":
        assert bridge[0] in renderer.end_ids
    assert "go on" in renderer._tokens.decode(bridge)


@pytest.mark.parametrize(
    ("name", "said", "end"),
    [
        ("qwen3", 'Look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>', "<|im_end|>"),
        (
            "glm45",
            "\n<think></think>\nLook.\n<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>",
            "<|observation|>",
        ),
    ],
)
@settings(max_examples=20)
@given(results=st.lists(words, min_size=1, max_size=3), after=st.none() | words)
def test_results_continue_a_call_as_the_template_shows_them(
    made: Callable[..., Renderer], name: str, said: str, end: str, results: list[str], after: str | None
) -> None:
    renderer = made(name)
    answered = Message("assistant", "Look.", calls=(ToolCall("t1x0", "bash", '{"command": "ls"}'),))
    new = [*(Message("tool", result, call_id="t1x0") for result in results), *([] if after is None else [Message("user", after)])]
    sampled = [*renderer._tokens.encode(said), renderer._tokens.number(end)]
    bridge = renderer.bridge(answered, sampled[-1], new, (BASH,))
    assert bridge is not None
    assert renderer.prompt([ASKED], (BASH,)) + sampled + bridge == renderer.prompt([ASKED, answered, *new], (BASH,))
    read = renderer.read(sampled, (BASH,))
    assert (read.text, read.calls) == ("Look.", (("bash", '{"command": "ls"}'),))
    known = recognised(renderer._tokens, renderer._rendered, renderer.end_ids)
    assert known is not None
    shown, offered = renderer._fit(new, {"t1x0": "bash"}, first=False), renderer._offered((BASH,))
    for last in (sampled[-1], ord("w"), None):  # ended, and cut
        if name == "qwen3" or last == sampled[-1]:
            assert known.bridge(last, shown, offered) == renderer._cut(answered, last, new, (BASH,))


def test_a_token_that_ends_an_answer_and_begins_what_follows_stands_there_once(made: Callable[..., Renderer]) -> None:
    renderer = made("glm45")
    observation = renderer._tokens.number("<|observation|>")
    call = ToolCall("t1x0", "bash", '{"command": "ls"}')
    results = [Message("tool", "README", call_id="t1x0"), Message("user", "and?")]
    bridge = renderer.bridge(Message("assistant", "Look.", calls=(call,)), observation, results, (BASH,))
    assert renderer._tokens.decode(bridge or [], special=True) == "\n<tool_response>\nREADME\n</tool_response><|user|>\nand?<|assistant|>"
    cut = renderer.bridge(Message("assistant", "Look.", calls=(call,)), ord("."), results, (BASH,))
    assert (cut or []).count(observation) == 1


def test_calls_in_a_familys_own_form_are_read_and_shown_as_json(made: Callable[..., Renderer]) -> None:
    renderer = made("glm45")
    said = (
        "\n<think>hm</think>\nLook.\n<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>echo true</arg_value>\n"
        "<arg_key>seconds</arg_key>\n<arg_value>5</arg_value>\n</tool_call><|observation|>"
    )
    read = renderer.read(renderer._tokens.encode(said), (BASH,))
    assert (read.text.strip(), read.reasoning) == ("Look.", "hm")
    [(name, arguments)] = read.calls
    assert (name, json.loads(arguments)) == ("bash", {"command": "echo true", "seconds": 5})


def test_half_a_call_in_a_familys_own_form_stays_text(made: Callable[..., Renderer]) -> None:
    renderer = made("glm45")
    read = renderer.read(renderer._tokens.encode("\n<think></think>\nLook.\n<tool_call>bash\n<arg_key>command</arg_key>"), (BASH,))
    assert not read.calls
    assert read.text.startswith("Look.")
    assert "<tool_call>bash" in read.text


def test_arguments_of_a_tagged_call_stay_as_the_policy_wrote_them(made: Callable[..., Renderer]) -> None:
    renderer = made("qwen3")
    said = 'Look.\n<tool_call>\n{"name": "bash", "arguments": {"command":  "ls", "seconds": 1000.0}}\n</tool_call>\nThen.<|im_end|>'
    read = renderer.read(renderer._tokens.encode(said), (BASH,), stop=("en.",))
    assert read.calls == (("bash", '{"command":  "ls", "seconds": 1000.0}'),)
    assert (read.text, read.stop_text) == ("Look.\n\nTh", "en.")


def test_a_template_whose_calls_nobody_can_read_is_refused_where_tools_are_used(tmp_path: Path) -> None:
    template = (
        "{% if tools %}[TOOLS]{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
        "{% for call in m.tool_calls or [] %}!{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    folder = families.folder(tmp_path, template)
    with pytest.raises(Fault, match=r"can not be read; set spec\.model\.tools of the job to Text"):
        Renderer(folder, Tools.NATIVE).prompt([ASKED], (BASH,))
    assert "bash: Run" in text_of(Renderer(folder, Tools.TEXT).prompt([ASKED], (BASH,)))


def test_a_thought_that_the_prompt_opened_is_read_as_one(tmp_path: Path) -> None:
    renderer = Renderer(families.folder(tmp_path, families.OPENS_THOUGHTS), Tools.TEXT)
    read = renderer.read(renderer._tokens.encode("hm</think>\n\nyes<|im_end|>"), ())
    assert (read.reasoning, read.text) == ("hm", "yes")
    assert not renderer.keeps_prefix


@given(st.text() | st.text("\ue000\ue0010123456789", max_size=12))
def test_any_text_is_tokens_that_say_the_same(made: Callable[..., Renderer], text: str) -> None:
    """Also text that looks like a guard or like a special token; half characters become the mark of a broken one."""
    tokens = made("qwen3")._tokens
    ids = tokens.encode(tokens.guard(text))
    assert b"".join(map(tokens.bytes_of, ids)).decode() == text
    assert not tokens.special_ids.intersection(ids)


def test_half_a_character_becomes_the_mark_of_a_broken_one(made: Callable[..., Renderer]) -> None:
    tokens = made("qwen3")._tokens
    assert tokens.decode(tokens.encode("a\ud800b")) == "a\ufffdb"
