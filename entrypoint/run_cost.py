"""Cost of a whole run: steps to expect in the time given, and how often to evaluate.

Estimates as those of `step_cost`; the trainer measures its own and ends in time in any case.
"""

from dataclasses import dataclass

from entrypoint.hardware import Hardware
from entrypoint.layout import Topology
from entrypoint.model_facts import ModelFacts
from entrypoint.step_cost import StepCost, rollout_seconds, step_cost, taught_step_seconds
from entrypoint.workload import workload
from miner.config.channel_facts import FACTS
from miner.config.settings import Settings

START_SECONDS = {"cpu": 20.0, "colocated": 150.0, "split": 150.0}
"""Imports, compilation and CUDA graphs, until the first game is played; assumed."""
READ_BYTES = 1.0e9  # a second, of weights that are loaded
PUBLISH_BYTES = 3.0e8  # a second, of weights that are written, read again and checked
CHECKPOINT_SHARE = 0.05  # of the time
LAST_SECONDS = 60.0  # the deadline's margin
MOST_EVALUATIONS = 12  # of a run of few steps
MOST_OF_BASE = 0.08  # of the time, for the base's evaluation on GPUs; more games see more
LEAST_GATED = 64  # held-out games of each game all the same: in fewer the gate sees no gain of 0.1
LEAST_HELD_OUT = 20
EVALUATION_SHARE = 0.1  # of the time, for evaluations and their publications; the trainer measures


@dataclass(frozen=True)
class RunCost:
    """Seconds of a run's parts, and what fits.

    Attributes:
        start: until the base's first game.
        episodes: held-out games to play.
        evaluation: one of all of these.
        publication: one.
        taught: a step of the warm start; None without one.
        steps: to expect, those of the warm start among them.
        taught_steps: of the warm start.
        every_steps: between two evaluations, as far as `EVALUATION_SHARE` allows: steps of a warm
            start are short.
    """

    step: StepCost
    start: float
    episodes: int
    evaluation: float
    publication: float
    taught: float | None
    steps: int
    taught_steps: int
    every_steps: int


def run_cost(
    settings: Settings,
    topology: Topology,
    facts: ModelFacts,
    hardware: Hardware,
    seconds: float,
    *,
    episodes: int | None = None,
) -> RunCost:
    """Estimate a run of these settings by this plan.

    Args:
        seconds: from the container's start to the trainer's end.
        episodes: held-out games that the user has set; None: as the settings say, or as many as
            `MOST_OF_BASE` has room for and a gate needs, where an engine holds few games.
    """
    shape, rollout = facts.shape, settings.rollout
    work = workload(settings).within(topology.episode_tokens)
    step = step_cost(topology, shape, hardware, rollout.group_size, work)
    played = episodes or settings.evaluation.episodes
    evaluation = rollout_seconds(topology, shape, hardware, played, work)
    room = MOST_OF_BASE * seconds
    if episodes is None and topology.layout != "cpu" and evaluation > room:
        played = _fewer(settings, room / evaluation)
        evaluation = rollout_seconds(topology, shape, hardware, played, work)
    publication = facts.weight_bytes / PUBLISH_BYTES
    start = START_SECONDS[topology.layout] + 2 * facts.weight_bytes / READ_BYTES
    # the base and the last weights are both evaluated and published
    detour = evaluation + publication
    left = max(0.0, (1.0 - CHECKPOINT_SHARE) * seconds - start - LAST_SECONDS - 2 * detour)
    most = settings.optimizer.max_steps
    fewer = int(min(left / step.seconds, most) / MOST_EVALUATIONS)
    every = max(1, min(settings.evaluation.every_steps, fewer))

    def fitting(seconds: float) -> float:
        """Steps of this length that fit, with evaluations in between."""
        between = max(every * seconds, detour * (1 / EVALUATION_SHARE - 1))
        return min(most, left / (seconds * (1 + detour / between)))

    share, taught = settings.demonstrations.share, None
    steps = (1.0 - share) * fitting(step.seconds)
    taught_steps = 0.0
    if share:
        rows = settings.demonstrations.rows
        taught = taught_step_seconds(topology, shape, hardware, rows, work)
        taught_steps = share * fitting(taught)
    return RunCost(
        step=step,
        start=start,
        episodes=played,
        evaluation=evaluation,
        publication=publication,
        taught=taught,
        steps=round(steps + taught_steps),
        taught_steps=round(taught_steps),
        every_steps=every,
    )


def _fewer(settings: Settings, share: float) -> int:
    """Held-out games, about this share of those that are set, in both seats."""
    played, duels = settings.evaluation.episodes, FACTS[settings.environment.channel].duels
    least = LEAST_GATED * len(set(settings.environment.games)) if duels else LEAST_HELD_OUT
    return min(played, max(least, 2 * int(played * share / 2)))
