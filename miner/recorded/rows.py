"""Rows of recorded conversations: loss on the assistant's text, on each reply once.

Invariant: no reply is taught that is longer than the tournament lets a turn be.
"""

import logging
import math
from dataclasses import replace
from itertools import groupby
from random import Random

from miner.config.contract import DUEL_REPLY_TOKENS, SWE_REPLY_TOKENS
from miner.environments.base import EpisodeTask, Transition
from miner.inference.sampler import Sample
from miner.recorded.conversations import Conversations
from miner.rollout.renderer import ChatRenderer
from miner.rollout.trajectory import ENVIRONMENT_TURN, RolloutRow, TrajectoryBuilder

logger = logging.getLogger(__name__)

MOST_TRIED = 200
"""Conversations of a step that give no row, each some 10 ms at first: games are learned meanwhile.
Those that are known count as well, so that a resumed run draws the same."""

_TASK = EpisodeTask("recorded", 0, 0)


class RecordedRows:
    """Makes the rows of conversations.

    Args:
        family: of the model's calls, one of `calls.FORMS`.
        most_tokens: longest row, unless a conversation's own limit is less. What comes from the
            first reply on that ends beyond it, or is longer than a turn's may be, is left out; a
            software task's conversation is left out whole then, as its last reply submits.
    """

    def __init__(
        self,
        conversations: Conversations,
        renderer: ChatRenderer,
        family: str,
        most_tokens: int,
    ) -> None:
        self.conversations = conversations
        self._renderer = renderer
        self._family = family
        self._most_tokens = most_tokens
        self._counted: set[int] = set()
        self._without: set[int] = set()  # conversations that give no row

    def of(self, number: int) -> list[RolloutRow]:
        """A conversation's: one, or more where its chat template rewrites the past.

        Returns: none of a conversation that cannot be rendered or whose first reply is too long.
        """
        if number in self._without:
            return []
        rows: list[RolloutRow] = []
        try:
            rows = self._rows(number)
        except Exception as error:  # a template is a program: it may raise anything
            logger.warning("conversation %d is left out: %s", number, str(error)[:200])
        if not rows:
            self._without.add(number)
        return rows

    def some(self, replies: int, tokens: float, seed: str) -> list[RolloutRow]:
        """Rows of conversations drawn by `seed`, with at least so many replies; fewer where there
        are no more, or too many were tried that give none, which are not tried again.

        Args:
            tokens: of a usual reply: together the rows weigh as many of those as were asked for.
        """
        rows: list[RolloutRow] = []
        found, without, trained = 0, 0, self.conversations.trained
        for number in Random(seed).sample(trained, len(trained)):
            if found >= replies or without >= MOST_TRIED:
                break
            made = self.of(number)
            rows += made
            without += not made
            found += sum(taught for row in made for taught, _ in groupby(row.loss_mask))
        learned = sum(sum(row.loss_mask) for row in rows)
        return [
            replace(row, weight=min(1.0, replies * tokens / learned), entropy=None) for row in rows
        ]

    def batch(self, first: int, count: int, seed: int) -> list[int]:
        """Numbers of conversations to train: `count` from place `first` on, in an order that is
        drawn again each time all of them have been learned."""
        numbers: list[int] = []
        trained = self.conversations.trained
        while len(numbers) < count:
            epoch, place = divmod(first + len(numbers), len(trained))
            order = Random(f"{seed}/recorded/{epoch}").sample(trained, len(trained))
            numbers += order[place:][: count - len(numbers)]
        return numbers

    def _rows(self, number: int) -> list[RolloutRow]:
        """Raises: `ValueError` for what cannot be written, anything for what cannot be rendered."""
        conversation, renderer = self.conversations.every[number], self._renderer
        longest = SWE_REPLY_TOKENS if conversation.software else DUEL_REPLY_TOKENS
        most_tokens = min(self._most_tokens, conversation.longest)
        messages, replies = conversation.written(self._family), conversation.replies
        builder = TrajectoryBuilder(renderer, _TASK, messages[: replies[0]], conversation.tools)
        learned = 0
        for at, following in zip(replies, [*replies[1:], len(messages)], strict=True):
            reply = messages[at]["content"]
            ids = renderer.encode_reply(reply)
            if len(ids) > longest:
                self._count(number, f"a reply above {longest:,} tokens")
            if len(ids) > longest or len(builder.prompt_ids) + len(ids) > most_tokens:
                if conversation.software:
                    return []
                break
            builder.add_reply(Sample(ids, (math.nan,) * len(ids), "stop"))
            shown = messages[at + 1 : following]
            builder.add_transition(Transition(shown, 0.0, done=not shown, recorded=reply))
            learned += 1
        rows = builder.build(0.0).rows if learned else ()
        return [_weighted(row) for row in rows if any(row.loss_mask)]

    def _count(self, number: int, reason: str) -> None:
        """Count a conversation once; their number is logged each time it has doubled."""
        if number in self._counted:
            return
        self._counted.add(number)
        left_out = self.conversations.left_out
        left_out[reason] += 1
        if left_out[reason].bit_count() == 1:
            logger.warning(
                "mounted data: this process leaves out %d conversations, whole or in part, for %s",
                left_out[reason],
                reason,
            )


def _weighted(row: RolloutRow) -> RolloutRow:
    """The row without what comes after its last reply, taught and not sampled."""
    end = max(at for at, learned in enumerate(row.loss_mask) if learned) + 1
    return replace(
        row,
        completion_ids=row.completion_ids[:end],
        logprobs=row.logprobs[:end],
        loss_mask=row.loss_mask[:end],
        turn_ids=(ENVIRONMENT_TURN,) * end,
        weight=1.0,
    )
