"""Reads the tournament's own sentences from a copy of its files, without running any of them.

The YAML file gives rules and template; from the Python files only literals are taken: constants,
and the fixed parts of f-strings whose placeholders are known here by name. Anything of another
form than expected is an error that names the file and the thing, never a guess.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from miner.config.errors import ConfigurationError
from miner.config.upstream import Source
from miner.duel.memory import MEMORY_TOOLS, SLOTS
from miner.duel.wording import ToolWording, Wording, own_wording
from miner.games import GAMES

FILES = {
    "prompts": ("core/pvp/game_prompts.yml", "core/config/pvp_game_prompts.yml"),
    "bot": ("core/pvp/bot.py",),
    "tools": ("core/pvp/tools.py",),
    "models": ("core/models/pvp_models.py",),
}
"""Paths in the tournament's repository; the first that exists counts."""

COPY = Path("tournament")
"""Default folder of a copy."""

_WITH_RULES = ("goofspiel", "liars_dice", "leduc_poker", "gin_rummy", "othello", "clobber")
"""Games whose rules have to stand in the file of prompts; others may be a user's."""

_MARK = "\x00"


def wording_of(folder: Path | None) -> Wording:
    """The tournament's sentences from `folder`, or from `COPY`, else our own.

    Raises: `ConfigurationError` as `read_wording`.
    """
    if folder is None and not any(place.is_file() for place in _places(COPY, "prompts")):
        return own_wording()
    return read_wording(folder or COPY)


def tournament_files(folder: Path) -> dict[str, Path]:
    """The files to read in a copy, which keeps the repository's folders or is flat.

    Raises: `ConfigurationError` that names what is missing.
    """
    found: dict[str, Path] = {}
    for kind, names in FILES.items():
        present = [place for place in _places(folder, kind) if place.is_file()]
        if not present:
            raise ConfigurationError(
                f"{folder} holds no copy of the tournament's {names[0]}: copy that file from the "
                "tournament's repository, in its folder or beside the others"
            )
        found[kind] = present[0]
    return found


def _places(folder: Path, kind: str) -> list[Path]:
    """Possible paths of a file in a copy; the first that exists counts."""
    names = FILES[kind]
    return [folder / name for name in names] + [folder / Path(name).name for name in names]


def read_wording(folder: Path) -> Wording:
    """The tournament's sentences from a copy of its files.

    Raises: `ConfigurationError` for a file that is missing or of another form than expected.
    """
    files = tournament_files(folder)
    bot, tools = Wordings(files["bot"]), Wordings(files["tools"])
    hint = bot.texts_in("_legal_hint")
    described = tools.template("build_game_action_tool", {"legal_hint": _MARK})
    if len(hint) < 2:
        raise ConfigurationError(f"{bot.path}: _legal_hint has another form than expected")
    before, _, after = described.partition(_MARK)
    result, state, request = bot.template(
        "_reflection_user_prompt", {"outcome.value.upper()": _MARK, "state_desc": _MARK}
    ).split(_MARK)
    models = Wordings(files["models"])
    return Wording(
        source=str(folder),
        heads=_heads(files["prompts"]),
        turn_tail=bot.text("_TOOL_GUIDANCE"),
        reflection_tail=bot.text("_REFLECTION_GUIDANCE"),
        reflection=(result, state, request),
        tools=ToolWording(
            memory=_memory_descriptions(tools),
            slot=models.field_description("MemorySlotEdit", "slot"),
            content=models.field_description("MemorySlotEdit", "content"),
            action_id=models.field_description("GameActionArgs", "action_id"),
            move=(before + hint[0], hint[-1] + after),
        ),
    )


def _heads(path: Path) -> dict[str, str]:
    """System prompts by game; one whose rules are not in the file has its own in them."""
    try:
        prompts = yaml.safe_load(path.read_text(encoding="utf-8"))
        template = prompts["system_prompt_template"]
        others = GAMES.keys() - set(_WITH_RULES)
        own = {f"{name}_rules": GAMES[name].rules for name in others}
        rules = own | prompts
        return {
            name: template.format(game_name=name, rules=rules[f"{name}_rules"]) for name in GAMES
        }
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise ConfigurationError(
            f"{path} is not the tournament's file of prompts: {type(error).__name__}: {error}"
        ) from error


def _memory_descriptions(tools: Wordings) -> tuple[str, ...]:
    described = []
    for area, edit in MEMORY_TOOLS.values():
        verb, effect = tools.member("_OP_PHRASING", edit.upper())
        member = area.removesuffix("_memory").upper()
        values = {
            "verb": verb,
            "area.value": area,
            "cfg.n_slots": str(SLOTS[area]),
            "_AREA_PURPOSE[area]": tools.member("_AREA_PURPOSE", member),
            "effect": effect,
        }
        described.append(tools.template("build_memory_tools", values))
    return tuple(described)


class Wordings(Source):
    """A file whose texts are read. Raises: `ConfigurationError` where it has another form."""

    def text(self, name: str) -> str:
        """The text that `name` is set to."""
        value = self.constant(name)
        if not isinstance(value, str):
            raise ConfigurationError(f"{self.path}: {name} is not text")
        return value

    def member(self, name: str, key: str) -> Any:
        """The literal at `key` (`Area.WORKING` is "WORKING") of the dictionary `name`."""
        value = self.constant(name)
        if not isinstance(value, dict) or key not in value:
            raise ConfigurationError(f"{self.path}: {name} has no entry for {key}")
        return value[key]

    def template(self, function: str, values: Mapping[str, str]) -> str:
        """The f-string in `function` with just the placeholders of `values`, filled in."""
        for node in ast.walk(self.definition(function)):
            if isinstance(node, ast.JoinedStr):
                filled = _filled(node, values)
                if filled is not None:
                    return filled
        raise ConfigurationError(
            f"{self.path}: {function} holds no text around {', '.join(values)}: the tournament "
            "has changed its files; look for a newer version of this repository"
        )

    def texts_in(self, function: str) -> list[str]:
        """The texts that a function's returned sum is made of, from left to right."""
        for node in ast.walk(self.definition(function)):
            if isinstance(node, ast.Return) and node.value is not None:
                return _summands(node.value)
        return []

    def returned(self, function: str) -> str:
        """The text that a function returns as it stands."""
        for node in ast.walk(self.definition(function)):
            match node:
                case ast.Return(value=ast.Constant(value=str(text))):
                    return text
        raise ConfigurationError(f"{self.path}: {function} returns no text as it stands")

    def literals_given(self, function: str, within: str) -> list[list[Any]]:
        """The literals among the arguments of each call of `function` in another, in order."""
        calls = [
            node
            for node in ast.walk(self.definition(within))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == function
        ]
        given = [[each for each in call.args if not isinstance(each, ast.Name)] for call in calls]
        try:
            return [[ast.literal_eval(each) for each in some] for some in given]
        except ValueError as error:
            raise ConfigurationError(f"{self.path}: {within} has another form: {error}") from error

    def field_description(self, model: str, name: str) -> str:
        """The description of a model's field."""
        for line in self.definition(model).body:
            match line:
                case ast.AnnAssign(
                    target=ast.Name(id=field), value=ast.Call(keywords=keywords)
                ) if field == name:
                    for keyword in keywords:
                        if keyword.arg == "description":
                            return str(ast.literal_eval(keyword.value))
        raise ConfigurationError(f"{self.path}: {model}.{name} has no description")


def _filled(node: ast.JoinedStr, values: Mapping[str, str]) -> str | None:
    """The f-string with its placeholders filled, or None if they are not those of `values`."""
    text, used = "", set()
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
            continue
        assert isinstance(part, ast.FormattedValue)
        name = ast.unparse(part.value).replace('"', "'")
        if name not in values:
            return None
        used.add(name)
        text += values[name]
    return text if used == set(values) else None


def _summands(node: ast.expr) -> list[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _summands(node.left) + _summands(node.right)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
