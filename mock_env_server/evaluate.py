"""/evaluate: a graded episode, in which the server asks a model for every move.

Invariants:
* a failure in an episode is part of an HTTP 200 answer with score 0 (`result.error`);
  three unparsable replies in one turn score 0 without an error;
* the card asked for is the card played, in every mode of the server;
* nothing outlives the answer, unless stragglers are wanted.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from miner.config.contract import agent_seat
from miner.config.errors import ConfigurationError
from miner.environments.games import GameSession, GradedDialogue, PromptFormat
from miner.games import game_of
from miner.http_replies import Connections
from mock_env_server import wording
from mock_env_server.chat_client import ChatModel, ChatRefusedError
from mock_env_server.quirks import EvaluateGate, Quirk
from mock_env_server.records import action_history, last_observation
from mock_env_server.rooms import GameRoom, random_seed, random_task_id
from mock_env_server.settings import ServerSettings
from mock_env_server.stepping import BadArguments

Answer = dict[str, Any]
MAX_TIMEOUT_S = 10_000_000
TIME_SHARE = 0.9
"""Share of a request's timeout after which the real server aborts the game."""


@dataclass(slots=True)
class GradedEpisode:
    """State of one graded episode."""

    task_id: Any
    seed: Any
    opponent: Any
    game_name: str
    dialogue: GradedDialogue | None = None
    session: GameSession | None = None
    usage: dict[str, Any] = field(
        default_factory=lambda: {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    )

    def result(self, error: str | None) -> Answer:
        """The answer's `result` as things stand."""
        session = self.session
        score, final_return, returns = 0.0, None, None
        if error is None and session is not None and session.done:
            score, returns = session.score(), session.returns()
            final_return = returns[session.agent_seat]
        answer: Answer = {
            "task_name": f"openspiel:{self.game_name}",
            "score": score,
            "success": score > 0.5,
            "extra": {
                "conversation": [] if self.dialogue is None else self.dialogue.conversation,
                "action_history": [] if session is None else action_history(session),
                "observation": None if session is None else last_observation(session),
                "task_type": self.game_name,
                "game_name": self.game_name,
                "task_id": self.task_id,
                "seed": self.seed,
                "opponent_type": self.opponent,
                "llm_player_id": agent_seat(self.seed),
                "final_return": final_return,
                "all_returns": returns,
                "usage": self.usage,
            },
        }
        if error is not None:
            answer["error"] = error
        return answer


class GradedGames:
    """Plays graded episodes, any number at a time."""

    def __init__(self, settings: ServerSettings, room: GameRoom) -> None:
        self._settings = settings
        self._room = room
        self._gate = EvaluateGate(deadlocks=Quirk.DEADLOCK in settings.quirks)
        self._stragglers: set[asyncio.Task[str | None]] = set()
        self._connections = Connections()

    async def close(self) -> None:
        """Abandon stragglers and close connections."""
        for task in self._stragglers:
            task.cancel()
        await self._connections.close()

    async def evaluate(
        self,
        task_id: Any = None,
        seed: Any = None,
        model: Any = None,
        base_url: Any = None,
        timeout: Any = 1800,  # noqa: ASYNC109 (a field of the wire format)
        temperature: Any = None,
        api_key: Any = None,
        opponent: Any = "mcts",
        collect_logprobs: Any = False,
    ) -> Answer:
        """Play one episode with the model at `base_url` and score it."""
        if not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT_S:
            raise BadArguments(wording.unsupported_timeout(timeout))
        seed = random_seed() if seed is None else seed
        if not isinstance(seed, int | float):
            raise BadArguments(f"seed {seed!r}: expected a whole number")
        task_id = random_task_id() if task_id is None else task_id
        episode = GradedEpisode(task_id, seed, opponent, _game_name(task_id))
        async with self._gate.enter():
            chat = ChatModel(
                connections=self._connections,
                base_url=base_url,
                api_key=api_key,
                model=model,
                seed=seed,
                temperature=temperature,
            )
            error = await self._within(timeout, self._play(episode, chat))
        result = episode.result(error)
        if collect_logprobs:
            result["extra"]["full_logprobs"] = None
        return result

    async def _within(self, timeout_s: float, play: Coroutine[Any, Any, str | None]) -> str | None:
        """Run an episode in its time; the error that ended it, None if nothing went wrong."""
        started = monotonic()
        straggles = Quirk.STRAGGLERS in self._settings.quirks
        try:
            async with asyncio.timeout(TIME_SHARE * timeout_s):
                return await (self._detached(play) if straggles else play)
        except TimeoutError:
            return wording.out_of_time(monotonic() - started, timeout_s)

    def _detached(self, play: Coroutine[Any, Any, str | None]) -> asyncio.Future[str | None]:
        """An episode that continues when no request waits for it any more."""
        task = asyncio.create_task(play)
        self._stragglers.add(task)
        task.add_done_callback(self._stragglers.discard)
        return asyncio.shield(task)

    async def _play(self, episode: GradedEpisode, chat: ChatModel) -> str | None:
        """Play to the end; the error that ended the episode early, None if nothing went wrong."""
        try:
            session = await self._open(episode, chat.base_url)
        except (TypeError, ValueError) as error:
            return f"[{type(error).__name__}] {error}"
        dialogue = GradedDialogue(PromptFormat.own(session.game_name))
        episode.session, episode.dialogue = session, dialogue
        try:
            while not session.done:
                dialogue.ask(session.turn())
                action = await self._decision(episode, dialogue, chat)
                if action is None:
                    return None
                await self._room.play(session, action)
        except ChatRefusedError as error:
            return f"[API_ERROR] {error}"
        return None

    async def _open(self, episode: GradedEpisode, base_url: Any) -> GameSession:
        if not isinstance(base_url, str):
            raise TypeError(f"base_url {base_url!r}: expected the URL of a chat API")
        for name, value in (("task_id", episode.task_id), ("seed", episode.seed)):
            if not isinstance(value, int):
                raise TypeError(f"{name} {value!r}: expected a whole number")
        return await self._room.open(
            episode.task_id,
            episode.seed,
            episode.opponent,
            stream="evaluate",
            card_application="asked",
        )

    async def _decision(
        self, episode: GradedEpisode, dialogue: GradedDialogue, chat: ChatModel
    ) -> int | None:
        """The model's action for the turn just put to it, None when its attempts are used up."""
        while True:
            await self._gate.passage()
            text, usage = await chat.complete(dialogue.conversation)
            episode.usage = usage or episode.usage
            verdict = dialogue.reply(text)
            if verdict.action is not None or verdict.failed:
                return verdict.action


def _game_name(task_id: Any) -> str:
    try:
        return game_of(task_id).name if isinstance(task_id, int) else "unknown"
    except ConfigurationError:
        return "unknown"
