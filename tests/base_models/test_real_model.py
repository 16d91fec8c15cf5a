"""A pretrained language model of other people's plays a game, token for token."""

import pytest
import torch

from miner.environments.base import EpisodeTask
from miner.environments.builtin import BuiltinSource
from miner.inference.sampler import SamplingParams
from miner.inference.transformers.sampler import TransformersSampler
from miner.publishing.publisher import Publisher
from miner.publishing.verify import verify_model
from miner.real_model import dtype_here, make_real_model
from miner.rollout.episode import EpisodeParams, play_episode
from miner.rollout.model_folder import load_model_folder

pytestmark = pytest.mark.long


async def test_smollm2_is_published_and_plays_a_whole_game(tmp_path):
    folder = make_real_model(tmp_path / "base")
    Publisher(tmp_path / "out", in_process=True).publish_base(folder)
    assert verify_model(tmp_path / "out", load=False).parameters == 134_515_008

    loaded = load_model_folder(folder, getattr(torch, dtype_here()))
    chat = loaded.chat
    assert chat.changes == ()
    params = EpisodeParams(SamplingParams(max_tokens=16, temperature=0.0), max_tokens=4096)
    with TransformersSampler(loaded.model, chat.tokenizer) as sampler:
        game = await play_episode(
            BuiltinSource().open(),
            EpisodeTask("goofspiel", 0, 2),
            sampler,
            chat.renderer,
            params,
        )
    assert game.score in (0.0, 0.5, 1.0)
    assert len(game.turns) >= 7  # of eight cards the last plays itself
    valid = sum(turn.valid for turn in game.turns)
    assert valid >= len(game.turns) / 2  # asked greedily it answers with numbers
    trained = [sum(row.loss_mask) for row in game.rows]
    assert sum(trained) == sum(turn.sampled_tokens for turn in game.turns)
    for turn in game.turns:
        assert turn.finish_reason == "stop" or turn.sampled_tokens == 16
