"""The openenv channel: episodes on OpenEnv servers.

Invariants:
* an episode is one session; an early end is a typed error and never a score;
* the score is the sum of the episode's rewards, mapped from `return_range` to [0, 1]; a reward that
  is none, or a sum outside, is an error and never replaced by a number;
* an episode that the policy's replies, and the answers to them, make too long scores 0;
* settings that turn out not to fit the environment end the source: no further episode is opened.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from miner.config.channel_settings import OpenEnvSettings
from miner.config.errors import ConfigurationError
from miner.environments.base import Environment, EpisodeTask, Message, Observation, Transition
from miner.environments.errors import no_episode
from miner.environments.openenv.codec import Codec, InvalidReply, Json
from miner.environments.openenv.hosting import LocalApp, revive
from miner.environments.openenv.places import Places
from miner.environments.openenv.server import OpenEnvServer
from miner.environments.openenv.session import RefusedAction, ServerFull, Session
from miner.environments.openenv.wire import ObservationData
from miner.environments.servers import OnServer, OnServers

NAME: Final = "openenv"
_LONGEST_PAUSE_S: Final = 2.0


class OpenEnvSource(OnServers[OpenEnvServer]):
    """Opens episodes on servers that all play the same environment.

    Args:
        servers: by base URL.
        settings: of the channel.
        codec: translation between the policy's text and the environment's actions.
        host: the local server, if there is one; started, and stopped with the source.

    Attributes:
        sharing: processes that share the sessions of each server.
    """

    name = NAME

    def __init__(
        self,
        servers: Mapping[str, OpenEnvServer],
        settings: OpenEnvSettings,
        codec: Codec,
        host: LocalApp | None = None,
    ) -> None:
        super().__init__(servers)
        self._host = host
        self.settings = settings
        self.codec = codec
        self.places = {url: Places(url, settings.sessions) for url in servers}
        self._processes = 1
        self.sharing = 1
        self.rewarded = False
        self.fault: ConfigurationError | None = None

    @property
    def capacity(self) -> int:
        """Episodes at once over all servers and processes, as far as it is known."""
        return self._processes * sum(places.limit for places in self.places.values())

    def share(self, limits: Mapping[str, int], processes: int) -> None:
        """Take this process's part of the servers' places; each one has its own local server.

        Args:
            limits: sessions at once that servers were found to take.
            processes: processes that play alike, this one among them.

        Raises: `ConfigurationError` for a server with fewer sessions than processes.
        """
        self._processes = processes
        self.sharing = processes if self._host is None else 1
        for url, places in self.places.items():
            if self._host is not None:
                [places.limit] = limits.values()
                continue
            places.limit = limits[url] // processes
            if not places.limit:
                raise ConfigurationError(
                    f"{url} takes {limits[url]} sessions at once, fewer than the {processes} "
                    "trainer processes: lower --processes, or give the server more sessions"
                )

    def open(self, avoid: Collection[str] = ()) -> OpenEnvEnvironment:
        """A fresh environment on the least busy server. Raises: `ConfigurationError`."""
        if self.fault is not None:
            raise self.fault
        limits = {url: places.limit for url, places in self.places.items()}
        return OpenEnvEnvironment(self, self.pool.pick(avoid, limits))

    async def ready(self, environment: Environment, task: EpisodeTask) -> None:
        assert isinstance(environment, OpenEnvEnvironment)
        await environment.ready(task)

    async def health_error(self, server: str) -> str:
        """Reason why a server is unusable; "" if it answers. A local one is restarted."""
        if self._host is not None:
            await revive(self._host)
        return await super().health_error(server)

    async def close(self) -> None:
        """Close the connections, and stop a local server (idempotent)."""
        await super().close()
        if self._host is not None:
            await asyncio.to_thread(self._host.stop)


class OpenEnvEnvironment(OnServer):
    """One episode at a time."""

    def __init__(self, source: OpenEnvSource, url: str) -> None:
        super().__init__(source.pool, url)
        self._source = source
        self._settings = source.settings
        self._places = source.places[url]
        self._session: Session | None = None
        self._began: ObservationData | None = None
        self._has_place = False
        self._observation: Json = {}
        self._rewards: list[float] = []
        self._turns = self._sent = 0

    async def ready(self, task: EpisodeTask) -> None:
        """Start `task` in a new session: only its start shows whether the server has a place."""
        await self._leave()
        with self._reporting(timed=False):
            began = await self._begin({**self._settings.reset, "seed": task.seed})
            self._began = await self._opened() if self._settings.opening else began

    async def reset(self, task: EpisodeTask) -> Observation:
        """Show the start of `task`."""
        if self._began is None:
            await self.ready(task)
        began, self._began = self._began, None
        assert began is not None
        with self._reporting():
            if began.done:
                raise self._protocol_error("started an episode that was over before it began")
            messages = [self._user(self._source.codec.text(began.observation))]
        self._observation = began.observation
        self._rewards, self._turns, self._sent = [], 0, 0
        if self._settings.system:
            messages.insert(0, {"role": "system", "content": self._settings.system})
        return Observation(tuple(messages), too_long_forfeits=True)

    async def step(self, text: str) -> Transition:
        """Send the reply as an action, if it is one."""
        session, codec = self._session, self._source.codec
        if session is None:
            raise no_episode(self.server)
        self._turns += 1
        with self._reporting():
            try:
                action = codec.action(text, self._observation)
                got = await session.step(action)
            except (InvalidReply, RefusedAction) as refusal:
                return await self._refuse(str(refusal))
            self._sent += 1
            reward = self._noted(got.reward)
            if got.done or self._turns >= self._settings.max_turns:
                return await self._end(reward, by_turns=not got.done)
            shown = codec.text(got.observation)
        self._observation = got.observation
        return Transition((self._user(shown),), reward, done=False)

    def probe_reply(self, number: int) -> str:
        """`Codec.dull` of the current observation."""
        return self._source.codec.dull(self._observation, number)

    async def close(self) -> None:
        """Leave the server (idempotent, never raises)."""
        self._release()
        await self._leave()

    async def _begin(self, arguments: Json) -> ObservationData:
        """Connect and reset, once the server has a place."""
        waited, pause = 0.0, 0.02
        while True:
            await self._places.take()
            self._has_place = True
            try:
                self._session = await self._source.clients[self.server].connect()
                return await self._session.reset(arguments)
            except ServerFull as full:
                if full.most is not None:  # else others hold places that will come free
                    self._places.lower(full.most // self._source.sharing)
                elif self._places.taken > 1:
                    self._places.lower(self._places.taken - 1)
                await self._leave()
                if waited > self._settings.reply_seconds:
                    raise
            waited += pause
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, 2 * pause)

    async def _opened(self) -> ObservationData:
        """The observation of the opening action: no turn, and its reward is not counted."""
        assert self._session is not None
        opening = self._settings.opening
        try:
            got = await self._session.step(opening)
        except RefusedAction as refusal:
            raise ConfigurationError(
                f"{self.server} refuses environment.openenv.opening={opening}: {refusal}"
            ) from refusal
        if got.done:
            raise ConfigurationError(f"environment.openenv.opening={opening} ends the episode")
        return got

    async def _leave(self) -> None:
        session, self._session = self._session, None
        try:
            if session is not None:
                await session.close()
        finally:
            if self._has_place:
                self._has_place = False
                await self._places.give()

    async def _refuse(self, why: str) -> Transition:
        """The reply was none: it takes a turn, and the server knows nothing of it."""
        if self._turns < self._settings.max_turns:
            return Transition((self._user(why),), 0.0, done=False, valid=False)
        if not self._sent:  # the policy's fault alone
            self._rewards = [self._settings.return_range[0]]
        return await self._end(0.0, by_turns=True, valid=False)

    async def _end(self, reward: float, *, by_turns: bool, valid: bool = True) -> Transition:
        low, high = self._settings.return_range
        if by_turns and self._settings.unfinished == "zero":
            total = low
        elif not self._rewards:
            raise self._without_reward(by_turns)
        else:
            total = self._sum()
        slack = 1e-6 * (high - low)  # sums of floats
        if not low - slack <= total <= high + slack:
            raise ConfigurationError(
                f"{self.server} gave an episode rewards of {total:g} in all, outside of "
                f"environment.openenv.return_range=[{low:g}, {high:g}]: set it to the lowest and "
                "the highest sum that an episode can have"
            )
        score = min(1.0, max(0.0, (total - low) / (high - low)))
        await self._leave()
        self._pool.report_success(self.server)
        return Transition((), reward, done=True, score=score, valid=valid)

    def _noted(self, reward: float | None) -> float:
        """Raises: `ProtocolError` for a reward that is no finite number."""
        if reward is None:
            return 0.0
        try:
            number = float(reward)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._protocol_error(f"gave the reward {number}")
        self._source.rewarded = True
        self._rewards.append(number)
        return number

    def _sum(self) -> float:
        try:
            return math.fsum(self._rewards)
        except OverflowError:
            raise self._protocol_error("gave rewards whose sum is no number") from None

    def _without_reward(self, by_turns: bool) -> Exception:
        how = (
            f"was ended by environment.openenv.max_turns={self._settings.max_turns} without any "
            'reward: raise it, set environment.openenv.unfinished="zero" if only an end that the '
            "policy brings about is rewarded"
            if by_turns
            else "ended without any reward (null; a reward that is not a number looks the same)"
        )
        if self._source.rewarded:  # others had some
            what = f"played an episode that {how}"
            if by_turns:  # lost, it would cost the policy nothing not to come to an end
                return ConfigurationError(f"{self.server} {what}")
            return self._protocol_error(what)
        return ConfigurationError(
            f"{self.server} gives no reward, so nothing can be learned there: an episode {how}, or "
            "choose another environment"
        )

    def _user(self, content: str) -> Message:
        return {"role": "user", "content": content}

    @contextmanager
    def _reporting(self, *, timed: bool = True) -> Iterator[None]:
        try:
            with super()._reporting(timed=timed):
                yield
        except ConfigurationError as error:
            self._source.fault = self._source.fault or error
            raise
