"""What an OpenEnv environment is like, found out by playing it without any thought.

Invariants:
* seeds are judged by what happens, never by what a server says: one drops a seed that it does not
  know in silence, and the episodes of a GRPO group would be different games;
* it takes a few episodes with the same replies, also where there are several servers, among which
  a group's episodes are spread.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Group
from rich.text import Text

from miner.config.errors import ConfigurationError
from miner.environments.base import EpisodeTask
from miner.environments.errors import InfrastructureError, ProtocolError
from miner.environments.openenv.environment import NAME, OpenEnvSource

Seeds = Literal["seeded", "constant", "unseeded"]

PROBED_SEEDS = (5, 6, 7)
EPISODES_PER_SEED = 4
"""Of equal seeds: games of chance with a handful of outcomes are alike by chance now and then."""

TRIES = 3

Turn = tuple[str, float | None]
Transcript = tuple[Turn, ...]
"""What was shown and the reward that came with it; at the end a failure's words, if it had one."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known before training.

    Attributes:
        name: what the environment calls itself.
        servers: base URLs.
        sessions: episodes at once, by server.
        wanted: what `environment.openenv.sessions` asked for.
        codec: how a reply becomes an action.
        seeds: "seeded" if equal seeds give equal games and others do not, "constant" if all games
            are equal, "unseeded" if equal seeds give different games.
        shown_first: the first message of a game.
        episodes: how many were played.
        scores: lowest and highest score among them; None where none came to its end.
        longest: most replies of one of them.
        failure: what a step failed with, of those episodes that did; empty if none did.
        return_range: sums of rewards that score 0 and 1.
    """

    name: str
    servers: tuple[str, ...]
    sessions: tuple[int, ...]
    wanted: int
    codec: str
    seeds: Seeds
    shown_first: str
    episodes: int
    scores: tuple[float, float] | None
    longest: int
    failure: str
    return_range: tuple[float, float]

    @property
    def reason(self) -> str:
        """What seeds do, in a sentence."""
        return {
            "seeded": "the seed decides about the game, so that a group's episodes are comparable "
            "and held-out games are others than those trained on",
            "constant": "every game is the same, whatever the seed: groups are comparable, and "
            "what is held out is the very game that is trained on",
            "unseeded": "the server ignores seeds: a group's episodes are different games",
        }[self.seeds]

    @property
    def warning(self) -> str:
        """Why training may be in vain; empty if it is not."""
        if self.seeds == "unseeded":
            return (
                f"{self.reason}, so that advantages compare luck with luck "
                '(environment.openenv.unseeded="allow")'
            )
        if self.scores is None:
            return f"no episode came to its end without thought: {self.failure}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """For `probe.json`."""
        low, high = self.return_range
        mapped = "" if (low, high) == (0, 1) else f": {low:g} scores 0 and {high:g} scores 1"
        scoring = f"A score is the sum of an episode's rewards{mapped}."
        return {
            "channel": NAME, "reason": self.reason, "warning": self.warning, "scoring": scoring,
            "notes": self._facts(), **asdict(self),
        }  # fmt: skip

    def shown(self) -> Group:
        """For a terminal."""
        seeds = f"seeds: {self.seeds}; {self.reason}"
        return Group(*(Text(line) for line in (*self._facts(), seeds)))

    def _facts(self) -> list[str]:
        lines = [f"OpenEnv environment {self.name}: {self.codec}"]
        for url, sessions in zip(self.servers, self.sessions, strict=True):
            fewer = f", {self.wanted} were asked for" if sessions < self.wanted else ""
            lines.append(f"{url}: {sessions} sessions at once{fewer}")
        if self.scores is not None:
            low, high = self.scores
            scores = f"scores {low:.3f} to {high:.3f}"
            lines.append(
                f"{self.episodes} episodes without thought: {scores}, up to {self.longest} replies"
            )
        if self.failure:
            lines.append(f"a step failed: {self.failure}")
        lines.append(f"it begins with: {self.shown_first[:400]!r}")
        return lines


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
    scores = [p.score for p in played if p.score is not None]
    findings = Findings(
        name=await source.clients[source.servers[0]].name(),
        servers=tuple(source.servers),
        sessions=tuple(source.places[url].limit for url in source.servers),
        wanted=source.settings.sessions,
        codec=str(source.codec),
        seeds=_judged(list(games.values())),
        shown_first=played[0].transcript[0][0],
        episodes=len(played),
        scores=(min(scores), max(scores)) if scores else None,
        longest=max(len(p.transcript) - 1 for p in played),
        failure=next((p.failure for p in played if p.failure), ""),
        return_range=source.settings.return_range,
    )
    if findings.seeds == "unseeded" and source.settings.unseeded == "refuse":
        raise ConfigurationError(
            f"{findings.name} at {', '.join(findings.servers)}: {findings.reason}, and GRPO "
            "compares episodes within a group; take an environment whose reset(seed=...) decides "
            'about the game, or set environment.openenv.unseeded="allow" to train on it all the '
            "same"
        )
    return findings


def _judged(games: list[set[Transcript]]) -> Seeds:
    if any(len(transcripts) > 1 for transcripts in games):
        return "unseeded"
    return "constant" if len(set.union(*games)) == 1 else "seeded"


@dataclass(frozen=True, slots=True)
class _Played:
    transcript: Transcript
    score: float | None
    failure: str = ""


async def _played(source: OpenEnvSource, url: str, seed: int) -> _Played:
    """One episode of dull replies, tried again where infrastructure fails."""
    for _ in range(TRIES - 1):
        with suppress(InfrastructureError):
            return await _play(source, url, seed)
    return await _play(source, url, seed)


async def _play(source: OpenEnvSource, url: str, seed: int) -> _Played:
    environment = source.open(avoid=set(source.servers) - {url})
    turns: list[Turn] = []
    try:
        observation = await environment.reset(EpisodeTask(NAME, seed, seed, opponent="none"))
        turns.append((observation.messages[-1]["content"], None))
        while True:
            number = len(turns) - 1
            try:
                step = await environment.step(environment.probe_reply(number))
            except ProtocolError as error:  # a policy need not reply like this
                return _Played((*turns, ("", None)), None, str(error))
            shown = step.messages[-1]["content"] if step.messages else ""
            turns.append((shown, step.reward))
            if step.done:
                return _Played(tuple(turns), step.score)
    finally:
        await environment.close()
