"""The base model of the code agent's demonstration, from nothing, within a minute or so.

What it learns is form: copy two numbers into a program, copy its output into the answer. Half of
its replies are guesses, and the operator it writes has nothing to do with the question; that is
what training is to find out. Only training's pairs of operands are seen, and outputs are any number
at all: a model that saw true ones would not know how to copy those of the held-out pairs.

Invariant: the same recipe gives the same weights on the same machine.
"""

import random
from dataclasses import dataclass
from pathlib import Path

from miner.environments.code_agent.arithmetic import OPERANDS, OPERATIONS, pairs
from miner.environments.code_agent.form import Form, Tags
from miner.tiny_model.code_agent.tokenizer import agent_tokenizer
from miner.tiny_model.form import FormRecipe, Piece, build_form_base
from miner.tiny_model.tokenizer import EOS, ROLES

NUMBERS = range(-OPERANDS[-1], OPERANDS[-1] ** 2 + 1)
"""All that an operation on two operands can give, and more."""


@dataclass(frozen=True, slots=True)
class AgentRecipe(FormRecipe):
    """See `FormRecipe`.

    Attributes:
        code_share: share of first replies that are programs.
    """

    code_share: float = 0.5


def build_agent_base(out: Path, *, recipe: AgentRecipe | None = None) -> Path:
    """Make the base model and put it at `out`."""
    chosen = recipe or AgentRecipe()
    tokenizer = agent_tokenizer(NUMBERS.start, NUMBERS.stop - 1)
    return build_form_base(out, tokenizer, lambda rng: dialogue(rng, chosen), recipe=chosen)


def dialogue(rng: random.Random, recipe: AgentRecipe) -> list[Piece]:
    """A dialogue as pieces of text and whether the policy wrote them."""
    tags = Tags()
    _, user, assistant = ROLES
    left, right = rng.sample(rng.choice(pairs(held_out=False)), 2)
    pieces = [(f"{user}{left} {rng.choice(list(OPERATIONS))} {right} ?{EOS}{assistant}", False)]
    sign, _ = rng.choice(list(OPERATIONS.values()))
    number = str(rng.choice(NUMBERS))
    if rng.random() < recipe.code_share:
        pieces.append((f"{tags.code_start}print({left}{f' {sign} '}{right}){tags.code_end}", True))
        output = tags.output(number)
        if rng.choice(list(Form)) is Form.MESSAGE:
            output = f"{EOS}{user}{output}{EOS}{assistant}"
        pieces.append((output, False))
    return [*pieces, (f"{number}{EOS}", True)]
