"""Short chat templates with the structure of well-known families, and tokenizers to go with them."""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather somewhere.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}

_TOOLS = (
    "{%- if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "Functions:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n"
    'Write <tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|im_end|>\n'
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
)
_CALLS = (
    "{% for call in m.tool_calls %}{% set f = call.function %}"
    '{{ "\n" if not loop.first or text }}<tool_call>\n{"name": "{{ f.name }}", '
    '"arguments": {{ f.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
_TOOL_TURN = (
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n' }}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
)
_OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

CHATML = (
    _TOOLS
    + "{% for m in messages %}{% set text = m.content or '' %}"
    + "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    + "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n"
    + "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ text }}"
    + _CALLS
    + "<|im_end|>\n{% elif m.role == 'tool' %}"
    + _TOOL_TURN
    + "{% endif %}{% endfor %}"
    + _OPEN
)

# As Qwen3: thoughts stay from the last user's message on, and those before it are removed.
THINKING = (
    _TOOLS
    + "{% set ns = namespace(last=0) %}{% for m in messages %}"
    + "{% if m.role == 'user' and not m.content.startswith('<tool_response>') %}{% set ns.last = loop.index0 %}"
    + "{% endif %}{% endfor %}{% for m in messages %}{% set text = m.content or '' %}"
    + "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    + "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n"
    + "{% elif m.role == 'assistant' %}{% set thoughts = '' %}{% if '</think>' in text %}"
    + "{% set thoughts = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    + "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}<|im_start|>assistant\n"
    + "{% if loop.index0 > ns.last and (loop.last or thoughts) %}<think>\n{{ thoughts }}\n</think>\n\n{% endif %}"
    + "{{ text }}"
    + _CALLS
    + "<|im_end|>\n{% elif m.role == 'tool' %}"
    + _TOOL_TURN
    + "{% endif %}{% endfor %}"
    + _OPEN
)

# As Qwen3-Coder: calls in tags.
TAGS = CHATML.replace(
    _CALLS,
    "{% for call in m.tool_calls %}{% set f = call.function %}"
    "{{ '\n' if not loop.first or text }}<tool_call>\n<function={{ f.name }}>"
    "{% for key, value in f.arguments.items() %}{{ '\n' }}<parameter={{ key }}>\n"
    "{{ value if value is string else value | tojson }}\n</parameter>{% endfor %}{{ '\n' }}</function>\n</tool_call>"
    "{% endfor %}",
)

# As Llama 3.1: one call a turn, results as JSON, contents without white space at their ends.
LLAMA = (
    "<|begin_of_text|>{% for m in messages %}"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "{% set f = m.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}<|eot_id|>'
    "{% elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>"
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if tools and loop.first %}Functions:{% for tool in tools %} {{ tool | tojson }}{% endfor %}\n\n{% endif %}"
    "{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

# As Mistral: roles must alternate but for calls, tools stand before the user's last message, ids have nine characters.
MISTRAL = (
    "{% set ns = namespace(turn=0, last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and m.tool_calls is undefined) %}"
    "{% if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.turn = ns.turn + 1 %}{% endif %}{% endfor %}<s>{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and loop.index0 == ns.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ m.content }}[/INST]{% elif m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "{{ ', ' if not loop.last }}{% endfor %}]</s>{% elif m.role == 'assistant' %} {{ m.content }}</s>"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] "
    '{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% endif %}{% endfor %}"
)

# As Gemma: neither tools nor a system's messages, roles must alternate, the assistant is called model.
GEMMA = (
    "<bos>{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

TEMPLATES = {
    "chatml": CHATML,
    "thinking": THINKING,
    "tags": TAGS,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "gemma": GEMMA,
}
_SPECIAL = {
    "llama": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eot_id|>"),
    "mistral": (
        "<s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_CALLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "</s>",
    ),
    "gemma": ("<bos>", "<start_of_turn>", "<end_of_turn>"),
}
_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_WORDS = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # line ends stay together
_LINES = (
    "What is the weather in Paris? It is sunny, 21 degrees.",
    '{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n\nsunny.\n21.\n.\n\n',
    "<|im_start|>system\nassistant user tool Functions: description parameters properties type object",
)


def family_tokenizer(family: str, **more: Any) -> PreTrainedTokenizerFast:
    """Byte-level BPE with the family's special tokens; the last of them ends a turn."""
    rust = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_only])
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(
        _LINES, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    special = _SPECIAL.get(family, _CHATML)
    rust.add_special_tokens(list(special))
    if special is _CHATML:
        rust.add_tokens(list(_ADDED))
    return PreTrainedTokenizerFast(
        tokenizer_object=rust,
        eos_token=special[-1],
        additional_special_tokens=list(special[:-1]),
        chat_template=TEMPLATES[family],
        clean_up_tokenization_spaces=False,
        **more,
    )
