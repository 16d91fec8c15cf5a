"""Reading tool calls by family: as SGLang reads them, and as vLLM does where the two agree."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from miner.config.errors import ConfigurationError
from miner.duel.calls import PARSERS, parse_calls
from miner.duel.family import folder_family

OFFERED = ("working_memory_rewrite", "game_action")
NOTE = '{"name": "working_memory_rewrite", "arguments": {"slot": 1, "content": "a } ] \\" ü"}}'
MOVE = '{"name": "game_action", "arguments": {"action_id": 3}}'
LLAMA_MOVE = MOVE.replace("arguments", "parameters")
ODD = '{"name": "game_action", "arguments": "3"}'

Case = tuple[str, str, list[str]]


def _block(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


def _arguments(call: str) -> str:
    found = json.loads(call)
    return json.dumps(found.get("parameters") or found["arguments"], ensure_ascii=False)


SHARED_CASES: list[Case] = [
    ("hermes", _block(MOVE), [MOVE]),
    ("hermes", f"I bid.\n{_block(NOTE)}\n{_block(MOVE)}", [NOTE, MOVE]),
    ("hermes", f"<tool_call>{MOVE}</tool_call>", [MOVE]),
    ("hermes", f"<tool_call>\n{MOVE}", [MOVE]),
    ("hermes", _block(ODD), [ODD]),
    ("hermes", "game_action 3", []),
    ("hermes", "<tool_call>\ngame_action(3)\n</tool_call>", []),
    ("qwen25", _block(MOVE), [MOVE]),
    ("qwen25", f"thinking\n{_block(NOTE)}\n{_block(MOVE)}", [NOTE, MOVE]),
    ("qwen25", "3", []),
    ("llama3", LLAMA_MOVE, [LLAMA_MOVE]),
    ("llama3", MOVE, [MOVE]),
    ("llama3", f"<|python_tag|>{LLAMA_MOVE}", [LLAMA_MOVE]),
    ("llama3", f"{NOTE};{MOVE}", [NOTE, MOVE]),
    ("llama3", "3", []),
    ("llama3", '{"action_id": 3', []),
    ("mistral", f"[TOOL_CALLS] [{MOVE}]", [MOVE]),
    ("mistral", f"[TOOL_CALLS] [{NOTE}, {MOVE}]", [NOTE, MOVE]),
    ("mistral", "3", []),
]
"""Read alike by both engines: tests/real_vllm asks vLLM's parsers."""

SGLANG_CASES: list[Case] = [
    ("hermes", f"{_block(NOTE)}\n<tool_call>\nbroken</tool_call>\n{_block(MOVE)}", [NOTE]),
    ("hermes", f"{_block('[1]')}{_block(MOVE)}", []),
    ("hermes", _block('{"name": "unknown", "arguments": {}}') + _block(MOVE), [MOVE]),
    ("hermes", _block('{"name": ["game_action"]}') + _block(MOVE), []),
    ("qwen25", f"<tool_call>{MOVE}</tool_call>", []),
    ("qwen25", f"<tool_call>\n{MOVE}", []),
    ("qwen25", f"{_block('broken')}\n{_block(MOVE)}", [MOVE]),
    ("qwen25", f"{_block(NOTE)}\n{_block('3')}", []),
    ("llama3", f" {MOVE}", []),
    ("llama3", f"I play {MOVE}", []),
    ("llama3", f'{{"name": broken}} then {MOVE}', [MOVE]),
    ("llama3", f'{{"name": "unknown"}};{MOVE}', [MOVE]),
    ("mistral", '[TOOL_CALLS]game_action[ARGS]{"action_id": 3}', [MOVE]),
    ("mistral", '[TOOL_CALLS] [{"name": "game_action", "arguments"', []),
    ("mistral", "[TOOL_CALLS]game_action[ARGS]3", []),
    *((family, text * 25_000, []) for family in PARSERS for text in ("{", "[", "<tool_call>\n[")),
]
"""Where the tournament's engine decides."""


@pytest.mark.parametrize(("family", "text", "expected"), SHARED_CASES + SGLANG_CASES)
def test_calls_are_those_of_the_serving_engine(family: str, text: str, expected: list[str]) -> None:
    found = parse_calls(family, text, OFFERED)
    assert [(call.name, call.arguments) for call in found] == [
        (json.loads(call)["name"], _arguments(call)) for call in expected
    ]


@pytest.mark.parametrize(
    ("name", "kind", "template", "family"),
    [
        ("Hermes-3-Llama-3.2-3B", "llama", "", "hermes"),
        ("0123456789abcdef", "qwen3", "<tool_call>", "qwen25"),
        ("0123456789abcdef", "llama", "", "llama3"),
        ("0123456789abcdef", "llama", "<tool_call>", "hermes"),
        ("CodeLlama-7b", "", None, "llama3"),
        ("Mixtral-8x7B", "", "", "mistral"),
        ("0123456789abcdef", "gpt2", {"default": "", "tool_use": "[TOOL_CALLS]"}, "mistral"),
    ],
)
def test_name_type_and_template_tell_the_parser(
    tmp_path: Path, name: str, kind: str, template: object, family: str
) -> None:
    assert folder_family(_folder(tmp_path, name, kind), _tokenizer(template)) == family


def test_a_model_of_no_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'0123456789abcdef' or 'gpt2'"):
        folder_family(_folder(tmp_path, "0123456789abcdef", "gpt2"), _tokenizer(""))


def _folder(under: Path, name: str, kind: str) -> Path:
    (under / name).mkdir()
    (under / name / "config.json").write_text(json.dumps({"model_type": kind}))
    return under / name


def _tokenizer(template: object) -> Any:
    return SimpleNamespace(chat_template=template)
