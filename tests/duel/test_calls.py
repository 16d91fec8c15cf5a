"""Reading and writing tool calls: as SGLang reads them, as templates write them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miner.config.contract import ToolParser
from miner.config.errors import ConfigurationError
from miner.duel.calls import FORMS, content_of, parse_calls, write_calls
from miner.duel.family import folder_family
from miner.duel.tools import ToolCall, move_call, offered_tools, turn_tools
from miner.duel.wording import own_wording
from tests.builders import build_tokenizer, trl_template

OFFERED = offered_tools(turn_tools(own_wording(), range(70)))
NOTE = '{"name": "working_memory_rewrite", "arguments": {"slot": 1, "content": "a } ] \\" ü"}}'
MOVE = '{"name": "game_action", "arguments": {"action_id": 3}}'
LLAMA_MOVE = MOVE.replace("arguments", "parameters")
ODD = '{"name": "game_action", "arguments": "3"}'
EMPTY = '{"name": "game_action", "arguments": {}}'
TEXT_MOVE = '{"name": "game_action", "arguments": {"action_id": "three"}}'

Case = tuple[str, str, list[str]]


def _block(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


def _function(name: str, **parameters: Any) -> str:
    lines = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters.items())
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


def _lfm2(calls: str) -> str:
    return f"<|tool_call_start|>[{calls}]<|tool_call_end|>"


def _olmo(calls: str) -> str:
    return f"<function_calls>{calls}</function_calls>"


def _gemma(arguments: str, name: str = "game_action") -> str:
    return f"<|tool_call>call:{name}{{{arguments}}}<tool_call|>"


def _arguments(call: str) -> str:
    found = json.loads(call)
    return json.dumps(found.get("parameters") or found["arguments"], ensure_ascii=False)


PYTHON_NOTE = r"""working_memory_rewrite(slot=1, content="a } ] \" ü")"""

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
    ("qwen3_coder", _function("game_action", action_id=3), [MOVE]),
    ("qwen3_coder", "I bid.\n" + _function("game_action", action_id=3), [MOVE]),
    (
        "qwen3_coder",
        _function("working_memory_rewrite", slot=1, content='a } ] " ü')
        + "\n"
        + _function("game_action", action_id=3),
        [NOTE, MOVE],
    ),
    ("qwen3_coder", _function("game_action", action_id="three"), [TEXT_MOVE]),
    ("qwen3_coder", "3", []),
    ("olmo", _olmo("game_action(action_id=3)"), [MOVE]),
    ("olmo", _olmo(f"{PYTHON_NOTE}\ngame_action(action_id=3)"), [NOTE, MOVE]),
    ("olmo", _olmo("game_action(action_id=3"), []),
    ("olmo", "3", []),
    ("lfm2", _lfm2("game_action(action_id=3)"), [MOVE]),
    ("lfm2", "I bid. " + _lfm2(f"{PYTHON_NOTE}, game_action(action_id=3)"), [NOTE, MOVE]),
    ("lfm2", "3", []),
    ("gemma4", _gemma("action_id:3"), [MOVE]),
    (
        "gemma4",
        "I bid. "
        + _gemma('slot:1,content:<|"|>a } ] " ü<|"|>', "working_memory_rewrite")
        + _gemma("action_id:3"),
        [NOTE, MOVE],
    ),
    ("gemma4", "3", []),
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
    ("qwen3_coder", "<tool_call><function=game_action><parameter=action_id>3", [MOVE]),
    ("qwen3_coder", "<function=game_action><parameter=action_id>3</function>", []),
    ("qwen3_coder", _function("unknown", a=1) + _function("game_action", action_id=3), [MOVE]),
    ("qwen3_coder", "<tool_call><function=game_action</function></tool_call>", []),
    ("qwen3_coder", _block("<function=game_action>") + _function("x"), [EMPTY]),
    ("qwen3_coder", _function("game_action", action_id="NULL"), [MOVE.replace("3", "null")]),
    ("olmo", _olmo("game_action(3)"), []),
    ("olmo", _olmo("unknown(a=true)\ngame_action(action_id=3)"), [MOVE]),
    ("olmo", _olmo("game_action(action_id=3)\nimport os"), []),
    ("olmo", _olmo("game_action(action_id=3)\ngame_action(action_id=open('x'))"), []),
    ("olmo", _olmo("a.game_action(action_id=3)"), []),
    ("olmo", _olmo("game_action(action_id=b'3')"), []),
    ("olmo", "<function_calls>game_action(action_id=3)", []),
    ("olmo", _olmo("game_action(action_id=3)") + _olmo(PYTHON_NOTE), [MOVE]),
    ("olmo", _olmo("game_action(action_id=-3)"), [MOVE.replace("3", "-3")]),
    ("lfm2", f"<|tool_call_start|>[{MOVE}]<|tool_call_end|>", [MOVE]),
    ("lfm2", "<|tool_call_start|>game_action(action_id=3)<|tool_call_end|>", [MOVE]),
    ("lfm2", _lfm2("game_action(3), game_action(action_id=3)"), [MOVE]),
    ("lfm2", _lfm2("game_action(action_id=x), game_action(action_id=3)"), [MOVE]),
    ("lfm2", _lfm2("game_action(action_id=3)") + _lfm2(PYTHON_NOTE), [MOVE, NOTE]),
    ("lfm2", _lfm2("game_action(") + _lfm2("game_action(action_id=3)"), [MOVE]),
    ("lfm2", _lfm2("3, game_action(action_id=3)"), []),
    ("lfm2", "<|tool_call_start|>[game_action(action_id=3)]", []),
    ("gemma4", "<|tool_call>call:game_action{action_id:3}", []),
    ("gemma4", "<|tool_call>game_action{action_id:3}<tool_call|>", []),
    ("gemma4", _gemma("action_id: 3 "), [MOVE]),
    ("gemma4", _gemma("action_id:three"), [TEXT_MOVE]),
    ("gemma4", _gemma("action_id:true"), [MOVE.replace("3", "true")]),
    ("gemma4", _gemma("action_id:[1,{a:2.5}]"), [MOVE.replace("3", '[1, {"a": 2.5}]')]),
    ("gemma4", _gemma("]:}"), [EMPTY.replace("{}", '{"]": ""}')]),
    *(
        (family, text * 25_000, [])
        for family in FORMS
        for text in ("{", "[", "<tool_call>\n[", "-", FORMS[family].shown + "[{a:")
    ),
]
"""Where the tournament's engine decides."""


@pytest.mark.parametrize(("family", "text", "expected"), SHARED_CASES + SGLANG_CASES)
def test_calls_are_those_of_the_serving_engine(family: str, text: str, expected: list[str]) -> None:
    found = parse_calls(family, text, OFFERED)
    assert [(call.name, call.arguments) for call in found] == [
        (json.loads(call)["name"], _arguments(call)) for call in expected
    ]


CALLS = [
    ToolCall("working_memory_rewrite", '{"content": "raises with a king", "slot": 2}'),
    ToolCall("game_action", '{"action_id": 3}'),
]


@pytest.mark.parametrize(
    ("family", "template", "calls"),
    [
        ("qwen25", "qwen2_5", CALLS),
        ("qwen25", "qwen3_instruct_2507", CALLS),
        ("hermes", "qwen3", CALLS),
        ("qwen3_coder", "qwen3_5_nothink", CALLS),
        ("qwen3_coder", "nemotron_3_nano", CALLS),
        ("lfm2", "lfm2_2_5_v2", CALLS),
        ("gemma4", "gemma4_v5", CALLS),
        ("llama3", "llama3_2", CALLS[1:]),
    ],
)
def test_calls_are_written_as_the_familys_template_renders_them(
    family: str, template: str, calls: list[ToolCall]
) -> None:
    made = [
        {"type": "function", "function": {"name": call.name, "arguments": call.decoded()}}
        for call in calls
    ]
    rendered = build_tokenizer().apply_chat_template(
        [
            {"role": "user", "content": "Your move?"},
            {"role": "assistant", "content": "", "tool_calls": made},
        ],
        chat_template=trl_template(template),
        tokenize=False,
    )
    assert write_calls(family, calls) in rendered
    assert FORMS[family].shown in trl_template(template)


MARKS = ("<", "tool_call", "parameter", "function")
NOTES = st.text().filter(lambda text: not any(mark in text for mark in MARKS) and text != "null")


@given(
    family=st.sampled_from(sorted(FORMS)),
    slot=st.integers(-1, 9),
    content=NOTES,
    action=st.integers(),
)
def test_what_is_written_is_read_back_and_written_again_byte_for_byte(
    family: str, slot: int, content: str, action: int
) -> None:
    note = json.dumps({"content": content, "slot": slot}, ensure_ascii=False)
    calls = [ToolCall("working_memory_append", note), move_call(action)]
    text = write_calls(family, calls)
    assert parse_calls(family, text, OFFERED) == calls
    assert write_calls(family, parse_calls(family, text, OFFERED)) == text


@pytest.mark.parametrize(
    ("family", "content"),
    [
        ("qwen3_coder", "a</parameter>"),
        ("qwen3_coder", "null"),
        ("gemma4", 'a<|"|>'),
        ("gemma4", "<tool_call|>"),
        ("olmo", "</function_calls>"),
        ("lfm2", "<|tool_call_end|>"),
        ("llama3", "<|python_tag|>"),
    ],
)
def test_what_a_form_cannot_hold_is_refused(family: str, content: str) -> None:
    arguments = json.dumps({"slot": 1, "content": content}, ensure_ascii=False)
    with pytest.raises(ValueError, match=f"no calls of the form {family}"):
        write_calls(family, [ToolCall("working_memory_rewrite", arguments)])


@given(st.data())
@settings(max_examples=400)
def test_no_malformed_reply_raises_or_calls_what_was_not_offered(data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(sorted(FORMS)))
    text = write_calls(family, CALLS)
    for _ in range(data.draw(st.integers(1, 4))):
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        odd = data.draw(st.sampled_from([*_PIECES, text[start:stop]]) | st.text(max_size=5))
        text = text[:start] + odd + text[data.draw(st.sampled_from([start, stop])) :]
    for call in parse_calls(family, text, OFFERED):
        assert call.name in OFFERED
        json.loads(call.arguments)
        call.decoded()


_PIECES = [
    "",
    *"{}[](),:=\"'\\\n",
    "<",
    "true",
    "null",
    "name",
    *(form.shown for form in FORMS.values()),
]


def test_every_parser_of_the_settings_has_a_form() -> None:
    assert set(FORMS) == set(get_args(ToolParser))


GEMMA_IT = trl_template("gemma4_v5")
VALIDATORS = 'respond only with <tool_call>\n{"name":"function_name","arguments":{...}}'


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
        ("0123456789abcdef", "qwen3_5", trl_template("qwen3_5_nothink"), "qwen3_coder"),
        ("0123456789abcdef", "nemotron_h", trl_template("nemotron_3_nano"), "qwen3_coder"),
        ("0123456789abcdef", "granite", "<tool_call>", "qwen25"),
        ("0123456789abcdef", "olmo3", "<function_calls>", "olmo"),
        ("0123456789abcdef", "olmo_hybrid", "<function_calls>", "olmo"),
        ("0123456789abcdef", "lfm2", trl_template("lfm2_2_5_v2"), "lfm2"),
        ("google--gemma-4-E2B", "gemma4", None, "qwen25"),
        ("google--gemma-4-E2B-it", "gemma4", GEMMA_IT, "gemma4"),
        ("gemma-4-E2B", "gemma4", None, "qwen25"),
        ("gemma-4-E2B", "gemma4_text", VALIDATORS, "qwen25"),
        ("gemma-4-E2B-it", "gemma4", GEMMA_IT, "gemma4"),
        ("0123456789abcdef", "gemma4", None, "qwen25"),
        ("0123456789abcdef", "gemma4_text", VALIDATORS, "qwen25"),
        ("0123456789abcdef", "gemma4", GEMMA_IT, "gemma4"),
        ("mistralai--Ministral-3-3B-Base-2512", "mistral3", None, "qwen25"),
        ("Ministral-3-3B-Base-2512", "mistral3", None, "qwen25"),
        ("0123456789abcdef", "mistral3", None, "qwen25"),
        ("0123456789abcdef", "ministral3", VALIDATORS, "qwen25"),
        ("0123456789abcdef", "mistral3", "[TOOL_CALLS]", "mistral"),
    ],
)
def test_name_type_and_template_determine_the_parser(
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


@pytest.mark.parametrize("family", FORMS)
def test_words_before_a_call_are_its_content_in_every_family(family: str) -> None:
    calls = [ToolCall("game_action", '{"action_id": 4}')]
    text = write_calls(family, calls, "Bid: 5")
    assert parse_calls(family, text, {"game_action": {"action_id": {"type": "integer"}}}) == calls
    assert content_of(family, text, calls).strip() == "Bid: 5"
    assert write_calls(family, [], "Bid: 5") == "Bid: 5"
