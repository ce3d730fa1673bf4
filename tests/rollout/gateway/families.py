"""Model folders in the shape of several families: their special tokens, and templates of our own that say what theirs say."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from tests.rollout.gateway.world import model_folder

LLAMA_3 = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}"
    "{% if not loop.first and loop.previtem.role == 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}[INST] {{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}</s>"
    "{% else %}{{ raise_exception('only user and assistant are known') }}{% endif %}{% endfor %}"
)
STRIPS_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENS_THOUGHTS = STRIPS_THOUGHTS.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")

SPECIAL = {
    "llama-3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "mistral": ("<s>", "</s>", "[INST]", "[/INST]"),
    "thoughts": (),
}
END = {"llama-3": "<|eot_id|>", "mistral": "</s>", "thoughts": "<|im_end|>"}


def folder(where: Path, template: str, special: tuple[str, ...] = (), plain: tuple[str, ...] = (), end: str = "<|im_end|>") -> Path:
    """`special` tokens are not shown as text, `plain` ones are."""
    made = model_folder(where, template)
    tokenizer = Tokenizer.from_file(str(made / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    tokenizer.save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    return made


def qwen3(where: Path) -> Path:
    from renderers.qwen3 import _TOOLS_FOOTER, _TOOLS_HEADER

    template = (
        "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
        + _TOOLS_HEADER
        + "{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}"
        + "{{ '\n' }}"
        + _TOOLS_FOOTER.removeprefix("\n")
        + "<|im_end|>\n{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
        "{% for m in messages %}{% if m.role == 'tool' %}"
        "{% if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}{{ '\n' }}<tool_response>\n{{ m.content }}\n</tool_response>"
        "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
        "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{% if loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}"
        "{% for call in m.tool_calls or [] %}{% if not loop.first or m.content %}{{ '\n' }}{% endif %}<tool_call>\n"
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n'
        "{% elif not (loop.first and m.role == 'system') %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return folder(where, template, plain=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"))


def glm45(where: Path) -> Path:
    from renderers.glm45 import _TOOLS_FOOTER, _TOOLS_HEADER

    template = (
        "[gMASK]<sop>{% if tools %}<|system|>"
        + _TOOLS_HEADER
        + "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
        + _TOOLS_FOOTER
        + "{% endif %}{% for m in messages %}{% if m.role == 'user' %}<|user|>\n{{ m.content }}"
        "{% elif m.role == 'system' %}<|system|>\n{{ m.content }}"
        "{% elif m.role == 'tool' %}{% if loop.previtem.role != 'tool' %}<|observation|>{% endif %}{{ '\n' }}"
        "<tool_response>\n{{ m.content }}\n</tool_response>"
        "{% else %}<|assistant|>\n<think></think>\n{{ m.content }}{% for call in m.tool_calls or [] %}{{ '\n' }}<tool_call>{{ call.function.name }}\n"
        "{% for name, value in call.function.arguments.items() %}<arg_key>{{ name }}</arg_key>\n<arg_value>"
        "{{ value if value is string else value | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    made = folder(
        where,
        template,
        special=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        plain=("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        end="<|endoftext|>",
    )
    ends = [Tokenizer.from_file(str(made / "tokenizer.json")).token_to_id(text) for text in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    (made / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return made
