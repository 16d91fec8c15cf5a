"""Credit for all legal moves: at each decision of the policy's own games, the distribution over the
legal replies is pulled towards softmax(Q / tau), with Q from a critic.

This is the M-step of maximum a posteriori policy optimisation (Abdolmaleki et al. 2018, arXiv
1806.06920, equation 10, without its trust region). The loss of a decision is the cross-entropy
between the target and the policy's probability of each whole reply; what is no legal reply loses
mass to those that are. Each legal reply is a row of its own behind the decision's prompt, which
trees compute once; a model that takes no trees learns one reply, drawn from the target.
"""

import itertools
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean
from typing import Protocol

from miner.config.contract import agent_seat
from miner.environments.base import EpisodeTask, Message
from miner.rewards.goofspiel_critic import Bid, bids_of, softmax
from miner.rollout.episode import Guide, Pick
from miner.rollout.trajectory import ENVIRONMENT_TURN, RolloutRow, Trajectory

LEAST_SHARE = 0.005
"""Legal replies with a smaller share of the target are left out: they cost more than they teach."""

Encode = Callable[[str], tuple[int, ...]]
Seen = tuple[list[Bid], list[float]]
"""Bids of finished episodes, and what the critic's best move would have added to each."""


class Critic(Protocol):
    """Values the legal replies of one or more games."""

    def values(self, shown: Sequence[Message], seat: int) -> Mapping[str, float] | None:
        """Chance to win by the text of each legal reply; None where `shown` holds no position.

        Args:
            shown: the messages since the policy's last reply.
            seat: the policy's.
        """

    def learn(self, bids: Sequence[Bid]) -> None:
        """Take note of how the policy has bid; nothing to do for games without bids."""


class AllMoves:
    """Makes the rows, and keeps the critic informed of the policy.

    Args:
        encode: a reply's text to its token ids, with the token that ends it.
        tau: temperature of the target, in chances to win.
        draw: where one reply of a decision is taught.

    Attributes:
        regret: mean over the latest games' trained moves of what the critic's best one would have
            added to the chance to win; NaN before any.
    """

    def __init__(
        self, critic: Critic, encode: Encode, tau: float, draw: random.Random | None = None
    ) -> None:
        self._critic = critic
        self._encode = encode
        self._tau = tau
        self._bids: list[Bid] = []
        self._regrets: list[float] = []
        self._draw = draw or random.Random(0)
        self.regret = math.nan

    def learn(self, gather: Callable[[Seen], list[Seen]]) -> None:
        """Let the critic know how the policy has played since the last call; collective.

        Args:
            gather: what this rank has seen -> what all ranks have.
        """
        seen = gather((self._bids, self._regrets))
        self._bids, self._regrets = [], []
        self._critic.learn([bid for bids, _ in seen for bid in bids])
        regrets = [regret for _, some in seen for regret in some]
        self.regret = fmean(regrets) if regrets else math.nan

    def rows(
        self, trajectory: Trajectory, turns: Collection[int], *, every: bool = True
    ) -> list[RolloutRow]:
        """Rows of the legal replies at `turns`; their weights add up to one for each decision.

        Args:
            every: false for one reply a decision, see `taught`.
        """
        rows: list[RolloutRow] = []
        prompts = prompts_by_turn(trajectory)
        if trajectory.sampled_tokens:
            self._bids += bids_of(trajectory)
        for turn in sorted(turns):
            values = self._values_at(trajectory, turn)
            reply, action = trajectory.turns[turn].reply, str(trajectory.turns[turn].action)
            played = reply if reply in values else action
            if played in values and trajectory.turns[turn].sampled_tokens:
                self._regrets.append(max(values.values()) - values[played])
            if not values:
                continue
            shares = target(values, self._tau)
            rows += taught(prompts[turn], shares, self._encode, None if every else self._draw)
        return rows

    def guide(self, share: Callable[[], float]) -> Guide:
        """Pick the replies of some episodes, which then cost no sampling.

        Such an episode mixes the critic's best moves with random ones, in a proportion that is
        drawn for it: positions that a policy which still plays badly would not reach. Nothing is
        learned from what is picked; as everywhere, all legal moves of each position are.

        Args:
            share: of the episodes that begin now.
        """
        begun = itertools.count()

        def of(task: EpisodeTask) -> Pick | None:
            rng = random.Random(f"{task} {next(begun)}")
            if rng.random() >= share():
                return None
            random_moves, seat = rng.random(), agent_seat(task.seed)

            def pick(shown: Sequence[Message]) -> str | None:
                values = self._critic.values(shown, seat)
                if not values:
                    return None
                best = max(values, key=lambda reply: values[reply])
                return rng.choice(list(values)) if rng.random() < random_moves else best

            return pick

        return of

    def _values_at(self, trajectory: Trajectory, turn: int) -> Mapping[str, float]:
        """The values of a turn's legal replies, none where no position was shown."""
        seat = agent_seat(trajectory.task.seed)
        # after an invalid reply the position is still the one shown before
        shown = (each.messages for each in reversed(trajectory.turns[: turn + 1]))
        return next(filter(None, (self._critic.values(each, seat) for each in shown)), {})


def target(values: Mapping[str, float], tau: float) -> dict[str, float]:
    """softmax(values / tau) by reply, without those of less than `LEAST_SHARE`; adds up to one."""
    shares = softmax(list(values.values()), tau)
    kept = {reply: s for reply, s in zip(values, shares, strict=True) if s >= LEAST_SHARE}
    total = sum(kept.values())
    return {reply: share / total for reply, share in kept.items()}


def prompts_by_turn(trajectory: Trajectory) -> list[tuple[int, ...]]:
    """The ids that each turn's reply was sampled after."""
    prompts: dict[int, tuple[int, ...]] = {}
    for row in trajectory.rows:
        for at, turn in enumerate(row.turn_ids):
            if turn != ENVIRONMENT_TURN and turn not in prompts:
                prompts[turn] = row.prompt_ids + row.completion_ids[:at]
    return [prompts[turn] for turn in range(len(trajectory.turns))]


def taught(
    prompt: tuple[int, ...],
    shares: Mapping[str, float],
    encode: Encode,
    draw: random.Random | None = None,
) -> list[RolloutRow]:
    """Rows of a decision, whose weights are the shares of its replies.

    Args:
        draw: for one reply drawn by its share, with all the weight: on average the same gradient,
            where each reply costs its whole prompt again.
    """
    entropies = {reply: -share * math.log(share) for reply, share in shares.items()}
    if draw is None:
        return [_row(prompt, encode(reply), shares[reply], entropies[reply]) for reply in shares]
    [reply] = draw.choices([*shares], [*shares.values()])
    return [_row(prompt, encode(reply), 1.0, sum(entropies.values()))]


def _row(
    prompt: tuple[int, ...], reply: tuple[int, ...], weight: float, entropy: float
) -> RolloutRow:
    """A row that teaches a reply which was not sampled."""
    length = len(reply)
    return RolloutRow(
        prompt_ids=prompt,
        completion_ids=reply,
        logprobs=(math.nan,) * length,
        loss_mask=(1,) * length,
        turn_ids=(ENVIRONMENT_TURN,) * length,
        weight=weight,
        entropy=entropy,
    )
