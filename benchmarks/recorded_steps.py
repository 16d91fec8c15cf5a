"""Training steps as they are played, by a player that chooses at random: what benchmarks compute.

The episodes, the tokens and the rows are the real ones; nothing is sampled from a model.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace

import numpy as np
from transformers import PreTrainedTokenizerBase

from miner.background_loop import BackgroundLoop
from miner.channels.base import Channel
from miner.channels.registry import make_channel
from miner.config.settings import DemonstrationSettings, RewardSettings, Settings
from miner.distributed.ranks import Ranks
from miner.duel.calls import write_calls
from miner.duel.channel.environment import Duel, DuelSource
from miner.duel.channel.opponents import Opponents
from miner.duel.channel.tasks import duel_task
from miner.duel.memory import MEMORY_TOOLS
from miner.duel.tools import move_call, shaped
from miner.duel.turn import Request
from miner.duel.wording import own_wording
from miner.environments.base import EnvironmentSource, EpisodeTask, Observation
from miner.games import GAMES
from miner.inference.sampler import Sample, SamplingParams
from miner.learning.forest import Row
from miner.rollout.episode import EpisodeParams, sampled
from miner.rollout.renderer import ChatRenderer
from miner.rollout.scheduler import Scheduler
from miner.training.episodes import encode_task
from miner.training.rollout_function import RolloutFunction, all_moves_credit

GROUP, DEALS, MOST_TURNS = 8, 3, 8
SAMPLED = RewardSettings(most_turns=MOST_TURNS)
ALL_REPLIES = RewardSettings(most_turns=MOST_TURNS, credit="all_moves", tau=0.015, named=True)
"""As jobs of real bases learn."""
DEMO_REPLIES = RewardSettings(credit="all_moves", tau=0.01, targets=0.0)
"""As the demo learns."""
GAMES_ALONE, OWN_DUELS, OWN_GROUP = 32, 64, 2
EIGHT_CARDS = ("environment.deck_sizes=[8]",)
OPTION = re.compile(r"^ *(\d+) -> ", re.MULTILINE)
PROBLEM = re.compile(r"(\d+) (plus|minus|times) (\d+) \?")
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
WORDS = ("hello", "there", "sing", "along", "with", "us", "now")

Answer = Callable[[str, Random], str]
"""(text of a prompt, randomness of the episode) -> reply."""
Recorder = Callable[[], "Step"]


def option(prompt: str, rng: Random) -> str:
    """One of the ids that the last list of legal actions names."""
    return rng.choice(OPTION.findall(prompt.rpartition("egal ")[2]))


def call(prompt: str, rng: Random) -> str:
    """The same as a duel's move."""
    return write_calls("qwen25", [move_call(int(option(prompt, rng)))])


def program(prompt: str, rng: Random) -> str:
    """A program for a problem, or a guess."""
    ((left, word, right),) = PROBLEM.findall(prompt)
    if rng.random() < (0.3 if "<output>" in prompt else 0.8):
        return f"<code>print({left} {SIGNS[word]} {rng.choice((left, right))})</code>"
    return str(rng.randrange(60))


def words(prompt: str, rng: Random) -> str:
    """Text of a reply."""
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 7)))


class ScriptedSampler:
    """`Sampler` that answers by a script, and counts tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, answer: Answer) -> None:
        self._tokenizer, self._answer = tokenizer, answer
        self.renderer = ChatRenderer(tokenizer)
        self._rngs: dict[int | None, Random] = {}
        self.rendered = self.sampled = 0

    async def sample(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: int | None = None
    ) -> Sample:
        """See `Sampler`."""
        await asyncio.sleep(0)
        rng = self._rngs.setdefault(session, Random(len(self._rngs)))
        reply = self._answer(str(self._tokenizer.decode(list(prompt_ids))), rng)
        ids = self.renderer.encode_reply(reply)
        cut = any(reply.endswith(end) for end in params.stop)
        ids = ids[:-1] if cut else ids
        self.rendered += len(prompt_ids)
        self.sampled += len(ids)
        return Sample(ids, (-1.0,) * len(ids), "stop_string" if cut else "stop")

    async def end_session(self, session: int) -> None:
        """See `Sampler`."""


class NotedDuels(DuelSource):
    """Duels whose players each come with a note that no other has."""

    _opened = 0

    def open(self, avoid: Collection[str] = ()) -> Duel:
        self._opened += 1
        return _NotedDuel(self, " ".join(Random(self._opened).choices(WORDS, k=60)))


class _NotedDuel(Duel):
    def __init__(self, source: DuelSource, note: str) -> None:
        super().__init__(source)
        self._note = note

    async def reset(self, task: EpisodeTask) -> Observation:
        await super().reset(task)
        asked = self._request
        assert asked is not None
        asked.notes.call(next(iter(MEMORY_TOOLS)), {"slot": 1, "content": self._note})
        parts = (asked.table, asked.player, asked.notes, self._source.wording)
        self._request = again = Request(*parts, legal=asked.legal)
        return Observation(tuple(again.messages), tools=tuple(shaped(again.tools)))


@dataclass
class Step:
    """A recorded step: its rows, the number of each row's episode, each group's environment, how
    many are in a group, and tokens."""

    name: str
    rows: dict[int, Row]
    episodes: list[int]
    environments: list[str]
    group: int
    rendered: int
    sampled: int

    @property
    def tokens(self) -> int:
        """Of all rows, each from its first token to the last that another is predicted from."""
        return sum(len(row.path) for row in self.rows.values())

    def by_environment(self) -> dict[str, dict[int, Row]]:
        """The rows of each environment."""
        found: dict[str, dict[int, Row]] = {name: {} for name in self.environments}
        for number, row in self.rows.items():
            found[self.environments[self.episodes[number] // self.group]][number] = row
        return found


def record(
    name: str,
    source: EnvironmentSource,
    tasks: Sequence[EpisodeTask],
    sampler: ScriptedSampler,
    loop: BackgroundLoop,
    group: int = GROUP,
    reward: RewardSettings = SAMPLED,
) -> Step:
    """Play `tasks` in groups, as a training step does."""
    params = EpisodeParams(SamplingParams(200), 100_000)
    scheduler = Scheduler(source, sampled(sampler, sampler.renderer, params))
    eos = sampler.renderer.eos_token_id
    replies = all_moves_credit(reward, sampler.renderer, source, DemonstrationSettings())
    rollout = RolloutFunction(
        lambda some: loop.run(scheduler.run(some)), reward, eos, Ranks(), replies
    )
    prompts = [encode_task(task) for task in tasks for _ in range(group)]
    columns = rollout(
        prompts, SimpleNamespace(takes_trees=True, state=SimpleNamespace(global_step=0))
    )
    parts = zip(
        *(columns[name] for name in ("prompt_ids", "completion_ids", "env_mask")), strict=True
    )
    rows = {
        number: Row(np.array([*prompt, *completion]), np.flatnonzero(mask) + len(prompt))
        for number, (prompt, completion, mask) in enumerate(parts)
        if any(mask)
    }
    episodes = [number for number, some in enumerate(columns["turn_ids"]) for _ in some]
    environments = [task.environment for task in tasks]
    return Step(name, rows, episodes, environments, group, sampler.rendered, sampler.sampled)


def recorder(tokenizer: PreTrainedTokenizerBase, loop: BackgroundLoop) -> dict[str, Recorder]:
    """Functions that play each kind of step, in this vocabulary, by its short name."""

    def of_duels(name: str, kind: type[DuelSource]) -> Step:
        return record(name, duel_source(kind), duels(), ScriptedSampler(tokenizer, call), loop)

    def own_duels() -> Step:
        name = "own duels of a job, 64 in pairs, all legal replies"
        source, tasks, player = duel_source(), duels(OWN_DUELS), ScriptedSampler(tokenizer, call)
        return record(name, source, tasks, player, loop, OWN_GROUP, ALL_REPLIES)

    def of_channel(name: str, channel: str, answer: Answer, *overrides: str) -> Step:
        played = channel_of(channel, *overrides)
        opened = loop.run(played.open(patience_s=60))
        tasks = [played.tasks.training(index, 0) for index in range(8)]
        step = record(name, opened, tasks, ScriptedSampler(tokenizer, answer), loop)
        loop.run(opened.close())
        return step

    echo = (
        "environment.openenv.app=examples/openenv/echo.py",
        "environment.openenv.return_range=[0,8]",
    )
    return {
        "cards": lambda: goofspiel(tokenizer, loop),
        "served": lambda: goofspiel(
            tokenizer, loop, ALL_REPLIES, "a job's Goofspiel, 32 games alone, all legal replies", ()
        ),
        "duels": lambda: of_duels("duels", DuelSource),
        "notes": lambda: of_duels("duels, a note each", NotedDuels),
        "own": own_duels,
        "code": lambda: of_channel("code agent", "code_agent", program),
        "openenv": lambda: of_channel("OpenEnv (Echo)", "openenv", words, *echo),
    }


def channel_of(name: str, *overrides: str) -> Channel:
    """The channel `name` with these settings."""
    wanted = Settings.load(None, [f"environment.channel={name}", *overrides], environ={})
    return make_channel(wanted.environment)


def goofspiel(
    tokenizer: PreTrainedTokenizerBase,
    loop: BackgroundLoop,
    reward: RewardSettings = SAMPLED,
    name: str = "Goofspiel, 8 cards",
    overrides: Sequence[str] = EIGHT_CARDS,
) -> Step:
    """12 groups of games, or where all legal replies are learned games alone."""
    alone = reward.credit == "all_moves"
    games, group = (GAMES_ALONE, 1) if alone else (12, GROUP)
    played = channel_of("builtin", *overrides)
    source = loop.run(played.open())
    tasks = [played.tasks.training(index, 0) for index in range(games)]
    player = ScriptedSampler(tokenizer, option)
    return record(name, source, tasks, player, loop, group, reward)


def duel_source(kind: type[DuelSource] = DuelSource) -> DuelSource:
    """All six games."""
    return kind(Opponents(list(GAMES)), own_wording(), family="qwen25")


def duels(count: int = 0) -> list[EpisodeTask]:
    """Deals of each game, or `count` duels of all games in turn."""
    deals = -(-count // len(GAMES)) or DEALS
    tasks = [
        duel_task(game, 7 + deal, deal % 2, "random") for game in GAMES for deal in range(deals)
    ]
    return tasks if not count else sorted(tasks, key=lambda task: task.task_id)[:count]
