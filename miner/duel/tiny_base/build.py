"""The base model of the duels' demonstration, from nothing, within a minute or so.

What it learns is form: every reply is one well-formed call of `game_action`. Its ids are legal
ones, all equally likely, but more often the value of the prize, as if ids were values: one that is
spent, or that no card has. So it forfeits most games: that is what training is to find out.

Invariant: the same recipe and sentences give the same weights on the same machine.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

from miner.config.contract import DUEL_CARDS
from miner.duel.channel.tasks import Size, size_of
from miner.duel.memory import Notes, WordCounter
from miner.duel.outcome import POINTS
from miner.duel.table import Table
from miner.duel.teachers import teacher_of
from miner.duel.tiny_base.tokenizer import CALL, duel_tokenizer
from miner.duel.tournament_files import wording_of
from miner.duel.turn import Request, next_request
from miner.duel.values import note_text
from miner.duel.wording import Wording
from miner.games import GAMES, GOOFSPIEL
from miner.games.goofspiel import prize_value
from miner.rollout.renderer import ChatRenderer
from miner.tiny_model.form import descend
from miner.tiny_model.network import NetworkRecipe, build_network
from miner.tiny_model.tokenizer import EOS

SEED = 0

FAMILY = "qwen25"
"""Of its calls."""


@dataclass(frozen=True, slots=True)
class DuelRecipe:
    """All that decides the weights.

    Attributes:
        names: games that it has seen.
        sizes: Goofspiel's cards and Clobber's boards.
        misread: share of Goofspiel's replies whose id is the prize's value; the others, and all of
            other games, are drawn from the legal ids.
        network: its size, and what it knows of its tokens from the start.
        games: games of random moves whose turns are learned from.
        steps: optimizer steps of `batch` turns each.
    """

    names: tuple[str, ...] = (GOOFSPIEL.name,)
    sizes: tuple[Size, ...] = (5,)
    misread: float = 0.6
    network: NetworkRecipe = field(default_factory=NetworkRecipe)
    games: int = 240
    steps: int = 250
    batch: int = 32
    learning_rate: float = 3e-3


FOUR_GAMES = DuelRecipe(
    names=("goofspiel", "leduc_poker", "liars_dice", "clobber"),
    sizes=(5, 8, "4x5"),
    network=NetworkRecipe(number_names=0.6, spelling_features=0.25),
    games=600,
    steps=200,
)
"""The base of the demo of today's format."""


def content_key(recipe: DuelRecipe) -> str:
    """A short name for a recipe, and for the sentences, code and libraries that make its model."""
    text = repr((recipe, wording_of(None), SEED, torch.__version__, transformers.__version__))
    digest = hashlib.sha256(text.encode())
    package = Path(__file__).parents[2]
    for folder in ("duel", "games", "rollout", "tiny_model"):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def build_duel_base(
    out: Path,
    *,
    recipe: DuelRecipe | None = None,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> Path:
    """Make the base model and put it at `out`."""
    recipe = recipe or DuelRecipe()
    rng, wording = random.Random(SEED), wording_of(None)
    names = [recipe.names[number % len(recipe.names)] for number in range(recipe.games)]
    turns = [turn for name in names for turn in _game(rng, name, recipe.sizes, wording)]
    requests = [*turns, *_reflections(turns, wording)]
    texts = [text for request in requests for text in (request.system, request.user)]
    texts += [text for name in recipe.names for text in _notes(name)]
    tokenizer = duel_tokenizer(dict.fromkeys(texts), recipe.sizes, _ids(turns, recipe))
    model = build_network(tokenizer, recipe.network, SEED)
    _learn(model, tokenizer, turns, recipe, rng, progress)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def _game(rng: random.Random, name: str, sizes: Sequence[Size], wording: Wording) -> list[Request]:
    """The turns of a game of random moves."""
    seeds = iter(lambda: rng.randint(1, 10**6), None)
    seed = next(s for s in seeds if size_of(name, s) in (None, *sizes))
    table, notes, turns = Table(GAMES[name], seed), [Notes(WordCounter())] * 2, []
    while request := next_request(table, notes, wording):
        assert request.user  # put into words before the table changes
        turns.append(request)
        table.apply(rng.choice(request.legal))
    return turns


def _reflections(turns: Sequence[Request], wording: Wording) -> Iterator[Request]:
    """After each game, with each result."""
    tables = {id(turn.table): turn.table for turn in turns}
    for table, seat, result in product(tables.values(), (0, 1), POINTS):
        yield Request(table, seat, Notes(WordCounter()), wording, result=result)


def _notes(name: str) -> Iterator[str]:
    """A game's notes as prompts show them, and as replies write them."""
    for note in teacher_of(name).notes:
        yield f"  [1] {note}"
        yield note_text(FAMILY, note)


def _learn(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[Request],
    recipe: DuelRecipe,
    rng: random.Random,
    progress: Callable[[int, float], None],
) -> None:
    """Cross entropy on the replies' tokens; at the id's place to its whole distribution."""
    # All replies are of one length, so that rows end where their replies do.
    renderer = ChatRenderer(tokenizer)
    before, after = renderer.encode(CALL[0]), renderer.encode(CALL[1] + EOS)
    numbers = [renderer.encode(str(number))[0] for number in range(_ids(turns, recipe))]
    prompts = [renderer.encode(renderer.render(turn.messages)) for turn in turns]

    def loss() -> Tensor:
        rows, wanted = [], []
        for prompt, turn in rng.sample(list(zip(prompts, turns, strict=True)), recipe.batch):
            odds = _odds(turn, len(numbers), recipe.misread)
            wanted.append(odds)
            rows.append([*prompt, *before, *rng.choices(numbers, odds), *after])
        longest = max(map(len, rows))
        padded = [[tokenizer.pad_token_id] * (longest - len(row)) + row for row in rows]
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        ids = torch.tensor(padded)
        reply = len(before) + 1 + len(after)
        logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=reply + 1).logits
        logprobs = logits[:, :-1].log_softmax(-1)
        said = logprobs.gather(-1, ids[:, -reply:, None])[..., 0]
        form = torch.cat([said[:, : len(before)], said[:, len(before) + 1 :]], dim=1)
        choice = (logprobs[:, len(before), numbers] * torch.tensor(wanted)).sum(-1)
        return -form.mean() - choice.mean()

    descend(model, loss, steps=recipe.steps, learning_rate=recipe.learning_rate, progress=progress)


def _ids(turns: Sequence[Request], recipe: DuelRecipe) -> int:
    """Ids that replies can have: legal ones, and values of prizes."""
    return 1 + max(*DUEL_CARDS, *(max(turn.legal) for turn in turns))


def _odds(turn: Request, ids: int, misread: float) -> list[float]:
    """Probability of each id: equal shares for the legal ones, and that of the prize's value."""
    prize = prize_value(turn.user) if turn.table.game is GOOFSPIEL else None
    legal = (1 - misread if prize is not None else 1.0) / len(turn.legal)
    return [misread * (i == prize) + legal * (i in turn.legal) for i in range(ids)]
