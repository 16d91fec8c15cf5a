"""Chat templates of bases that come without one and are served with the validator's.

The validator's files are read from the user's copy of the tournament's, where it is; else these
are of the same layout in our own words. Both ask for calls in the form that is read (qwen25).
"""

from pathlib import Path
from typing import Final

FOLDER: Final = Path("core/pvp/chat_templates")
"""Of the validator's files, in the tournament's repository and in a copy of it."""
COPY: Final = Path("tournament") / FOLDER
"""Folder that `python -m miner prompts` writes them to."""

_CALLS = (
    "Tools:\\n' + tools | tojson + '\\nCall one so, and write nothing else: <tool_call>\\n"
    '{"name": NAME, "arguments": {KEY: VALUE}}\\n</tool_call>'
)
_BOS = "{{ bos_token | default('', true) }}"
_GEMMA = (
    _BOS + "{%- if tools %}{{ '<start_of_turn>user\\n" + _CALLS + "<end_of_turn>\\n' }}{% endif %}"
    "{%- for message in messages %}"
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}"
    "{{ message.content + '<end_of_turn>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
_MINISTRAL = (
    _BOS + "{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}{{ message.content + eos_token | default('', true) }}"
    "{%- else %}{{ '[INST] ' }}"
    "{%- if loop.first and tools %}{{ '" + _CALLS + "\\n' }}{% endif %}"
    "{{ message.content + ' [/INST]' }}{% endif %}"
    "{%- endfor %}"
)

_BY_TYPE = {
    "gemma4": ("gemma4_base_tool.jinja", _GEMMA),
    "mistral3": ("ministral3_base_tool.jinja", _MINISTRAL),
    "ministral3": ("ministral3_base_tool.jinja", _MINISTRAL),
}
"""By the beginning of the model's type: the validator's file, and ours."""

FILES: Final = tuple(dict.fromkeys(name for name, _ in _BY_TYPE.values()))


def base_template(model_type: str, copy: Path = COPY) -> tuple[str, str] | None:
    """Return the template of a base of this type that has none, and a sentence about its source.

    None for a type that the validator has no template for.
    """
    for kind, (name, own) in _BY_TYPE.items():
        if model_type.startswith(kind):
            file = copy / name
            if file.is_file():
                return file.read_text(encoding="utf-8"), f"the validator's ({file}) is used"
            return own, "one in our own words is used, of the validator's layout"
    return None
