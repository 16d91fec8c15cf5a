"""Cost of a whole run: steps to expect in the time given, and how often to evaluate.

Estimates as those of `step_cost`; the trainer measures its own and ends in time in any case. The
planner compares layouts by the `pace` of their runs.
"""

from dataclasses import dataclass, replace

from entrypoint.batch import BatchShape
from entrypoint.hardware import Hardware
from entrypoint.layout import Topology
from entrypoint.memory import ModelShape
from entrypoint.step_cost import StepCost, rollout_seconds, step_cost, taught_step_seconds
from entrypoint.workload import MEAN_SHARE
from miner.config.evaluation_run import WHOLE_REPLY_TOKENS

START_SECONDS = {"cpu": 20.0, "colocated": 150.0, "split": 150.0}
"""Imports, compilation and CUDA graphs, until the first game is played; assumed."""
READ_BYTES = 1.0e9  # a second, of weights that are loaded
PUBLISH_BYTES = 3.0e8  # a second, of weights that are written, read again and checked
CHECKPOINT_SHARE = 0.05  # of the time
LAST_SECONDS = 60.0  # the deadline's margin
MOST_EVALUATIONS = 12  # of a run of few steps
MOST_OF_BASE = 0.08  # of the time, for the base's evaluation on GPUs; more games see more
EVALUATION_SHARE = 0.1  # of the time, for evaluations and their publications; the trainer measures
REPLY_LIMITS = (WHOLE_REPLY_TOKENS, 128, 64, 32)
WORST_OF_BASE = 0.15  # of the time, if each of its replies is as long as it may be
WORST_EPISODE_SECONDS = 60.0  # the same; retries come on top, and rollout.episode_seconds is 180
LEAST_FOR_STEPS = 0.05  # of the time: layouts that leave less are compared by their steps alone


@dataclass(frozen=True)
class RunCost:
    """Seconds of a run's parts, and what fits.

    Attributes:
        start: until the base's first game.
        episodes: held-out games to play.
        evaluation: one of all of these.
        reply_tokens: the longest reply in them for which there is time though the base uses all of
            each; 0 for none.
        publication: one.
        taught: a step of the warm start; None without one.
        pace: of the run for each step, engines' start and the first and last evaluations and
            publications included; those in between have a bounded share of the time. Where own
            games follow a warm start, it is for the geometric mean of both kinds of steps, so that
            each counts by its share of the time, however long its steps are.
        steps: to expect, those of the warm start among them.
        taught_steps: of the warm start.
        every_steps: between two evaluations, as far as `EVALUATION_SHARE` allows: steps of a warm
            start are short.
    """

    step: StepCost
    start: float
    episodes: int
    evaluation: float
    reply_tokens: int
    publication: float
    taught: float | None
    pace: float
    steps: int
    taught_steps: int
    every_steps: int


def run_cost(
    batch: BatchShape,
    topology: Topology,
    shape: ModelShape,
    hardware: Hardware,
    *,
    weight_bytes: int | None = None,
) -> RunCost:
    """Estimate a run of this work by this plan.

    Args:
        weight_bytes: of the base's files; None: two a parameter.
    """
    weight_bytes = 2 * shape.parameters if weight_bytes is None else weight_bytes
    work = batch.work.within(topology.episode_tokens)
    batch = replace(batch, work=work)
    step = step_cost(topology, shape, hardware, batch.group_size, work)
    played, evaluation = _evaluation(batch, topology, shape, hardware)
    publication = weight_bytes / PUBLISH_BYTES
    start = START_SECONDS[topology.layout] + 2 * weight_bytes / READ_BYTES
    # the base and the last weights are both evaluated and published
    detour = evaluation + publication
    once = (start + LAST_SECONDS + 2 * detour) / batch.seconds
    for_steps = 1.0 - CHECKPOINT_SHARE - once
    left = max(0.0, for_steps) * batch.seconds
    most = batch.most_steps
    fewer = int(min(left / step.seconds, most) / MOST_EVALUATIONS)
    every = max(1, min(batch.every_steps, fewer))

    def fitting(seconds: float) -> float:
        """Steps of this length that fit, with evaluations in between."""
        between = max(every * seconds, detour * (1 / EVALUATION_SHARE - 1))
        return min(most, left / (seconds * (1 + detour / between)))

    share, taught, mean = batch.taught_share, None, step.seconds
    steps, taught_steps = (1.0 - share) * fitting(step.seconds), 0.0
    if share:
        taught = taught_step_seconds(topology, shape, hardware, batch.taught_rows, work)
        taught_steps = share * fitting(taught)
        mean = taught**share * step.seconds ** (1.0 - share)
    return RunCost(
        step=step,
        start=start,
        episodes=played,
        evaluation=evaluation,
        reply_tokens=_reply_tokens(batch, topology, shape, hardware, played),
        publication=publication,
        taught=taught,
        pace=mean / max(LEAST_FOR_STEPS, for_steps),
        steps=round(steps + taught_steps),
        taught_steps=round(taught_steps),
        every_steps=every,
    )


def _evaluation(
    batch: BatchShape, topology: Topology, shape: ModelShape, hardware: Hardware
) -> tuple[int, float]:
    """Held-out games of an evaluation and its seconds: as many games as are set, or as
    `MOST_OF_BASE` has room for and the job needs at least, where an engine holds few."""
    played, work = batch.held_out, batch.work
    if not played:
        return 0, 0.0
    seconds = rollout_seconds(topology, shape, hardware, played, work)
    room = MOST_OF_BASE * batch.seconds
    if topology.layout == "cpu" or seconds <= room:
        return played, seconds
    in_both_seats = 2 * int(played * room / seconds / 2)
    played = min(played, max(batch.least_held_out, in_both_seats))
    return played, rollout_seconds(topology, shape, hardware, played, work)


def _reply_tokens(
    batch: BatchShape, topology: Topology, shape: ModelShape, hardware: Hardware, played: int
) -> int:
    """The longest of `REPLY_LIMITS` that a base may fill in each reply of so many games, for which
    its context has room as well."""
    if not topology.memory_share or not played:  # without vLLM there is no time for a base's words
        return 0
    work, at_once = batch.work, topology.live_episodes * len(topology.inference_gpus)
    for tokens in REPLY_LIMITS:
        words = tokens * work.turns
        if work.trained + words > MEAN_SHARE * shape.context:
            continue
        wordy = replace(work, sampled=words, longest=words, context=work.context + words / 2)
        seconds = rollout_seconds(topology, shape, hardware, played, wordy)
        episode = seconds * min(1.0, at_once / played)
        if seconds <= WORST_OF_BASE * batch.seconds and episode <= WORST_EPISODE_SECONDS:
            return tokens
    return 0
