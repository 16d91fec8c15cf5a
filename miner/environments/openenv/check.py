"""Check of an OpenEnv environment, by playing it with fixed replies.

Invariants:
* seeds are judged by what happens, never by a server's claim: one drops a seed that it does not
  know in silence, and the episodes of a GRPO group would be different games;
* it takes a few episodes with the same replies, also where there are several servers, among which
  a group's episodes are spread.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from miner.config.errors import ConfigurationError
from miner.environments.base import EpisodeTask
from miner.environments.errors import InfrastructureError, ProtocolError
from miner.environments.findings import Findings
from miner.environments.openenv.environment import NAME, OpenEnvSource

Seeds = Literal["seeded", "constant", "unseeded"]

PROBED_SEEDS = (5, 6, 7)
EPISODES_PER_SEED = 4
"""Of equal seeds: games of chance with a handful of outcomes are alike by chance now and then."""

TRIES = 3

Turn = tuple[str, float | None]
Transcript = tuple[Turn, ...]
"""Message and the reward that came with it; at the end a failure's words, if it had one."""


_REASONS: dict[Seeds, str] = {
    "seeded": "the seed decides about the game, so that a group's episodes are comparable and "
    "held-out games are others than those trained on",
    "constant": "every game is the same for all seeds: groups are comparable, and what is "
    "held out is the very game that is trained on",
    "unseeded": "the server ignores seeds: a group's episodes are different games",
}
"""By what seeds do: decide about the game, nothing, or nothing while games differ."""

_BLIND = (
    "an episode begins with an empty prompt, so that the policy answers blind: set "
    "environment.openenv.reset (arguments of reset), environment.openenv.opening (an action whose "
    "observation is the question) or environment.openenv.system (a text that explains the task)"
)


async def check(source: OpenEnvSource) -> Findings:
    """Play and judge.

    Raises: `ConfigurationError` for an environment that cannot be trained on as it is set,
        `EnvironmentFault` where it cannot be played.
    """
    wanted = [
        (url, seed)
        for url in source.servers
        for seed in PROBED_SEEDS
        for _ in range(EPISODES_PER_SEED)
    ]
    try:
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(_played(source, url, seed)) for url, seed in wanted]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    played = [run.result() for run in runs]
    games = {seed: {p.transcript for p, (_, s) in zip(played, wanted, strict=True) if s == seed}
             for seed in PROBED_SEEDS}  # fmt: skip
    name = await source.clients[source.servers[0]].name()
    seeds = _judged(list(games.values()))
    if seeds == "unseeded" and source.settings.unseeded == "refuse":
        raise ConfigurationError(
            f"{name} at {', '.join(source.servers)}: {_REASONS[seeds]}, and GRPO compares episodes "
            "within a group; take an environment whose reset(seed=...) decides about the game, or "
            'set environment.openenv.unseeded="allow" to train on it all the same'
        )
    return _findings(source, name, seeds, played)


def _findings(source: OpenEnvSource, name: str, seeds: Seeds, played: list[_Played]) -> Findings:
    scores = [p.score for p in played if p.score is not None]
    failure = next((p.failure for p in played if p.failure), "")
    reason, warning = _REASONS[seeds], ""
    if seeds == "unseeded":
        warning = (
            f"{reason}, so that advantages compare luck with luck "
            '(environment.openenv.unseeded="allow")'
        )
    elif not scores:
        warning = f"no episode came to its end without thought: {failure}"
    elif not any(p.accepted for p in played):
        shown = next(p.transcript[1][0] for p in played if p.score is not None)
        warning = (
            f"no reply was accepted as an action ({shown!r}): if the policy's fare alike, nothing "
            "is learned; see the server's own log and environment.openenv.action"
        )
    if not (source.settings.system or all(p.transcript[0][0].strip() for p in played)):
        warning = "; ".join(filter(None, (_BLIND, warning)))
    sessions = {url: source.places[url].limit for url in source.servers}
    wanted = source.settings.sessions
    facts = [f"OpenEnv environment {name}: {source.codec}"]
    for url, count in sessions.items():
        fewer = f", {wanted} were asked for" if count < wanted else ""
        facts.append(f"{url}: {count} sessions at once{fewer}")
    if scores:
        longest = max(len(p.transcript) - 1 for p in played)
        found = f"scores {min(scores):.3f} to {max(scores):.3f}, up to {longest} replies"
        facts.append(f"{len(played)} episodes without thought: {found}")
    if failure:
        facts.append(f"a step failed: {failure}")
    facts.append(f"it begins with: {played[0].transcript[0][0][:400]!r}")
    low, high = source.settings.return_range
    mapped = "" if (low, high) == (0, 1) else f": {low:g} scores 0 and {high:g} scores 1"
    return Findings(
        channel=NAME,
        environment=name,
        reason=reason,
        warning=warning,
        scoring=f"A score is the sum of an episode's rewards{mapped}.",
        notes=tuple(facts),
        details={
            "seeds": seeds,
            "sessions": tuple(sessions.values()),
            "codec": str(source.codec),
            "scores": (min(scores), max(scores)) if scores else None,
        },
        for_opening=sessions,
    )


def _judged(games: list[set[Transcript]]) -> Seeds:
    if any(len(transcripts) > 1 for transcripts in games):
        return "unseeded"
    return "constant" if len(set.union(*games)) == 1 else "seeded"


@dataclass(frozen=True, slots=True)
class _Played:
    transcript: Transcript
    score: float | None
    failure: str = ""
    accepted: bool = False


async def _played(source: OpenEnvSource, url: str, seed: int) -> _Played:
    """One episode of dull replies, tried again where infrastructure fails."""
    for _ in range(TRIES - 1):
        with suppress(InfrastructureError):
            return await _play(source, url, seed)
    return await _play(source, url, seed)


async def _play(source: OpenEnvSource, url: str, seed: int) -> _Played:
    environment = source.open(avoid=set(source.servers) - {url})
    turns: list[Turn] = []
    accepted = False
    try:
        observation = await environment.reset(EpisodeTask(NAME, seed, seed, opponent="none"))
        turns.append((observation.messages[-1]["content"], None))
        while True:
            number = len(turns) - 1
            try:
                step = await environment.step(environment.probe_reply(number))
            except ProtocolError as error:  # a policy need not reply like this
                return _Played((*turns, ("", None)), None, str(error))
            accepted |= step.valid
            shown = step.messages[-1]["content"] if step.messages else ""
            turns.append((shown, step.reward))
            if step.done:
                return _Played(tuple(turns), step.score, accepted=accepted)
    finally:
        await environment.close()
