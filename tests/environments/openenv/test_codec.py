"""Schemas to codecs: what is found by itself, what has to be named, and what reaches a server."""

from typing import Any

import pytest

from miner.config.channel_settings import OpenEnvSettings
from miner.config.errors import ConfigurationError
from miner.environments.openenv.codec import InvalidReply, all_fields, codec_for, takes_tools

METADATA = {"metadata": {"type": "object", "default": {}}}


def schema(*required: str, **kinds: Any) -> dict[str, Any]:
    """Actions with these fields; a text is a JSON type."""
    fields = {k: {"type": v} if isinstance(v, str) else v for k, v in kinds.items()}
    return {"title": "MoveAction", "properties": METADATA | fields, "required": list(required)}


def codec(actions: dict[str, Any], tools: list[dict[str, Any]] | None = None, **settings: Any):
    return codec_for(actions, OpenEnvSettings(**settings), tools)


OPTIONAL_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("actions", "settings", "action"),
    [
        (schema("message", message="string"), {}, {"message": "4"}),
        (schema(message="string"), {}, {"message": "4"}),
        (schema(message=OPTIONAL_TEXT), {}, {"message": "4"}),
        (schema("action_id", action_id="integer", game="string"), {}, {"action_id": 4}),
        (schema("a", "b", a="string", b="string"), {"action": "b"}, {"b": "4"}),
        (
            schema("a", "b", a="string", b="integer"),
            {"action": {"a": "say {reply}!", "b": [0, "{reply}"]}},
            {"a": "say 4!", "b": [0, "4"]},
        ),
        (schema("b", b="integer"), {"action": {"b": "{integer}"}}, {"b": 4}),
    ],
)
def test_a_reply_becomes_an_action(actions: Any, settings: Any, action: Any) -> None:
    assert codec(actions, **settings).action("4", {}) == action


def test_replies_may_be_json() -> None:
    actions = schema("x", "y", x="integer", y={"enum": ["up", "down"], "type": "string"})
    spoken = codec(actions, action="json")
    assert spoken.action('{"x": 1, "y": "up"}', {}) == {"x": 1, "y": "up"}
    assert spoken.action(spoken.dull({}, 0), {}) == {"x": 0, "y": "up"}
    fence = '```json\n{"x": 1,\n"y": "```"}\n```'
    for reply in (fence, f"I go there:\n{fence}\nDone.", fence[:-4] + "```",
                  fence.replace("json\n", "JSON \r\n")):  # fmt: skip
        assert spoken.action(reply, {}) == {"x": 1, "y": "```"}
    for reply in ("x", "[1]", "[" * 100_000, "```json\nx\n```"):
        with pytest.raises(InvalidReply, match="JSON"):
            spoken.action(reply, {})


@pytest.mark.parametrize(
    ("actions", "settings", "says"),
    [
        (schema("a", "b", a="string", b="string"), {}, 'action={a = "{reply}", b = "{reply}"}'),
        (schema("a", a="array"), {}, "a (array, required)"),
        (schema(), {}, "no fields"),
        ({}, {}, "no fields"),
        (schema("a", a="string"), {"action": "b"}, "'b' is not a field"),
        (schema("a", "b", a="array", b="string"), {"action": "a"}, "takes array"),
        (schema("a", a="string"), {"action": {"a": "hello"}}, "no place for the reply"),
    ],
)
def test_a_schema_that_leaves_a_choice_is_refused_with_the_way_out(
    actions: Any, settings: Any, says: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        codec(actions, **settings)
    assert says in str(caught.value)
    assert "environment.openenv.action" in str(caught.value)


def tool(name: str, **arguments: str) -> dict[str, Any]:
    return {"name": name, "input_schema": schema(*arguments, **arguments)}


def test_tools_are_called_where_there_is_only_one_way_to() -> None:
    assert takes_tools(schema("tool_name", tool_name="string", arguments="object"))
    assert takes_tools(schema())
    assert not takes_tools(schema("message", message="string"))
    assert codec(schema(), [tool("echo", message="string")]).action("hi", {}) == {
        "type": "call_tool",
        "tool_name": "echo",
        "arguments": {"message": "hi"},
    }
    two = [tool("echo", message="string"), tool("move", x="integer", y="integer")]
    for offered in (two, two[1:], []):
        with pytest.raises(ConfigurationError, match="tool_name") as caught:
            codec(schema(), offered)
    assert "none" in str(caught.value)


NUMBERS = codec(schema("action_id", action_id="integer"))
BOARD = {"board": "x.o", "legal_actions": [1, 4], "metadata": {"id": "secret"}}


def test_numbers_are_found_in_a_reply_and_only_legal_ones_are_sent() -> None:
    assert NUMBERS.action("I take 4, not 1", BOARD) == {"action_id": 4}
    assert NUMBERS.action("-3", {}) == {"action_id": -3}
    with pytest.raises(InvalidReply, match=r"2 is not a legal action\. Legal actions: 1, 4"):
        NUMBERS.action("2", BOARD)
    for reply in ("none", "1" * 5000):
        with pytest.raises(InvalidReply, match=r"whole number\. Legal actions: 1, 4"):
            NUMBERS.action(reply, BOARD)
    assert [NUMBERS.dull(BOARD, number) for number in range(3)] == ["1", "4", "1"]
    assert NUMBERS.dull({"legal_actions": []}, 0) == "0"


@pytest.mark.parametrize(
    ("show", "observation", "text"),
    [
        ("", {"echo": "hello", "metadata": {"id": 1}}, "hello"),
        ("", {"echo": "é", "length": 1}, '{"echo": "é", "length": 1}'),
        ("echo", {"echo": "hello", "length": 5}, "hello"),
        ("length", {"echo": "hello", "length": 5}, "5"),
        ("", {"tiles": [1, 2]}, '{"tiles": [1, 2]}'),
        ("", {}, ""),
    ],
)
def test_the_policy_is_shown_the_text_or_all_of_it(show: str, observation: Any, text: str) -> None:
    assert codec(schema("message", message="string"), show=show).text(observation) == text


def test_legal_actions_are_listed_where_numbers_are_asked_for() -> None:
    assert NUMBERS.text(BOARD) == "x.o\nLegal actions: 1, 4"
    with pytest.raises(ConfigurationError, match="it has board, legal_actions"):
        codec(schema("i", i="integer"), show="text").text(BOARD)


@pytest.mark.parametrize(
    ("actions", "fields"),
    [
        (schema("a", a="string"), {"a", "metadata"}),
        (schema(), {"metadata", "type", "tool_name", "arguments"}),  # OpenEnv's base class
        ({"oneOf": [schema("a", a="string")]}, None),
    ],
)
def test_the_fields_that_an_action_may_have(actions: Any, fields: set[str] | None) -> None:
    assert all_fields(actions) == fields
