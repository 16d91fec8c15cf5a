"""Size of an episode of a job's games, for the estimates and the memory plan.

Counted in Qwen's vocabulary: duels as docs/gpu.md says ("What a duel costs"), whose table is
`DUELS`; games of servers over Goofspiel's deck sizes, and what trees compute of them, by `python -m
benchmarks.tokens --passes 0 --steps served own`, in passes of 8,192 tokens. There own duels take
0.9 of the tokens that teachers' decisions of the same games do, which count for both here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from miner.config.channel_facts import FACTS
from miner.config.contract import DUEL_TURN_TOKENS, INTERCODE_DATASET, dataset_folder
from miner.config.settings import Settings

TURN_SECONDS = 0.006  # of a trainer's process, for a duel's turn: the prompt, the opponent's move
REPLY_TOKENS = 50  # of a duel's turn: a move's call takes 26, a base writes some words around it
MEAN_SHARE = 0.6  # of the longest episode, where that leaves no room for the mean


class _Duel(NamedTuple):
    """Own turns of a game, tokens of a prompt, those that the turn before has not brought, and
    those that trees compute of a decision with its legal replies; seconds that a teacher takes."""

    turns: float
    prompt: float
    fresh: float
    taught: float
    teaching: float


DUELS = {
    "goofspiel": _Duel(8.7, 1069, 389, 468, 0.0),
    "liars_dice": _Duel(1.9, 1553, 1188, 1062, 0.0),
    "leduc_poker": _Duel(2.2, 956, 523, 152, 0.0),
    "gin_rummy": _Duel(19.8, 1123, 398, 440, 0.0),
    "othello": _Duel(28.9, 1141, 422, 558, 0.04),
    "clobber": _Duel(5.8, 1032, 425, 665, 0.02),
}


@dataclass(frozen=True)
class Workload:
    """One episode, on average; all but `turns` and `seconds` are tokens.

    Attributes:
        trained: of the rows that are learned from.
        computed: of these rows and of all legal replies, by trees; a model that takes none
            computes about `trained`, of few turns or replies.
        prefilled: of prompts that an engine computes, what its cache holds left out.
        sampled: of all replies, which come one after another.
        longest: the same of the game with the longest episodes.
        turns: own turns.
        seconds: of a trainer's process besides the engine; 0 where servers play.
        context: that a sampled token attends to.
        held: keys and values that a live episode needs at most; None: a whole episode's.
        taught: computed of a teacher's decision; 0 without teachers.
        taught_row: the same by a model that takes no trees, which learns one reply of it.
        teaching: seconds that a teacher takes for one.
        teachers: their processes beside each of the trainer's; 0: they are a thread of it.
    """

    trained: float
    computed: float
    prefilled: float
    sampled: float
    longest: float
    turns: float
    seconds: float
    context: float
    held: int | None = None
    taught: float = 0.0
    taught_row: float = 0.0
    teaching: float = 0.0
    teachers: int = 0

    def within(self, episode_tokens: int) -> Workload:
        """The same where no episode can be longer than this."""
        if self.held is not None:
            return replace(self, held=min(self.held, episode_tokens))
        room = MEAN_SHARE * episode_tokens
        part = min(1.0, room / self.trained)
        return replace(
            self,
            trained=part * self.trained,
            computed=part * self.computed,
            prefilled=min(self.prefilled, room),
            context=min(self.context, room / 2),
            held=episode_tokens,
        )


SERVED = Workload(
    trained=2800,
    computed=2680,
    prefilled=2800,
    sampled=120,
    longest=120,
    turns=12,
    seconds=0.0,
    context=1400,
)
"""Goofspiel on servers: 8 tokens a reply, one growing chat."""

RECORDED = Workload(
    trained=9000,
    computed=9000,
    prefilled=0,
    sampled=0,
    longest=0,
    turns=1,
    seconds=0.0,
    context=0,
)
"""A recorded conversation, of which nothing is sampled: SWE-ZERO's 112 billion tokens in 12.3
million, as its card has them."""

INTERCODE_TURN = replace(RECORDED, trained=400, computed=400)
"""An estimate: 160 tokens of messages in our words (SmolLM2's tokenizer), about as many of tools,
and a call."""


def workload(settings: Settings) -> Workload:
    """Workload of the job's channel."""
    if FACTS[settings.environment.channel].supervised:
        return RECORDED if others_than_intercode(settings.environment.datasets) else INTERCODE_TURN
    if FACTS[settings.environment.channel].duels:
        played = duels(settings.environment.games, settings.reward.most_turns)
        return replace(played, teachers=settings.demonstrations.processes)
    return SERVED


def learns_long_rows(settings: Settings) -> bool:
    """Return whether conversations of data sets, each as long as an episode may be, are learned
    beside games: InterCode's are no longer than turns, and an empty folder has none."""
    return any(map(has_rows, others_than_intercode(settings.demonstrations.datasets)))


def has_rows(folder: Path) -> bool:
    """Return whether a data set's folder holds files, or what cannot be told from them."""
    try:
        return any(not each.is_dir() for each in folder.rglob("*"))
    except OSError:
        return True


def others_than_intercode(folders: Iterable[Path]) -> list[Path]:
    """Data sets but InterCode's own, whose rows are short."""
    return [each for each in folders if each.name != dataset_folder(INTERCODE_DATASET)]


def duels(games: Sequence[str], most_turns: int | None) -> Workload:
    """Duels of these games, equally often; each turn is a separate chat.

    Args:
        most_turns: that are trained of a game; None: all.
    """
    played = [DUELS[name] for name in games]
    learnt = [game.turns if most_turns is None else min(game.turns, most_turns) for game in played]
    trained = [
        turns * (game.prompt + REPLY_TOKENS) for turns, game in zip(learnt, played, strict=True)
    ]
    return Workload(
        trained=mean(trained),
        computed=mean(turns * game.taught for turns, game in zip(learnt, played, strict=True)),
        prefilled=mean(game.turns * game.fresh for game in played),
        sampled=REPLY_TOKENS * mean(game.turns for game in played),
        longest=REPLY_TOKENS * max(game.turns for game in played),
        turns=mean(game.turns for game in played),
        seconds=TURN_SECONDS * mean(game.turns for game in played),
        context=mean(game.prompt for game in played),
        held=DUEL_TURN_TOKENS,
        taught=mean(game.taught for game in played),
        taught_row=mean(game.prompt + REPLY_TOKENS for game in played),
        teaching=mean(game.teaching for game in played),
    )
