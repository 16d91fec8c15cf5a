"""Mounted rows beside games: those of the games that a run learns."""

import json
from pathlib import Path

import pytest

from miner.distributed.ranks import Ranks
from miner.duel.channel.environment import DuelSource
from miner.training import demonstrations
from miner.training.demonstrations import warm_start
from tests.training.test_demonstrations import RENDERER, settings_with


def test_all_rows_of_the_games_that_are_learned_are_taught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Games judge what is learned beside them: no conversation is held out."""
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    for number in range(10):
        asked = [{**chat[0], "content": f"{number}?"}, chat[1]]
        lines = [{"env": game, "messages": asked} for game in ("leduc_poker", "othello")]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(demonstrations, "WarmStart", lambda *given: given)
    source = object.__new__(DuelSource)
    source.family = "qwen25"
    wanted = settings_with(
        f'demonstrations.datasets=["{tmp_path}"]', "rollout.max_episode_tokens=4096"
    )
    _, _, _, _, data, _ = warm_start(wanted, Ranks(), RENDERER, source)  # type: ignore[misc]
    found = data.conversations
    assert (len(found.every), found.trained) == (10, list(range(10)))
    assert found.left_out == {"a game that is not learned": 10}
