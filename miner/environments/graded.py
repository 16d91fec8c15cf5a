"""The graded channel: the server's own `/evaluate`, turned inside out.

The server plays the episode and asks for each reply at an endpoint of ours; its messages become
observations and the policy's text becomes the answer. So the policy is trained on the grader's
own prompts, retries, parser and game rules.

Invariants:
* a message reaches the policy once, and only if the chat it belongs to repeats word for word what
  was sent before; anything else is a `ProtocolError`;
* a score is the server's own; an episode that the server reports as broken is never a zero;
* no more than `GRADED_EPISODES_PER_SERVER` calls of `/evaluate` are under way on a server, see
  `GradedCalls`. An abandoned episode keeps its place until the server lets go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Final

from miner.environments.affinetes import AffinetesClient, EvaluateReply
from miner.environments.base import Environment, EpisodeTask, Message, Observation, Transition
from miner.environments.errors import (
    EnvironmentFault,
    InfrastructureError,
    ProtocolError,
    no_episode,
)
from miner.environments.games import clean_reply, parse_graded_reply
from miner.environments.graded_calls import GRADED_EPISODES_PER_SERVER, GradedCalls
from miner.environments.graded_endpoint import ChatEndpoint, ChatExchange
from miner.environments.listing import parse_listing
from miner.environments.servers import OnServer, OnServers, check_server_urls
from miner.http_replies import excerpt

logger = logging.getLogger(__name__)

# Longest time for an abandoned call to end (it ends at its next chat request).
_LETTING_GO_S: Final = 60.0


class GradedSource(OnServers[AffinetesClient]):
    """Opens graded episodes on a set of servers. To be used within one event loop at a time.

    Args:
        urls: base URLs of the servers.
        turn_timeout_s: longest wait for the server between a reply and its next message.
        episode_timeout_s: wall-clock limit of an episode, thinking time of the policy included.
    """

    name = "graded"

    def __init__(
        self,
        urls: Sequence[str],
        *,
        turn_timeout_s: float = 60.0,
        episode_timeout_s: int = 1800,
    ) -> None:
        super().__init__({url: AffinetesClient(url) for url in check_server_urls(urls)})
        self.turn_timeout_s = turn_timeout_s
        self.episode_timeout_s = episode_timeout_s
        self._runtime: GradedCalls | None = None

    @property
    def capacity(self) -> int:
        """Episodes that may be under way at once over all servers."""
        return GRADED_EPISODES_PER_SERVER * len(self.pool.urls)

    def open(self, avoid: Collection[str] = ()) -> GradedEnvironment:
        """A fresh environment on the least busy server."""
        return GradedEnvironment(self, self.pool.pick(avoid))

    def runtime(self) -> GradedCalls:
        """State of the running event loop; made again in a new loop."""
        loop = asyncio.get_running_loop()
        if self._runtime is None or self._runtime.loop is not loop:
            self._runtime = GradedCalls(loop, ChatEndpoint(), self.clients)
        return self._runtime

    async def ready(self, environment: Environment, task: EpisodeTask) -> None:
        """Wait for a free place on the server: no time of the episode's own."""
        assert isinstance(environment, GradedEnvironment)
        await environment.take_place()

    async def close(self) -> None:
        """Abort all episodes and stop listening (idempotent)."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()
        await super().close()


class GradedEnvironment(OnServer):
    """One graded episode, seen from the policy's side."""

    def __init__(self, source: GradedSource, server: str) -> None:
        super().__init__(source.pool, server)
        self._source = source
        self._runtime: GradedCalls | None = None
        self._has_place = False
        self._exchange: ChatExchange | None = None
        self._call: asyncio.Task[None] | None = None
        self._task: EpisodeTask | None = None
        self._said: list[Message] = []
        self._listing: dict[int, str] = {}
        self._base_url = ""
        self._actions: list[int | None] = []

    async def take_place(self) -> None:
        """Wait for one of the server's places, for the next episode."""
        self._runtime = self._source.runtime()
        await self._runtime.places[self.server].acquire()
        self._has_place = True

    async def reset(self, task: EpisodeTask) -> Observation:
        """Have the server start `task`; waits for a free place on it, unless one was taken."""
        self._end_episode()
        if not self._has_place:
            await self.take_place()
        assert self._runtime is not None
        self._task, self._said, self._actions = task, [], []
        self._exchange, self._base_url, self._call = await self._runtime.start(
            self.server, task, self._source.episode_timeout_s
        )
        self._has_place = False  # the call's now
        event = await self._next_event()
        if isinstance(event, EvaluateReply):
            raise self._fault(
                ProtocolError, "ended the episode without asking for a single reply", event
            )
        self._listing = parse_listing(event[-1]["content"]) if event else {}
        if not self._listing:
            raise self._fault(ProtocolError, "opened the chat without a list of legal actions")
        self._said = event
        return Observation(tuple(event))

    async def step(self, text: str) -> Transition:
        """Answer the server's latest message."""
        if self._exchange is None:
            raise no_episode(self.server)
        self._exchange.reply(text)
        action = parse_graded_reply(text, tuple(self._listing), self._listing)
        event = await self._next_event()
        if isinstance(event, EvaluateReply):
            return self._finish(event, action)
        recorded, messages = self._new_messages(event, text)
        listing = parse_listing(messages[-1]["content"])
        valid = bool(listing) and (action is not None or listing != self._listing)
        self._judge(action, valid)
        if listing:
            self._listing = listing
        made = action if valid else None
        return Transition(messages, 0.0, False, action=made, valid=valid, recorded=recorded)

    async def close(self) -> None:
        """Give the episode up if it is not over; the server learns of it at its next request."""
        self._end_episode()
        if self._has_place and self._runtime is not None:
            self._has_place = False
            self._runtime.places[self.server].release()
        self._release()

    def _end_episode(self) -> None:
        if self._exchange is None or self._runtime is None or self._call is None:
            return
        self._runtime.endpoint.close_exchange(self._exchange)
        if not self._call.done():
            self._runtime.loop.call_later(_LETTING_GO_S, self._call.cancel)
        self._exchange = self._call = None

    async def _next_event(self) -> list[Message] | EvaluateReply:
        """The server's next message or its result."""
        assert self._exchange is not None
        limit = self._source.turn_timeout_s
        try:
            async with asyncio.timeout(limit):
                event = await self._exchange.inbox.get()
        except TimeoutError:
            waited = f"sent nothing for {limit:g} s"
            if not self._said:
                waited += f"; it must be able to reach this machine at {self._base_url}"
            raise self._fault(InfrastructureError, waited, took_s=limit) from None
        if isinstance(event, BaseException):
            self._pool.report_failure(self.server)
            raise event
        if isinstance(event, EvaluateReply) and event.error is not None:
            raise self._fault(InfrastructureError, "broke the episode off", event)
        return event

    def _new_messages(self, chat: list[Message], reply: str) -> tuple[str, tuple[Message, ...]]:
        """Record of `reply` in `chat`, and the new messages; checks that all else is repeated."""
        held = len(self._said)
        if chat[:held] != self._said or len(chat) < held + 2:
            raise self._fault(ProtocolError, "changed or dropped earlier messages of the chat")
        echo = chat[held]
        if echo["role"] != "assistant" or not self._is_echo(echo["content"], reply):
            raise self._fault(
                ProtocolError,
                f"recorded the reply {reply[:80]!r} as {echo['role']} {echo['content'][:80]!r}",
            )
        self._said = chat
        return echo["content"], tuple(chat[held + 1 :])

    def _is_echo(self, recorded: str, reply: str) -> bool:
        """Return whether the chat may hold `recorded` for `reply` (the grader keeps no think
        text)."""
        if recorded == clean_reply(reply):
            return True
        self._disagree(f"it recorded {reply[:80]!r} as {recorded[:80]!r}")
        return recorded in reply

    def _judge(self, action: int | None, valid: bool) -> None:
        """Keep what our copy of the parser read next to the server's verdict."""
        if valid:
            self._actions.append(action)
        if valid != (action is not None):
            judged = "legal" if valid else "no action"
            self._disagree(f"where our copy of its parser read {action}, it judged {judged}")

    def _disagree(self, how: str) -> None:
        stats = self._source.stats
        stats.disagreements += 1
        if stats.disagreements == 1:  # one has all that the user can act on
            logger.warning(
                "%s judges replies otherwise than assumed, as after a change upstream: %s; its own "
                "verdicts are trained on, but other channels judge as assumed",
                self.server,
                how,
            )

    def _finish(self, result: EvaluateReply, action: int | None) -> Transition:
        assert self._task is not None
        extra = result.extra
        task = self._task
        if (extra.task_id, extra.seed, extra.game_name) != (
            task.task_id,
            task.seed,
            task.environment,
        ):
            raise self._fault(
                ProtocolError,
                f"reports {extra.game_name} task {extra.task_id}, seed {extra.seed} where {task} "
                "was asked",
            )
        played_out = extra.final_return is not None
        self._judge(action, played_out)
        made = [played.action for played in extra.action_history if played.is_llm]
        for asked, applied in zip(self._actions, made, strict=False):
            if asked is not None:
                self._source.stats.count(asked, applied)
        self._pool.report_success(self.server)
        self._end_episode()
        if not played_out:
            return Transition((), 0.0, True, score=0.0, action=None, valid=False)
        return Transition((), result.score, True, score=result.score, action=action)

    def _fault(
        self,
        kind: type[EnvironmentFault],
        what: str,
        result: EvaluateReply | None = None,
        took_s: float = 0.0,
    ) -> EnvironmentFault:
        self._pool.report_failure(self.server, took_s)
        reason = ""
        if result is not None and result.error:
            reason = f" ({excerpt(result.error)})"
        return kind(f"{self.server}/evaluate {what}{reason}", server=self.server)
