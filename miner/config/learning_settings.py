"""Settings of what is learned: credit of own games, and demonstrations before them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from miner.config.contract import DATASETS_DIR_VARIABLE, DATASETS_VARIABLE
from miner.config.section import Section


class RewardSettings(Section):
    invalid_reply_penalty: float = Field(
        1.0,
        ge=0,
        description="Taken from the episode's reward for each reply without an action or cut off; "
        "with credit = all_moves, after its targets, what such a reply gives away.",
    )
    credit: Literal["episode", "turn", "all_moves", "own"] = Field(
        "episode",
        description="One advantage per episode, one per turn with its own baseline, for each "
        "decision a critic's values of all legal replies, or a function of yours (entry).",
    )
    entry: str = Field(
        "", description="credit = own: your function, as own_credit.py:credit or package.module:f."
    )
    tau: float = Field(
        0.01,
        gt=0,
        description="credit = all_moves, and demonstrations: temperature of the target, in chances "
        "to win; the critic plays endings out with it.",
    )
    targets: float = Field(
        1.0,
        ge=0,
        le=1,
        description="credit = all_moves: first share of the run that pulls the policy towards the "
        "target at each decision. After it, once it is within a nat of the target, what its next "
        "move gives away on average is lowered: better play in the same time, but no base learns "
        "the form of a reply so. 0: from the first step.",
    )
    named: bool = Field(
        False,
        description="credit = all_moves, and demonstrations: taught replies name the move, in the "
        "words of the list of legal actions, before its id or call: a pretrained model learns from "
        "fewer decisions so. Where a family's calls are read only at the beginning of a reply, its "
        "mark of a call comes between.",
    )
    most_turns: int | None = Field(
        None,
        ge=1,
        description="Turns of an episode that are trained at most, drawn at random, with one that "
        "forfeited; empty: all, or "
        "2 with credit = all_moves and a model that takes no trees. In "
        "duels each is a separate chat, and long games have thirty or more.",
    )

    @model_validator(mode="after")
    def _check_together(self) -> RewardSettings:
        if (self.credit == "own") != bool(self.entry):
            raise ValueError(
                f"reward.credit={self.credit!r} and reward.entry={self.entry!r}: set credit='own' "
                "together with a function, such as examples/own_credit.py:credit"
            )
        if self.credit == "all_moves" and self.targets < 1 and not self.invalid_reply_penalty:
            raise ValueError(
                f"reward.targets={self.targets:g} and reward.invalid_reply_penalty=0: replies that "
                "are no moves would cost nothing and come to be all: set a penalty, such as 0.3"
            )
        return self


class DemonstrationSettings(Section):
    share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="channel = duel: first share of the run, which learns from teachers' moves in "
        "place of its own games; 0: none. Today's rules permit self-generated data and requested "
        "data sets; the first format's permit neither.",
    )
    rows: int = Field(128, ge=1, description="Decisions of each such step, over all processes.")
    processes: int = Field(
        2,
        ge=0,
        le=16,
        description="channel = duel: processes in which teachers make the next steps, beside each "
        "of the trainer's; 0: a thread of it, for a debugger.",
    )
    teacher: str = Field(
        "",
        description="channel = duel: your function in the place of the teachers, for these and for "
        "reward.credit = all_moves, as own_duels.py:teach.",
    )
    datasets: tuple[Path, ...] = Field(
        (),
        description="channel = duel, share above 0: folders of conversations (jsonl, json or "
        "parquet with `messages`), half of each such step's replies; not set: those of "
        f"{DATASETS_VARIABLE} below {DATASETS_DIR_VARIABLE}; []: none.",
    )


class OptimizerSettings(Section):
    learning_rate: float = Field(4e-4, gt=0, le=1, description="Peak learning rate.")
    decay_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Last share of the run, in which the rate falls to zero; constant before.",
    )
    warmup_steps: int = Field(2, ge=0, description="Steps of linear warm-up.")
    adam_beta2: float = Field(
        0.999,
        gt=0,
        lt=1,
        description="Decay of Adam's second moment. In a run of few hundred steps a lower one "
        "forgets the large gradients of the first.",
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient clipping by global norm.")
    beta: float = Field(0.0, ge=0, description="Weight of the KL term against the base model.")
    micro_batch_tokens: int = Field(
        8192,
        ge=1,
        description="Tokens of a forward and backward pass at most, padding included; a single "
        "longer row is a separate pass.",
    )
    max_steps: int = Field(400, ge=1, description="Optimizer steps at most.")
    most_halvings: int = Field(
        0,
        ge=0,
        description="Times at most that training goes back to the best weights so far, at half the "
        "learning rate, because held-out games fell below theirs by more than twice the interval, "
        "unless those weights were farther from the targets (reward.credit=all_moves).",
    )
    zero_stage: Literal[0, 2, 3] = Field(
        0,
        description="DeepSpeed's ZeRO: 2 spreads gradients and optimizer over the processes, 3 "
        "weights as well; 0: without DeepSpeed.",
    )
