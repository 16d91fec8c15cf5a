"""Text to action and observation to text, for any OpenEnv environment whose schema is understood.

Invariants:
* which way a reply becomes an action is settled before anything is played, by the server's schema
  or by a setting; a schema that leaves a choice is refused, with the way out;
* a reply that is not an action, or not one of the observation's `legal_actions`, is never sent.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from miner.config.channel_settings import OpenEnvSettings
from miner.config.errors import ConfigurationError
from miner.encodable import encodable

Json = dict[str, Any]

REPLY: Final = "{reply}"
INTEGER: Final = "{integer}"
JSON_REPLIES: Final = "json"
_OPEN_FIELDS: Final = frozenset({"metadata"})
"""OpenEnv gives them to every action and observation, for anything."""

_FENCED = re.compile(
    r"^```(?:json)?[ \t]*\r?\n(.*?)\s*```[ \t]*$", re.DOTALL | re.MULTILINE | re.IGNORECASE
)
_NUMBER = re.compile(r"(?<!\d)-?\d{1,12}(?!\d)")
_SAMPLES: Final[Json] = {
    "string": "a", "integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {},
}  # fmt: skip


class InvalidReply(Exception):
    """The reply is not an action; the text gives the policy the reason."""


@dataclass(frozen=True, slots=True)
class Codec:
    """Form of observations and actions.

    Attributes:
        template: an action with `REPLY` or `INTEGER` where the reply goes; None where the reply is
            the action itself, as JSON.
        show: the field of an observation that is shown; empty for all of it.
        dull_json: a reply that is an action, where replies are JSON.
    """

    template: Json | None
    show: str = ""
    dull_json: str = "{}"

    def __str__(self) -> str:
        if self.template is None:
            return "a reply is the action, as JSON"
        return f"a reply becomes the action {json.dumps(self.template, ensure_ascii=False)}"

    @property
    def whole_number(self) -> bool:
        """Return whether replies are numbers."""
        return self.template is not None and _holds(self.template, INTEGER)

    def action(self, reply: str, observation: Json) -> Json:
        """Return the action to send. Raises: `InvalidReply`."""
        if self.template is None:
            return _object(reply)
        text = encodable(reply)
        value = _legal_number(text, observation) if self.whole_number else text
        filled = _filled(self.template, value)
        assert isinstance(filled, dict)
        return filled

    def text(self, observation: Json) -> str:
        """Return the text for the policy. Raises: `ConfigurationError` where `show` is not
        there."""
        fields = {k: v for k, v in observation.items() if k not in _OPEN_FIELDS}
        legal = _legal(observation) if self.whole_number else None
        if self.show:
            if self.show not in fields:
                raise ConfigurationError(
                    f"environment.openenv.show={self.show!r} is not a field of the observation: it "
                    f"has {', '.join(fields) or 'none'}"
                )
            fields = {self.show: fields[self.show]}
        elif legal is not None:
            del fields["legal_actions"]
        [only, *others] = fields.values() or [""]
        if others or not isinstance(only, str):
            only = json.dumps(only if self.show else fields, ensure_ascii=False)
        return only if legal is None else f"{only}\nLegal actions: {_listed(legal)}"

    def dull(self, observation: Json, number: int) -> str:
        """A reply without any thought, the same for the same arguments; to find out what happens.

        Args:
            number: of the reply in its episode.
        """
        if self.template is None:
            return self.dull_json
        if not self.whole_number:
            return "a"
        legal = _legal(observation) or [0]
        return str(legal[number % len(legal)])


def codec_for(schema: Json, settings: OpenEnvSettings, tools: list[Json] | None = None) -> Codec:
    """The codec for actions of this JSON Schema.

    Args:
        tools: tools of an environment (MCP), where `takes_tools` holds.

    Raises: `ConfigurationError` naming the schema and what to set.
    """
    wanted = settings.action
    if isinstance(wanted, dict):
        if not (_holds(wanted, REPLY) or _holds(wanted, INTEGER)):
            raise ConfigurationError(
                f"environment.openenv.action={wanted!r} has no place for the reply: write "
                f'"{REPLY}" (or "{INTEGER}") where it goes'
            )
        return Codec(wanted, settings.show)
    fields = _fields(schema)
    if wanted == JSON_REPLIES:
        return Codec(None, settings.show, json.dumps(_sample(schema, fields)))
    if tools is not None and not wanted:
        return Codec(_tool_template(tools), settings.show)
    name = wanted or _only_field(schema, fields)
    if name not in fields:
        raise ConfigurationError(
            f"environment.openenv.action={name!r} is not a field of the server's actions: they "
            f"have {_described(schema, fields)}"
        )
    kind = _kind(fields[name])
    if kind not in ("string", "integer"):
        raise ConfigurationError(
            f"the action's field {name!r} takes {kind}, not a text or a whole number: "
            f"{_way_out(schema, fields)}"
        )
    return Codec({name: INTEGER if kind == "integer" else REPLY}, settings.show)


def takes_tools(schema: Json) -> bool:
    """Return whether actions call tools (MCP), so that the server has to be asked which."""
    fields = _fields(schema)
    return not fields or {"tool_name", "arguments"} <= fields.keys()


def all_fields(schema: Json) -> frozenset[str] | None:
    """Names of the fields that an action may have; None where the schema does not list them."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return None  # such as a choice between several kinds of actions
    tools = _call("", {}) if takes_tools(schema) else {}
    return frozenset({*properties, *tools})


def _fields(schema: Json) -> dict[str, Json]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {k: v for k, v in properties.items() if k not in _OPEN_FIELDS and isinstance(v, dict)}


def _required(schema: Json, fields: Mapping[str, Json]) -> list[str]:
    required = schema.get("required")
    return [name for name in required if name in fields] if isinstance(required, list) else []


def _only_field(schema: Json, fields: Mapping[str, Json]) -> str:
    """The one that must take the reply. Raises: `ConfigurationError`."""
    candidates = _required(schema, fields) or list(fields)
    if len(candidates) == 1 and _kind(fields[candidates[0]]) in ("string", "integer"):
        return candidates[0]
    raise ConfigurationError(
        f"the server's actions are {schema.get('title', 'an object')!s} with "
        f"{_described(schema, fields)}: which of them takes the reply is not clear; "
        f"{_way_out(schema, fields)}"
    )


def _way_out(schema: Json, fields: Mapping[str, Json]) -> str:
    some = _sample(schema, fields) or {"field": ""}
    table = ", ".join(f'{name} = "{REPLY}"' for name in some)
    return (
        "name the field in environment.openenv.action, or a table such as "
        f"'environment.openenv.action={{{table}}}', or \"{JSON_REPLIES}\" for replies in JSON"
    )


def _described(schema: Json, fields: Mapping[str, Json]) -> str:
    required = _required(schema, fields)
    named = (f"{n} ({_kind(f)}{', required' * (n in required)})" for n, f in fields.items())
    return ", ".join(named) or "no fields"


def _kind(field: Json) -> str:
    """JSON Schema's type of a field; "string" also for one that may be null besides."""
    kinds = [each.get("type") for each in field.get("anyOf", [field]) if isinstance(each, dict)]
    [kind, *others] = [str(each) for each in kinds if each != "null"] or ["anything"]
    return " or ".join([kind, *others])


def _sample(schema: Json, fields: Mapping[str, Json]) -> Json:
    names = _required(schema, fields) or list(fields)
    return {
        name: fields[name].get("enum", [_SAMPLES.get(_kind(fields[name]))])[0] for name in names
    }


def _tool_template(tools: list[Json]) -> Json:
    """A call of the only tool with the only argument. Raises: `ConfigurationError`."""
    offered = []
    for tool in tools:
        schema = tool.get("input_schema") or tool.get("inputSchema") or {}
        fields = _fields(schema)
        arguments = _required(schema, fields) or list(fields)
        offered.append(f"{tool.get('name')}({', '.join(arguments)})")
        kinds = [_kind(fields[name]) for name in arguments]
        if len(tools) == 1 and kinds in (["string"], ["integer"]):
            place = INTEGER if kinds == ["integer"] else REPLY
            return _call(str(tool.get("name")), {arguments[0]: place})
    raise ConfigurationError(
        f"the server's actions call tools and it offers {', '.join(offered) or 'none'}: name one "
        "and where the reply goes, as in 'environment.openenv.action="
        '{type = "call_tool", tool_name = "NAME", arguments = {ARGUMENT = "' + REPLY + "\"}}'"
    )


def _call(tool: str, arguments: Json) -> Json:
    return {"type": "call_tool", "tool_name": tool, "arguments": arguments}


def _holds(value: Any, place: str) -> bool:
    if isinstance(value, dict):
        return any(_holds(each, place) for each in value.values())
    if isinstance(value, list):
        return any(_holds(each, place) for each in value)
    return isinstance(value, str) and place in value


def _filled(value: Any, reply: str | int) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, reply) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, reply) for each in value]
    if value in (REPLY, INTEGER):
        return reply
    if isinstance(value, str):
        return value.replace(REPLY, str(reply)).replace(INTEGER, str(reply))
    return value


def _object(reply: str) -> Json:
    fenced = _FENCED.search(reply)  # JSON itself has no line break within a text
    words = fenced[1] if fenced else reply
    try:
        value = msgspec.json.decode(words)  # unlike json's, never what cannot be sent again
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidReply("The reply is not JSON: answer with one JSON object.") from error
    if not isinstance(value, dict):
        raise InvalidReply("The reply is no JSON object: answer with one.")
    return value


def _legal(observation: Json) -> list[int] | None:
    """The actions that the observation lists as legal, None where it has no such list."""
    listed = observation.get("legal_actions")
    if isinstance(listed, list) and all(type(each) is int for each in listed):
        return listed
    return None


def _legal_number(reply: str, observation: Json) -> int:
    found, legal = _NUMBER.search(reply), _legal(observation)
    choice = "" if legal is None else f" Legal actions: {_listed(legal)}"
    if found is None:
        raise InvalidReply(f"No number in the reply: answer with a whole number.{choice}")
    number = int(found[0])
    if legal is not None and number not in legal:
        raise InvalidReply(f"{number} is not a legal action.{choice}")
    return number


def _listed(legal: list[int]) -> str:
    return ", ".join(map(str, legal))
