"""The step channel: the server's `/reset` and `/step`, shown to the policy as the grader would.

The server's own observations have no system prompt and, in some games, no list of actions; the
dialogue around them (prompts, retries, the third failure) is played here by the grader's rule.

Invariants:
* legal actions are read from each observation, never tracked: the real server may play another
  card than the one asked for (`ChannelStats.applied_rate` is the share played as asked);
* the server is only ever sent legal actions; unparsable replies never reach it;
* the score is the reward of the terminal step; no other reward is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from miner.environments.affinetes import AffinetesClient, StepReply
from miner.environments.base import EpisodeTask, Observation, Transition
from miner.environments.errors import EnvironmentFault, no_episode
from miner.environments.games import GradedDialogue, PromptFormat, clean_reply
from miner.environments.listing import HEADING, parse_listing
from miner.environments.servers import OnServer, OnServers, check_server_urls
from miner.games import GAMES, Turn

STEP_EPISODES_PER_SERVER: Final = 256
_STOP_S: Final = 5.0
_STATE_HEADING: Final = "Current State:\n"


class StepSource(OnServers[AffinetesClient]):
    """Opens episodes over `/reset` and `/step` on a set of servers.

    Args:
        urls: base URLs of the servers.
        prompt_formats: wording of the grader's messages by game; our own where a game is missing.
        reply_timeout_s: longest wait for the reply to one request.
    """

    name = "step"

    def __init__(
        self,
        urls: Sequence[str],
        prompt_formats: Mapping[str, PromptFormat] | None = None,
        *,
        reply_timeout_s: float = 30.0,
    ) -> None:
        super().__init__(
            {
                url: AffinetesClient(url, reply_timeout_s=reply_timeout_s)
                for url in check_server_urls(urls)
            }
        )
        self._formats = dict(prompt_formats or {})

    @property
    def capacity(self) -> int:
        """Episodes that may be open at once over all servers."""
        return STEP_EPISODES_PER_SERVER * len(self.pool.urls)

    def open(self, avoid: Collection[str] = ()) -> StepEnvironment:
        """A fresh environment on the least busy server."""
        return StepEnvironment(self, self.clients[self.pool.pick(avoid)])

    def dialogue(self, game_name: str) -> GradedDialogue:
        """The grader's side of one episode of a game."""
        known = self._formats.get(game_name)
        return GradedDialogue(known or PromptFormat.own(game_name))


class StepEnvironment(OnServer):
    """One episode at a time over `/reset` and `/step`."""

    def __init__(self, source: StepSource, client: AffinetesClient) -> None:
        super().__init__(source.pool, client.url)
        self._source = source
        self._client = client
        self._episode_id: str | None = None
        self._game_name = ""
        self._dialogue: GradedDialogue | None = None
        self._turn: Turn | None = None

    async def reset(self, task: EpisodeTask) -> Observation:
        """Start `task` (and stop the episode before, if there was one)."""
        await self._stop()
        dialogue = self._source.dialogue(task.environment)
        with self._reporting():
            reply = await self._client.reset(task)
            self._episode_id, self._game_name = reply.episode_id, task.environment
            if reply.info.game_name != task.environment:
                raise self._protocol_error(
                    f"started {reply.info.game_name!r} where {task.environment!r} was asked"
                )
            if reply.done:
                raise self._protocol_error("started a game that was over before it began")
            turn = self._read_turn(reply)
        self._dialogue, self._turn = dialogue, turn
        return Observation(dialogue.ask(turn))

    async def step(self, text: str) -> Transition:
        """Judge the reply; send the action it names, if it names one."""
        if self._dialogue is None or self._turn is None or self._episode_id is None:
            raise no_episode(self.server)
        verdict = self._dialogue.reply(text)
        if verdict.failed:
            self._turn = None
            return Transition((), 0.0, True, score=0.0, valid=False)
        if verdict.action is None:
            return Transition(verdict.messages, 0.0, False, valid=False, recorded=clean_reply(text))
        with self._reporting():
            reply = await self._client.step(self._episode_id, verdict.action)
            if reply.done:
                return self._finish(reply, verdict.action)
            turn, before = self._read_turn(reply), self._turn
            applied = self._applied(before, turn, verdict.action)
        self._turn = turn
        messages, recorded = self._dialogue.ask(turn), clean_reply(text)
        return Transition(messages, 0.0, False, action=applied, recorded=recorded)

    async def close(self) -> None:
        """Stop the episode on the server and give the place back; never raises."""
        self._release()
        await self._stop()

    async def _stop(self) -> None:
        episode_id, self._episode_id, self._turn = self._episode_id, None, None
        if episode_id is not None:
            with contextlib.suppress(EnvironmentFault, TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._client.stop(episode_id)

    def _finish(self, reply: StepReply, action: int) -> Transition:
        if not 0.0 <= reply.reward <= 1.0:
            raise self._protocol_error(
                f"ended the game with reward {reply.reward} where one in [0, 1] was expected"
            )
        self._turn = None
        self._pool.report_success(self.server)
        return Transition((), reply.reward, True, score=reply.reward, action=action)

    def _read_turn(self, reply: StepReply) -> Turn:
        seat = reply.info.llm_player_id
        if seat is None or seat < 0:
            raise self._protocol_error(f"names player {seat} as the agent's seat")
        try:
            turn = read_turn(self._game_name, reply.observation, seat)
        except ValueError as error:
            raise self._protocol_error(str(error)) from error
        if not turn.labels:
            raise self._protocol_error("shows a turn without a legal action")
        return turn

    def _applied(self, before: Turn, after: Turn, asked: int) -> int:
        """The action that the game made, as far as the observations show it."""
        if not GAMES[self._game_name].sizes:  # else each move spends a card
            return asked
        gone = before.labels.keys() - after.labels.keys()
        if len(gone) != 1 or len(after.labels) != len(before.labels) - 1:
            raise self._protocol_error(
                f"went from the cards {list(before.labels)} to {list(after.labels)} in one step"
            )
        applied = gone.pop()
        self._source.stats.count(asked, applied)
        return applied


def read_turn(game_name: str, observation: str, seat: int) -> Turn:
    """The turn that an observation of /reset or /step shows.

    Raises: ValueError when the observation does not show one in the known form.
    """
    if (read := GAMES[game_name].read_turn) is not None:
        turn = read(observation, seat)
        if turn is None:
            raise ValueError(f"shows no state block of {game_name}: {observation[:200]!r}")
        return turn
    body, _, _ = observation.rpartition("\n\n" + HEADING)
    _, heading, state_text = body.partition(_STATE_HEADING)
    if not heading:
        raise ValueError(f"shows no state and no list of actions: {observation[:200]!r}")
    return Turn(state_text, seat, parse_listing(observation))
