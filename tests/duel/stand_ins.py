"""Players that say what a test tells them, and a copy of the tournament's files made from its
transcripts."""

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import yaml

from miner.duel.memory import Notes, TokenCounter, WordCounter
from miner.duel.players.base import Reply
from miner.duel.players.rules import RulePlayer, random_move
from miner.duel.table import Table
from miner.duel.teachers import Seen
from miner.duel.tools import ToolCall
from miner.duel.turn import Request
from miner.duel.wording import Wording, own_wording
from miner.games import GAMES as GAMES_BY_NAME
from tests.duel.golden import GAMES, first, transcript


def asked(game: str = "leduc_poker", wording: Wording | None = None, **more: int) -> Request:
    """The first request of the game that a fixed seed draws."""
    table = Table(GAMES_BY_NAME[game], 24005)
    legal = table.state.legal_actions()
    return Request(table, 0, Notes(WordCounter()), wording or own_wording(), legal=legal, **more)


def seen_by(table: Table, player: int) -> Seen:
    """The part of a turn that a player's move depends on, without notes."""
    notes, legal = Notes(WordCounter()), table.state.legal_actions()
    return Seen.of(Request(table, player, notes, own_wording(), legal=legal))


def calls(*named: Sequence[str]) -> Reply:
    """A reply of these calls, each a name and its arguments."""
    return Reply([ToolCall(name, arguments) for name, arguments in named])


def move(action: int) -> Reply:
    """A reply that plays `action`."""
    return calls(("game_action", f'{{"action_id": {action}}}'))


def interrupting(moves: int, number: signal.Signals, asked: list[int]) -> Callable[..., RulePlayer]:
    """Makes players of random moves, as `make_player` is called; this process gets the signal at
    that move.

    Args:
        asked: gets the seat of each move.
    """

    def make(said: str, games: object, *, seat: int) -> RulePlayer:
        choose = random_move(seat)

        def interrupts(request: Request) -> int:
            asked.append(seat)
            if len(asked) == moves:
                os.kill(os.getpid(), number)
            return choose(request)

        return RulePlayer(said, interrupts)

    return make


class Scripted:
    """Answers by `answer`, which may raise; keeps every request in words.

    Attributes:
        asked: kind of each request.
        closed: whether it has been released.
    """

    def __init__(self, name: str, answer: Callable[[Request], Reply]) -> None:
        self.name = name
        self.counter: TokenCounter = WordCounter()
        self.asked: list[str] = []
        self.closed = False
        self._answer = answer

    async def reply(self, request: Request) -> Reply:
        self.asked.append(request.kind)
        return self._answer(request)

    async def close(self) -> None:
        assert not self.closed
        self.closed = True


def lowest_call(request: Request) -> Reply:
    """Action 1 if it is legal (a call, in Leduc), else the lowest; no notes."""
    if request.kind == "reflection":
        return Reply()
    return move(1 if 1 in request.legal else request.legal[0])


def tournament_copy(folder: Path) -> Path:
    """Files of the form of the tournament's, with the sentences of its transcripts."""
    rules = {}
    for game in GAMES:
        lines = transcript(f"games_{game}")
        rules[f"{game}_rules"] = first(lines, type="head")["text"]
    tails = {line["kind"]: line["text"] for line in lines if line["type"] == "tail"}
    reflected = next(line for line in transcript("raw_requests") if line["kind"] == "reflection")
    user = reflected["request"]["messages"][1]["content"]
    result, _, rest = user.partition(": ")
    request = rest.rsplit("\n\n", 1)[1]
    tools = {
        entry["tool"]["function"]["name"]: entry["tool"]["function"]
        for entry in transcript("tools")
        if entry["set"] == "pvp_turn"
    }
    write_copy(folder, rules, tails, (f"{result}: ", request), tools)
    return folder


def write_copy(
    folder: Path,
    rules: dict[str, str],
    tails: dict[str, str],
    reflection: tuple[str, str],
    tools: dict[str, dict],
) -> None:
    """Write the four files."""
    pvp, models = folder / "core" / "pvp", folder / "core" / "models"
    pvp.mkdir(parents=True)
    models.mkdir(parents=True)
    prompts = {"system_prompt_template": "{rules}", **rules}
    (pvp / "game_prompts.yml").write_text(yaml.safe_dump(prompts, allow_unicode=True))
    (pvp / "bot.py").write_text(_BOT.format(**tails, before=reflection[0], request=reflection[1]))
    described = [tools[name]["description"] for name in _MEMORY_TOOLS]
    phrases, purposes = _take_apart(described)
    hint = tools["game_action"]["description"]
    before = hint.rpartition(": ")[0]
    sentence, _, listing = before.rpartition(". ")
    (pvp / "tools.py").write_text(
        _TOOLS.format(
            working=purposes[0],
            long_term=purposes[1],
            rewrite=phrases[0],
            append=phrases[1],
            sentence=f"{sentence}. ",
        )
    )
    bot = (pvp / "bot.py").read_text().replace("LISTING", f"{listing}: ")
    (pvp / "bot.py").write_text(bot)
    slot = tools[_MEMORY_TOOLS[0]]["parameters"]["properties"]
    action = tools["game_action"]["parameters"]["properties"]["action_id"]
    (models / "pvp_models.py").write_text(
        _MODELS.format(
            slot=slot["slot"]["description"],
            content=slot["content"]["description"],
            action=action["description"],
        )
    )


def _take_apart(described: Iterable[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Verb and effect of each edit, purpose of each area, of `VERB a AREA slot (...; P); E.`"""
    phrases, purposes = [], []
    for text in described:
        verb = text.partition(" a ")[0]
        inside, _, effect = text.partition("; ")[2].partition("); ")
        phrases.append((verb, effect.removesuffix(".")))
        purposes.append(inside)
    return phrases[:2], purposes[::2]


_MEMORY_TOOLS = (
    "working_memory_rewrite",
    "working_memory_append",
    "long_term_memory_rewrite",
    "long_term_memory_append",
)

_BOT = """
_TOOL_GUIDANCE = (
    {turn!r}
)
_REFLECTION_GUIDANCE = {reflection!r}


class Bot:
    def _reflection_user_prompt(self, state, outcome):
        state_desc = self.describe(state)
        return (
            f"{before}{{outcome.value.upper()}}.\\n\\n"
            f"Final state:\\n{{state_desc}}\\n\\n"
            "{request}"
        )

    @staticmethod
    def _legal_hint(legal_actions):
        return "LISTING" + ", ".join(str(action) for action in legal_actions) + "."
"""

_TOOLS = """
raise RuntimeError("these files are read, never run")

_AREA_PURPOSE: dict = {{MemoryArea.WORKING: {working!r}, MemoryArea.LONG_TERM: {long_term!r}}}
_OP_PHRASING = {{MemoryOp.REWRITE: {rewrite!r}, MemoryOp.APPEND: {append!r}}}


def build_memory_tools(configs):
    for area, cfg in configs.items():
        name = f"{{area.value}}"
        description = (
            f"{{verb}} a {{area.value}} slot (slots 1-{{cfg.n_slots}}; {{_AREA_PURPOSE[area]}}); "
            f"{{effect}}."
        )


def build_game_action_tool(legal_hint, legal_actions=None):
    return tool(NAME, f"{sentence}{{legal_hint}}", parameters)
"""

_MODELS = """
class MemorySlotEdit(BaseModel):
    slot: int = Field(description={slot!r})
    content: str = Field(description={content!r})


class GameActionArgs(BaseModel):
    action_id: int = Field(description={action!r})
"""
