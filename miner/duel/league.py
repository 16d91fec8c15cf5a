"""A league: each player against all others in every game, and who would advance.

Matches of different pairs and of different games have separate notes, so all of them run at
once; games of one match follow each other.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from miner.background_loop import take_back_cancellation
from miner.config.errors import ConfigurationError
from miner.duel.match import INTERRUPTED, Limits, MatchResult, play_match
from miner.duel.outcome import POINTS, GameRecord, Usage, opposite
from miner.duel.play import Rules
from miner.duel.players.base import Player
from miner.duel.scoring import Scores, advancing, standings, task_scores
from miner.duel.turn import Result
from miner.evaluation.statistics import Estimate, grouped, mean_score
from miner.games import game_named


@dataclass(frozen=True, slots=True)
class Row:
    """One player's games in one game of a league, from that player's side.

    Attributes:
        score: with its interval; None without a game.
        by_seat: the same by the seat that the player had.
        forfeits: number of lost games by cause.
    """

    player: str
    game: str
    wins: int
    draws: int
    losses: int
    score: Estimate | None
    by_seat: tuple[Estimate | None, Estimate | None]
    forfeits: dict[str, int]
    usage: Usage


@dataclass(frozen=True, slots=True)
class LeagueResult:
    """All matches of a league; everything else follows from those that did not break off."""

    players: list[str]
    games: list[str]
    matches: list[MatchResult]
    boss: str | None = None

    @property
    def interrupted(self) -> bool:
        """It ended before its time."""
        return any(match.stopped == INTERRUPTED for match in self.matches)

    @property
    def played(self) -> list[str]:
        """Games of which a match counts; the others are in no rank."""
        counted = {match.game for match in self.matches if match.games and not match.failure}
        return [game for game in self.games if game in counted]

    def environment_scores(self, game: str) -> Scores:
        """(wins + draws / 2) / games of each player, pooled over all its games.

        A player without a game scores 0. Pooling means that longer matches count for more.
        """
        scores = {name: self.row(name, game).score for name in self.players}
        return {name: score.mean if score else 0.0 for name, score in scores.items()}

    def task_scores(self) -> Scores:
        """Each player's mean quantile over the games played, what ranks are made of; 0 of none."""
        scores = task_scores({game: self.environment_scores(game) for game in self.played})
        return dict.fromkeys(self.players, 0.0) | scores

    def standings(self) -> list[tuple[str, float]]:
        """Best first."""
        return standings(self.task_scores())

    def advancing(self) -> list[str]:
        """Names of those who would advance from this group."""
        return advancing(self.task_scores(), self.boss) if self.played else []

    def row(self, player: str, game: str) -> Row:
        """A player's games in one game."""
        results: Counter[Result] = Counter()
        played: list[tuple[int, float, Hashable]] = []
        forfeits: Counter[str] = Counter()
        usage = Usage()
        for match in self.matches:
            if match.game != game or match.failure or player not in (match.first, match.second):
                continue
            second = player == match.second
            opponent = match.first if second else match.second
            for record in match.games:
                seat = record.first_seat ^ second
                result = opposite(record.result) if second else record.result
                results[result] += 1
                played.append((seat, POINTS[result], (opponent, record.seed)))
                usage.add(record.usage[seat])
                if record.forfeit is not None and record.forfeit.player == seat:
                    forfeits[record.forfeit.cause.value] += 1
        by_seat = grouped(played)
        return Row(
            player=player,
            game=game,
            wins=results["win"],
            draws=results["draw"],
            losses=results["loss"],
            score=mean_score([p for _, p, _ in played], [pair for *_, pair in played])
            if played
            else None,
            by_seat=(by_seat.get(0), by_seat.get(1)),
            forfeits=dict(forfeits),
            usage=usage,
        )

    def to_json(self, settings: dict[str, Any]) -> dict[str, Any]:
        """All of it, every game but for its replay; `settings` are those it was played with."""
        return {
            "settings": settings,
            "players": self.players,
            "games": self.games,
            "boss": self.boss,
            "standings": [{"player": name, "score": score} for name, score in self.standings()],
            "advancing": self.advancing(),
            "environment_scores": {game: self.environment_scores(game) for game in self.played},
            "rows": [asdict(self.row(name, game)) for game in self.games for name in self.players],
            "matches": [
                asdict(match) | {"games": [_without_plies(record) for record in match.games]}
                for match in self.matches
            ],
        }


async def play_league(
    players: Sequence[Player],
    games: Sequence[str],
    rules: Rules,
    limits: Limits,
    *,
    boss: str | None = None,
    on_game: Callable[[str, str, GameRecord], None] = lambda first, second, record: None,
    on_match: Callable[[MatchResult], None] = lambda match: None,
) -> LeagueResult:
    """Play all matches at once. A player that fails breaks off its own matches and no others.

    Cancelled (Ctrl-C), it returns what was played, as after a match that was `refused`.

    Raises: `ConfigurationError` for equal names or a boss that does not play.
    """
    names = [player.name for player in players]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"two players have one name ({', '.join(names)}): write NAME= before one of them"
        )
    if boss is not None and boss not in names:
        raise ConfigurationError(f"the boss {boss!r} is not one of the players {', '.join(names)}")

    async def play(game: str, first: Player, second: Player) -> MatchResult:
        def count(record: GameRecord) -> None:
            on_game(first.name, second.name, record)

        match = await play_match(game_named(game), first, second, rules, limits, on_game=count)
        on_match(match)
        if match.refused and whole:  # ends as by Ctrl-C, once this one has returned
            asyncio.get_running_loop().call_soon(whole.cancel)
        return match

    pairs = list(combinations(players, 2))
    whole = asyncio.current_task()
    tasks = [asyncio.ensure_future(play(game, a, b)) for game in games for a, b in pairs]
    try:
        await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        take_back_cancellation()
        tasks = [task for task in tasks if not task.cancelled()]  # others had not begun
    return LeagueResult(names, list(games), [task.result() for task in tasks], boss)


def _without_plies(record: GameRecord) -> dict[str, Any]:
    return {name: value for name, value in asdict(record).items() if name != "plies"}
