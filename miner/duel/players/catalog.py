"""Players by what a user types: `random`, `mcts:50`, `teacher`, `strong`, `mine.py:play`, a folder,
a URL."""

from collections.abc import Callable, Collection
from pathlib import Path

from miner.config.errors import ConfigurationError
from miner.duel.players.base import Player
from miner.duel.players.rival import rival_move
from miner.duel.players.rules import (
    Choice,
    RulePlayer,
    bid_above_the_prize,
    bid_the_prize,
    random_move,
)
from miner.duel.players.search import CFR_ITERATIONS, equilibrium, search
from miner.duel.teachers import taught_move, taught_note
from miner.duel.turn import Request
from miner.games import GAMES, game_named
from miner.http_replies import player_key

SIMULATIONS = 50
STRONG_SIMULATIONS = 200
GIN_SIMULATIONS = 10
"""Gin rummy's rollouts take a hundred moves each."""
MOST_NUMBER = 10_000
"""Of simulations or iterations: a move in gin rummy then takes 12 s of a core."""

SPECIFICATIONS = (
    "random, bid (Goofspiel: the prize's value), above (what beats that), mcts:SIMULATIONS, "
    "cfr:ITERATIONS (Leduc), strong (bid, cfr or search, as the game needs), teacher (by what the "
    "prompt shows), rival (rules that public winners imitate), a function of yours (FILE.py:NAME "
    "or package.module:NAME), a model folder, or an endpoint such as "
    "http://127.0.0.1:8000/v1#MODEL; NAME= before it names the player"
)


def make_player(specification: str, games: Collection[str], *, seat: int = 0) -> Player:
    """The player that `specification` describes.

    Args:
        games: names of the games it is to play.
        seat: number among the players; random players of one match differ by it.

    Raises: `ConfigurationError` for what is no player, or cannot play one of `games`.
    """
    name, described = named(specification)
    if described.startswith(("http://", "https://")):
        from miner.duel.players.endpoint import EndpointPlayer

        url, _, model = described.partition("#")
        key = player_key(url)
        return EndpointPlayer(name or model or url, url, model or None, api_key=key)
    if Path(described).is_dir():
        from miner.duel.players.model import load_model_player

        return load_model_player(Path(described), name or described.rstrip("/"))
    kind, _, argument = described.partition(":")
    if kind.endswith(".py") or ("." in kind and argument.isidentifier()):
        from miner.duel.own import chosen_by

        return RulePlayer(name or described, chosen_by(described), quick=False)
    if kind not in _RULES:
        raise ConfigurationError(
            f"{specification!r} is neither a folder nor a player: name one of {SPECIFICATIONS}"
        )
    if argument and kind not in _NUMBERED:
        raise ConfigurationError(f"{specification!r}: {kind} takes no number")
    only, choice = _RULES[kind](_number(specification, argument), seat)
    if only and set(games) != {only}:
        raise ConfigurationError(
            f"{described} plays {only} only: add --games {only}, or name strong, which plays all"
        )
    if kind == "teacher":
        return RulePlayer(name or described, choice, quick=False, note=taught_note)
    return RulePlayer(name or described, choice, quick=kind in _QUICK)


def named(specification: str) -> tuple[str, str]:
    """The name that is given to a player, or "", and the player; paths and URLs may hold "="."""
    name, given, described = specification.partition("=")
    if not given or "/" in name or Path(specification).is_dir():
        return "", specification
    return name, described


def _number(specification: str, argument: str) -> int | None:
    if not argument:
        return None
    if not argument.isdecimal() or int(argument) < 1:
        raise ConfigurationError(f"{specification!r}: {argument!r} is not a number from 1 on")
    if len(argument) > 9 or int(argument) > MOST_NUMBER:
        raise ConfigurationError(
            f"{specification!r}: at most {MOST_NUMBER:,}; a move would take minutes"
        )
    return int(argument)


def _strong(simulations: int) -> Choice:
    bid, cfr, mcts = bid_the_prize, equilibrium(), search(simulations)
    gin = search(GIN_SIMULATIONS)

    def choose(request: Request) -> int:
        game = request.table.game.name
        if game == "goofspiel":
            return bid(request)
        if game == "leduc_poker":
            return cfr(request)
        return gin(request) if game == "gin_rummy" else mcts(request)

    return choose


_RULES: dict[str, Callable[[int | None, int], tuple[str, Choice]]] = {
    "random": lambda number, seat: ("", random_move(seat)),
    "bid": lambda number, seat: ("goofspiel", bid_the_prize),
    "above": lambda number, seat: ("goofspiel", bid_above_the_prize),
    "mcts": lambda number, seat: ("", search(number or SIMULATIONS)),
    "cfr": lambda number, seat: ("leduc_poker", equilibrium(number or CFR_ITERATIONS)),
    "teacher": lambda number, seat: ("", taught_move),
    "rival": lambda number, seat: ("", rival_move),
    "strong": lambda number, seat: ("", _strong(number or STRONG_SIMULATIONS)),
}
"""From a number and a seat to the only game it plays (empty: all) and its choice of moves."""

_QUICK = ("random", "bid", "above")
_NUMBERED = ("mcts", "cfr", "strong")


def chosen_games(listed: str | None) -> list[str]:
    """Names of games from a list with commas; None: all. Raises: `ConfigurationError`."""
    if listed is None:
        return list(GAMES)
    names = [*filter(None, map(str.strip, listed.split(",")))] or [listed]
    for name in names:
        game_named(name)
    return list(dict.fromkeys(names))
