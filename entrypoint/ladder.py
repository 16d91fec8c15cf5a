"""The degrade ladder as data: which settings to lower, in which order, when memory runs out.

Invariant: a rung changes settings only towards less memory; one that can change nothing is skipped.
"""

from collections.abc import Callable
from dataclasses import dataclass

from entrypoint.memory import largest_pass
from entrypoint.workload import learns_long_rows
from miner.config.channel_facts import FACTS
from miner.config.contract import DUEL_TURN_TOKENS
from miner.config.overrides import value_at
from miner.config.section import setting_fields
from miner.config.settings import Settings

SHORTEST_PASS = 64
"""Tokens; no longest episode may be shorter either."""

SHORTEST_EPISODE = 1024
"""Tokens that episodes are cut down to at most."""


@dataclass(frozen=True)
class Rung:
    """One step down.

    Attributes:
        name: for the log.
        lower: the settings with less; equal ones where it can lower nothing.
        restarts: true if the checkpoints so far could not be resumed.
    """

    name: str
    lower: Callable[[Settings], Settings]
    restarts: bool = False


def _supervised(settings: Settings) -> bool:
    return FACTS[settings.environment.channel].supervised


def _recompute(settings: Settings) -> Settings:
    return settings.having(model={"gradient_checkpointing": True})


def _half_a_pass(settings: Settings) -> Settings:
    tokens = settings.optimizer.micro_batch_tokens
    if tokens is None or tokens <= SHORTEST_PASS:
        return settings
    half = max(SHORTEST_PASS, tokens // 2)
    longest = settings.rollout.max_episode_tokens
    recorded = _supervised(settings) or learns_long_rows(settings)
    if recorded and longest and largest_pass(half, longest) >= tokens:
        return settings  # conversations are that long: a pass each, larger than this one
    return settings.having(optimizer={"micro_batch_tokens": half})


def _half_of_turns(settings: Settings) -> Settings:
    """Half a pass, if rows are turns of duels and the longest still fits: some 10% more tokens,
    while recomputed activations are a third or half more work."""
    tokens = settings.optimizer.micro_batch_tokens or 0
    recomputed = settings.model.gradient_checkpointing
    duels = FACTS[settings.environment.channel].duels and not learns_long_rows(settings)
    fits = duels and not recomputed and tokens // 2 >= DUEL_TURN_TOKENS
    return _half_a_pass(settings) if fits else settings


def _shorter_episodes(settings: Settings) -> Settings:
    tokens = settings.rollout.max_episode_tokens
    if tokens is None or tokens <= SHORTEST_EPISODE or _supervised(settings):
        return settings  # scores of other lengths of recorded conversations cannot be compared
    if FACTS[settings.environment.channel].duels and not learns_long_rows(settings):
        return settings  # a row is one turn, whatever a game's length
    shorter = max(SHORTEST_EPISODE, tokens * 3 // 4)
    return settings.having(rollout={"max_episode_tokens": shorter})


def _spread_weights(settings: Settings) -> Settings:
    if settings.optimizer.zero_stage != 2 or settings.rollout.engine == "transformers":
        return settings  # no engine could generate with weights that are spread
    return settings.having(optimizer={"zero_stage": 3})


def _adapters(settings: Settings) -> Settings:
    return settings.having(model={"tuning": "lora"})


LADDER = (
    Rung("half of a pass of turns", _half_of_turns),
    Rung("gradient checkpointing", _recompute),
    Rung("half of a pass", _half_a_pass),
    Rung("half of a pass again", _half_a_pass),
    Rung("ZeRO-3", _spread_weights, restarts=True),
    Rung("shorter episodes", _shorter_episodes),
    Rung("LoRA", _adapters, restarts=True),
)


def step_down(
    settings: Settings,
    taken: int,
    *,
    begun: bool = False,
    adapter_learning_rate: float | None = None,
) -> tuple[Settings, int, str] | None:
    """The settings one rung below, after `taken` rungs of the ladder.

    Args:
        begun: true if there is a checkpoint of an optimizer step to continue from.
        adapter_learning_rate: learning rate of adapters; None keeps the rate.

    Returns: (new settings, rungs taken now, what was lowered), or None at the ladder's end.
    """
    for position in range(taken, len(LADDER)):
        rung = LADDER[position]
        lower = settings if begun and rung.restarts else rung.lower(settings)
        if lower == settings:
            continue
        what = _described(rung.name, settings, lower)
        if adapter_learning_rate and lower.model.tuning != settings.model.tuning:
            lower = lower.having(optimizer={"learning_rate": adapter_learning_rate})
        return lower, position + 1, what
    return None


def smaller_share(settings: Settings, taken: int, least: float) -> tuple[Settings, int, str] | None:
    """As `step_down`, for vLLM that found no memory where the trainer's passes did: it takes no
    rung. None where vLLM has no share to lower.

    Args:
        least: share of a GPU below which vLLM has no room for its weights and an episode.
    """
    share = settings.rollout.memory_share
    smaller = round(max(least, share * 0.8), 2)
    if settings.rollout.engine != "vllm_colocated" or smaller >= share:
        return None
    lower = settings.having(rollout={"memory_share": smaller})
    return lower, taken, _described("a smaller share for vLLM", settings, lower)


def _described(name: str, settings: Settings, lower: Settings) -> str:
    """With the changed settings, each like `rollout.memory_share 0.5 -> 0.4`."""
    then, now = settings.model_dump(), lower.model_dump()
    values = [(key, value_at(then, key), value_at(now, key)) for key in setting_fields(Settings)]
    changed = ", ".join(f"{setting} {old} -> {new}" for setting, old, new in values if old != new)
    return f"{name} ({changed})"


def without_vllm(settings: Settings, *, keep_stage: bool = True) -> Settings | None:
    """The settings with the trainer's own model generating: slow, but it needs no engine.

    None where it generates already, or cannot because ZeRO-3 spreads its weights.

    Args:
        keep_stage: false where adapters may leave ZeRO-3 for that: there is no checkpoint of it.
    """
    if settings.rollout.engine == "transformers":
        return None
    alone = settings.having(rollout={"engine": "transformers", "server": ""})
    if settings.optimizer.zero_stage != 3:
        return alone
    if keep_stage or settings.model.tuning == "full":
        return None
    return alone.having(optimizer={"zero_stage": 2}, model={"gradient_checkpointing": True})
