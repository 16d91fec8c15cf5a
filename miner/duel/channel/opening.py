"""Opens the channel for a model: its tokenizer counts notes, its family reads its calls."""

from collections.abc import Sequence
from pathlib import Path

from miner.duel.channel.environment import DuelSource
from miner.duel.channel.opponents import Opponents
from miner.duel.family import folder_family
from miner.duel.memory import TokenizerCounter
from miner.duel.tournament_files import wording_of
from miner.rollout.model_folder import load_chat

BASELINE_FAMILY = "qwen25"
"""Of the calls that baselines write."""


def open_duels(
    model: Path | None,
    games: Sequence[str],
    opponents: Sequence[str],
    *,
    published: Path | None = None,
    parser: str | None = None,
    prompts: Path | None = None,
    notes: float = 0.0,
) -> DuelSource:
    """Duels for the model in a folder.

    Args:
        model: None for a baseline, whose notes are counted in words.
        published: where a run publishes, for the opponent that is its newest model.
        parser: what reads calls; None: by the model's family.
        prompts: copy of the tournament's files; None: where one is looked for.
        notes: as in `DuelSource`.

    Raises: `ConfigurationError` for an opponent that there is not, or that cannot play all of
        `games`, and for a model of no family that has a parser.
    """
    rivals = Opponents(games, model, published)
    for opponent in opponents:
        rivals.check(opponent)
    if model is None:
        return DuelSource(rivals, wording_of(prompts), family=BASELINE_FAMILY, notes=notes)
    tokenizer = load_chat(model).tokenizer
    return DuelSource(
        rivals,
        wording_of(prompts),
        family=parser or folder_family(model, tokenizer),
        counter=TokenizerCounter(tokenizer),
        notes=notes,
    )
