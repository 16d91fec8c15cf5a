"""The tiny base model as a folder that `from_pretrained` loads; made once per recipe.

Invariants: a folder at the returned path is whole (written beside, then renamed) and belongs to
exactly one recipe, seed and package versions, which its name is a hash of.
"""

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from miner.config.out_folder import check_new, made_once
from miner.environments.games.prompts import PromptFormat
from miner.tiny_model.network import NetworkRecipe, build_network
from miner.tiny_model.number_following import SYSTEM_TEXTS, DataRecipe, draw_conversation
from miner.tiny_model.tokenizer import build_tokenizer
from miner.tiny_model.warm_start import ProgressCallback, WarmStartRecipe, warm_start

RECIPE_FILE = "tiny_model_recipe.json"
_VOCABULARY_SEED = 1
_VOCABULARY_CONVERSATIONS = 400


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides the weights, but the seed.

    Attributes:
        prose: texts that the tokenizer shall be compact on. They are not trained on.
    """

    data: DataRecipe = field(default_factory=DataRecipe)
    network: NetworkRecipe = field(default_factory=NetworkRecipe)
    warm_start: WarmStartRecipe = field(default_factory=WarmStartRecipe)
    prose: tuple[str, ...] = field(
        default_factory=lambda: (*SYSTEM_TEXTS, PromptFormat.own("goofspiel").system_text)
    )


def base_recipe_for(deck_sizes: Collection[int]) -> Recipe:
    """The recipe whose conversations reach as far as these decks; longer ones take more steps."""
    if max(deck_sizes) <= 8:
        return Recipe()
    sizes = (8, *sorted(deck_sizes), max(deck_sizes))
    data = DataRecipe(sizes=sizes, anywhere=0.7)
    return Recipe(data=data, warm_start=WarmStartRecipe(mixture_steps=1600))


def build_tiny_model(
    out: Path,
    *,
    recipe: Recipe | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Path:
    """Make the base model and put it at `out`, which must not exist or be an earlier one.

    The result is bounded and decided by the recipe's steps, not by time.
    """
    _check_replaceable(out)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside:
        made = Path(beside) / out.name
        _make(made, recipe or Recipe(), seed, progress)
        if out.exists():
            shutil.rmtree(out)
        os.replace(made, out)
    return out


def cached_tiny_model(
    cache_dir: Path,
    *,
    recipe: Recipe | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Path:
    """The folder of this recipe and seed under `cache_dir`; built if it is not there yet."""
    recipe = recipe or Recipe()
    return made_once(
        cache_dir / content_key(recipe, seed),
        lambda out: _make(out, recipe, seed, progress),
    )


def _make(folder: Path, recipe: Recipe, seed: int, progress: ProgressCallback | None) -> None:
    tokenizer = recipe_tokenizer(recipe)
    model = build_network(tokenizer, recipe.network, seed)
    warm_start(model, tokenizer, recipe.data, recipe.warm_start, seed, progress)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / RECIPE_FILE).write_text(json.dumps(_identity(recipe, seed), indent=2) + "\n")


def is_made(out: Path, *, recipe: Recipe, seed: int = 0) -> bool:
    """Return whether `out` holds the model of exactly this recipe, seed and code."""
    try:
        made = json.loads((out / RECIPE_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return False
    return bool(made == json.loads(json.dumps(_identity(recipe, seed))))


def content_key(recipe: Recipe, seed: int) -> str:
    """A short name for a recipe, a seed and the code's and libraries' versions."""
    text = json.dumps(_identity(recipe, seed), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def recipe_tokenizer(recipe: Recipe) -> PreTrainedTokenizerFast:
    """The tokenizer of a recipe: whole tokens for what its conversations consist of."""
    rng = random.Random(_VOCABULARY_SEED)
    conversations = [draw_conversation(rng, recipe.data) for _ in range(_VOCABULARY_CONVERSATIONS)]
    texts = [turn.text for conversation in conversations for turn in conversation.turns]
    return build_tokenizer(texts, recipe.prose)


def _identity(recipe: Recipe, seed: int) -> dict[str, object]:
    source = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source.update(path.read_bytes())
    return {
        "recipe": asdict(recipe),
        "seed": seed,
        "source": source.hexdigest(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _check_replaceable(out: Path) -> None:
    if not (out / RECIPE_FILE).is_file():  # an earlier one that was made here is replaced
        check_new(out)
