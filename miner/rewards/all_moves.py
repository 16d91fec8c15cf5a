"""Credit for all legal moves: at each decision of the policy's own games, every legal reply is
learned from, by its value Q from a critic.

In the first part of a run the policy is pulled towards softmax(Q / tau). This is the M-step of
maximum a posteriori policy optimisation (Abdolmaleki et al. 2018, arXiv 1806.06920, equation 10,
without its trust region). The loss of a decision is the cross-entropy between the target and the
policy's probability of each whole reply; what is no legal reply loses mass to those that are.

After it, the policy gradient of what the next reply gives away on average,

    sum over legal a of pi(a | s) (max Q(s, .) - Q(s, a)) + penalty (1 - sum of these pi(a | s))

which has no noise of the sampled move (Allen et al. 2017, arXiv 1709.00503). A policy without legal
replies has no gradient there: it keeps the targets until it is near them.

Each legal reply is a row of its own behind the decision's prompt, which trees compute once; a model
that takes no trees learns one reply, drawn.
"""

import itertools
import math
import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean

from miner.config.settings import RewardSettings
from miner.environments.base import EpisodeTask, Message
from miner.rewards.critic import Critic
from miner.rewards.goofspiel_critic import softmax
from miner.rollout.episode import Guide, Pick
from miner.rollout.trajectory import ENVIRONMENT_TURN, RolloutRow, Trajectory

LEAST_SHARE = 0.005
"""Legal replies with a smaller share of the target are left out: they cost more than they teach."""

NEAR = 1.0
"""Nats from the targets below which a policy gives legal replies: eight equally likely ones are two
away from the best of them, and a form of reply that it does not know is several."""

MISTAKES = 0.2
"""Share of guided positions at which a move is picked that was legal before, where there is one: a
policy that plays greedily repeats such a move until the episode is lost, if it has never seen what
comes after the first. It is the one nearest the best, as a policy's own are: the card as high as
the prize, which is gone."""

AGAIN = 0.5
"""Share of these mistakes that are made a second time, as a greedy policy does which has not seen
what comes after one. A third would end the episode, and is never made."""

UNIT = 0.05
"""Chance to win that is an advantage of 1: about what a move at random gives away."""

_NUMBER = re.compile(r"\d+")

Encode = Callable[[str], tuple[int, ...]]


class AllMoves:
    """Makes the rows.

    Args:
        encode: a reply's text to its token ids, with the token that ends it.
        reward: its `tau` is the target's temperature, in chances to win.
        draw: where one reply of a decision is taught.

    Attributes:
        by_policy: true for a step whose rows have advantages that count as often as the policy
            gives their reply; false where they have shares of the target.
        regret: mean chance to win that the moves sampled in the latest step gave away, by the
            critic; NaN where there were none.
    """

    def __init__(
        self,
        critic: Critic,
        encode: Encode,
        reward: RewardSettings,
        draw: random.Random | None = None,
    ) -> None:
        self._critic = critic
        self._regrets: list[float] = []
        self.regret = math.nan
        self._encode = encode
        self._tau = reward.tau
        self._penalty = reward.invalid_reply_penalty
        self._targets = reward.targets
        self._draw = draw or random.Random(0)
        self.by_policy = False

    def begin(self, fraction: float, distance: float | None = None) -> None:
        """Begin a step when this share of the run is used up.

        Args:
            distance: of the policy from the targets when they were last learned, in nats.
        """
        near = distance is not None and distance < NEAR
        self.by_policy = fraction >= self._targets and (near or not self._targets)

    def rows(
        self, trajectory: Trajectory, turns: Collection[int], *, every: bool = True
    ) -> list[RolloutRow]:
        """Rows of the legal replies at `turns`; shares of the target add up to one for each
        decision.

        Args:
            every: false for one reply a decision, see `taught`.
        """
        rows: list[RolloutRow] = []
        prompts = prompts_by_turn(trajectory)
        for turn in sorted(turns):
            values = self._values_at(trajectory, turn)
            if not values:
                continue
            made = trajectory.turns[turn]
            by_action = {_id(reply): value for reply, value in values.items()}
            if made.action in by_action and made.sampled_tokens:
                self._regrets.append(max(values.values()) - by_action[made.action])
            draw = None if every else self._draw
            if self.by_policy:
                rows += weighed(prompts[turn], self._advantages(values), self._encode, draw)
            else:
                rows += taught(prompts[turn], target(values, self._tau), self._encode, draw)
        return rows

    def end(self, gather: Callable[[list[float]], list[list[float]]]) -> None:
        """End a step; collective.

        Args:
            gather: regrets of this rank's moves -> those of all ranks.
        """
        regrets = [regret for some in gather(self._regrets) for regret in some]
        self._regrets = []
        self.regret = fmean(regrets) if regrets else math.nan

    def _values_at(self, trajectory: Trajectory, turn: int) -> Mapping[str, float]:
        """Values of a turn's legal replies, none where no position was shown."""
        # after an invalid reply the position is still the one shown before
        for each in reversed(trajectory.turns[: turn + 1]):
            if (values := self._critic.values(each.messages, trajectory.task)) is not None:
                return values
        return {}

    def _advantages(self, values: Mapping[str, float]) -> dict[str, float]:
        """By reply, against one that is none and costs the penalty."""
        best = max(values.values())
        return {reply: (self._penalty + value - best) / UNIT for reply, value in values.items()}

    def guide(self, share: Callable[[], float]) -> Guide:
        """Pick the replies of some episodes, which then cost no sampling.

        Such an episode mixes the critic's best moves with random ones, in a proportion that is
        drawn for it: positions that a policy which still plays badly would not reach. Some moves
        are no longer legal, and are followed by the same once more, or by one that is. Nothing is
        learned from what is picked; as everywhere, all legal moves of each position are.

        Args:
            share: of the episodes that begin now.
        """
        begun = itertools.count()

        def of(task: EpisodeTask) -> Pick | None:
            rng = random.Random(f"{task} {next(begun)}")
            if rng.random() >= share():
                return None
            random_moves = rng.random()
            legal: Mapping[str, float] = {}
            known: dict[str, float] = {}
            mistakes = 0  # at this position

            def pick(shown: Sequence[Message]) -> str | None:
                nonlocal legal, mistakes
                values = self._critic.values(shown, task)
                mistakes = 0 if values else mistakes
                legal = values or legal  # after a mistake the position is the one shown before
                if not legal:
                    return None
                best = max(legal, key=lambda reply: legal[reply])
                known.update(legal)
                gone = _no_longer_read(known, legal)
                chance = MISTAKES if values else AGAIN * (mistakes == 1)
                if gone and rng.random() < chance:
                    mistakes += 1
                    return min(gone, key=lambda reply: abs(_id(reply) - _id(best)))
                return rng.choice(list(legal)) if rng.random() < random_moves else best

            return pick

        return of


def _id(reply: str) -> int:
    return int(_NUMBER.findall(reply)[-1])


def _no_longer_read(known: Iterable[str], legal: Iterable[str]) -> list[str]:
    """Replies of `known` that no parser reads as one of `legal`, whose ids are their last numbers:
    any number of a reply counts that is an id."""
    ids = {_id(reply) for reply in legal}
    return [reply for reply in known if ids.isdisjoint(map(int, _NUMBER.findall(reply)))]


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


def weighed(
    prompt: tuple[int, ...],
    advantages: Mapping[str, float],
    encode: Encode,
    draw: random.Random | None = None,
) -> list[RolloutRow]:
    """Rows of a decision, whose weights are advantages.

    Args:
        draw: for one reply, each as likely as the others.
    """
    if draw is None:
        return [_row(prompt, encode(reply), value) for reply, value in advantages.items()]
    reply = draw.choice([*advantages])
    return [_row(prompt, encode(reply), advantages[reply] * len(advantages))]


def _row(
    prompt: tuple[int, ...], reply: tuple[int, ...], weight: float, entropy: float = 0.0
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
