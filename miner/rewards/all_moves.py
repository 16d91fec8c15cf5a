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

from miner.config.contract import agent_seat
from miner.environments.base import EpisodeTask, Message
from miner.rewards.critic import Critic, CriticCredit
from miner.rewards.goofspiel_critic import softmax
from miner.rollout.episode import Guide, Pick
from miner.rollout.trajectory import ENVIRONMENT_TURN, RolloutRow, Trajectory

LEAST_SHARE = 0.005
"""Legal replies with a smaller share of the target are left out: they cost more than they teach."""

Encode = Callable[[str], tuple[int, ...]]


class AllMoves(CriticCredit):
    """Makes the rows, and keeps the critic informed of what they teach.

    Args:
        encode: a reply's text to its token ids, with the token that ends it.
        tau: temperature of the target, in chances to win.
        draw: where one reply of a decision is taught.
    """

    def __init__(
        self, critic: Critic, encode: Encode, tau: float, draw: random.Random | None = None
    ) -> None:
        super().__init__(critic)
        self._encode = encode
        self._tau = tau
        self._draw = draw or random.Random(0)

    def rows(
        self, trajectory: Trajectory, turns: Collection[int], *, every: bool = True
    ) -> list[RolloutRow]:
        """Rows of the legal replies at `turns`; their weights add up to one for each decision.

        Args:
            every: false for one reply a decision, see `taught`.
        """
        rows: list[RolloutRow] = []
        prompts, seat = prompts_by_turn(trajectory), agent_seat(trajectory.task.seed)
        for turn in sorted(turns):
            shown, values = self._values_at(trajectory, turn, seat)
            reply, action = trajectory.turns[turn].reply, str(trajectory.turns[turn].action)
            played = reply if reply in values else action
            if played in values and trajectory.turns[turn].sampled_tokens:
                self._regrets.append(max(values.values()) - values[played])
            if not values:
                continue
            shares = target(values, self._tau)
            self._note(shown, seat, shares)
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
