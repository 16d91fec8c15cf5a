"""The protocol that all sources of episodes implement, and the values that cross it.

Invariants every channel keeps:
* the messages of `reset` and of each `Transition` are exactly those the grader would show;
* a transition with `done` carries the graded score in [0, 1]; no other transition has a score;
* failures leave as the typed errors of `miner.environments.errors`, never as a reward.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict

Tool = dict[str, Any]
"""Schema of a function on offer, as a chat template gets it."""

ILLEGAL_ACTION = "illegal action"
"""`Transition.fault` of a reply that names an action which is not legal; others name none."""


class Message(TypedDict):
    """One chat message, as an OpenAI-style API and a chat template take it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class EpisodeTask:
    """One game to play. Equal tasks have equal chance events and equal opponent randomness."""

    environment: str
    task_id: int
    seed: int
    opponent: str = "random"


@dataclass(frozen=True, slots=True)
class Observation:
    """Messages that the policy has to answer.

    Attributes:
        messages: the messages since its last reply (system + user at first).
        stop: texts at the end of which each reply of the episode ends, besides its usual end.
        tools: functions that the chat offers. `step` then gets replies with their special tokens,
            since some families mark a call by them.
        too_long_forfeits: true if the policy's replies decide how long the chat gets: one that
            leaves no room for the next reply scores 0. Else such an episode is lost.
    """

    messages: tuple[Message, ...]
    stop: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    too_long_forfeits: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """Result of one reply.

    Attributes:
        messages: messages to answer next; empty when `done`, or with `appended`.
        reward: reward of this turn as the environment gives it; for the games 0.0 until the end.
        done: true if the episode is over.
        score: the graded score in [0, 1], exactly when `done`; 0.0 after three unparsable replies.
        action: id of the action that was played, None if the reply could not be parsed.
        valid: true if the reply was parsed into a legal action.
        recorded: the reply as the chat's history shows it from now on, None for verbatim (the
            grader strips think blocks and surrounding space).
        fresh: true if a new chat begins: `messages` are then all that is shown from now on.
        appended: text that continues the assistant's own message, in place of `messages`; the
            policy did not sample it, so it is never trained.
        tools: functions that the fresh chat offers; see `Observation`.
        fault: reason why the reply was invalid, in a word or two; empty where that is plain.
    """

    messages: tuple[Message, ...]
    reward: float
    done: bool
    score: float | None = None
    action: int | None = None
    valid: bool = True
    recorded: str | None = None
    fresh: bool = False
    appended: str = ""
    tools: tuple[Tool, ...] = ()
    fault: str = ""


class Environment(Protocol):
    """One episode at a time. `close` may be called at any point and releases server-side state."""

    @property
    def server(self) -> str:
        """Base URL of the server that plays this episode, or the channel's name in-process."""

    async def reset(self, task: EpisodeTask) -> Observation:
        """Start `task`. Raises: `EnvironmentFault`, `ConfigurationError`."""

    async def step(self, text: str) -> Transition:
        """Answer with the policy's whole reply. Raises: `EnvironmentFault`."""

    async def close(self) -> None:
        """Release the episode (idempotent, never raises)."""


class TaskStream(Protocol):
    """Tasks to train on, and others that no training ever sees."""

    @property
    def name(self) -> str:
        """`EpisodeTask.environment` of its tasks."""

    def training(self, index: int, seed: int) -> EpisodeTask:
        """The `index`-th task of a run with this seed: a pure function of both."""

    def held_out(self, count: int, base_seed: int) -> list[EpisodeTask]:
        """`count` tasks, or all where there are fewer; all different, none of which `training` ever
        gives."""


class EnvironmentSource(Protocol):
    """Opens environments: a channel bound to its servers."""

    @property
    def name(self) -> str:
        """Channel name: "step", "graded", "builtin", ..."""

    @property
    def capacity(self) -> int:
        """Largest number of open episodes over all servers."""

    @property
    def applied_rate(self) -> float | None:
        """Share of actions that servers applied as asked; None where none was seen or there are
        no servers."""

    def open(self, avoid: Collection[str] = ()) -> Environment:
        """A fresh environment on the least busy server, not one of `avoid` if others are left."""

    async def ready(self, environment: Environment, task: EpisodeTask) -> None:
        """Wait until `task` can start in one that `open` gave, before its time is measured.

        Callers may leave it out. Raises: `EnvironmentFault`, `ConfigurationError`.
        """

    @property
    def servers(self) -> tuple[str, ...]:
        """Base URLs of the servers that play; empty where episodes are played in-process."""

    async def health_error(self, server: str) -> str:
        """Ask one of `servers` whether it answers: "" if so, else the error in a few words.

        `open` takes a server that does not answer only where all others do not either.
        """

    async def close(self) -> None:
        """Close the channel's connections and servers."""


class InProcess:
    """Base of sources whose episodes are played in this process: nothing goes away."""

    applied_rate: float | None = None
    servers: tuple[str, ...] = ()
    capacity = 4096
    """Memory is the only limit."""

    async def ready(self, environment: Environment, task: EpisodeTask) -> None:
        pass

    async def health_error(self, server: str) -> str:
        return ""

    async def close(self) -> None:
        pass
