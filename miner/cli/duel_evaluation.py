"""An evaluation in the format of today's tournament: one policy, one opponent, both seats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from miner.duel.channel.opening import open_duels
from miner.duel.channel.replay import replay_duel
from miner.duel.channel.tasks import evaluation_duels
from miner.duel.players.catalog import chosen_games
from miner.evaluation.policies import Policy
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.evaluation.runner import evaluate
from miner.reporting.progress import EvaluationProgress, say
from miner.reporting.records import Replay

if TYPE_CHECKING:
    from miner.cli.evaluation_session import EvaluationRequest


async def play_duels(
    request: EvaluationRequest, policy: Policy, console: Console
) -> tuple[EvaluationResult, list[Replay]]:
    """Play the tournament's games for the seed, and those worth a look once more for a replay.

    Raises: `ConfigurationError` for games and opponents that there are not.
    """
    games = chosen_games(request.games)
    tasks = evaluation_duels(
        request.episodes, request.base_seed, games, request.opponent, request.sizes
    )
    source = open_duels(request.model, games, [request.opponent])
    try:
        say(
            console,
            f"duels of {', '.join(games)} against {request.opponent}, prompts in "
            f"{source.wording.described}; calls are read as {source.family}",
        )
        with EvaluationProgress(len(tasks), request.name or policy.name, console=console) as bar:
            result = await evaluate(policy, source, tasks, request.rules, bar.update)
        shown = worth_a_look(result, request.replays)
        return result, [await replay_duel(source, result, episode) for episode in shown]
    finally:
        await source.close()
        await policy.close()


def worth_a_look(result: EvaluationResult, count: int) -> list[EpisodeRecord]:
    """A lost or broken episode first, then a won one, then whatever comes."""
    played = [episode for episode in result.episodes if episode.replies]
    lost = [episode for episode in played if episode.score is not None and episode.score < 0.5]
    won = [episode for episode in played if episode.score is not None and episode.score > 0.5]
    first = lost[:1] + won[:1]
    return (first + [episode for episode in played if episode not in first])[:count]
