"""A duel over HTTP against `vllm serve`, as the tournament serves: float16, greedy, a tool parser.

What our transformers engine decides with the same weights is the same, game by game.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from miner.background_loop import BackgroundLoop
from miner.distributed.launch import free_port
from miner.duel.match import Limits, MatchResult, play_match
from miner.duel.outcome import Cause
from miner.duel.play import Rules
from miner.duel.players import model as model_player
from miner.duel.players.base import Player
from miner.duel.players.endpoint import EndpointPlayer
from miner.duel.players.model import load_model_player
from miner.duel.players.rules import RulePlayer, random_move
from miner.duel.tiny_base.build import DuelRecipe, build_duel_base
from miner.duel.wording import own_wording
from miner.games import GAMES
from tests.real_vllm.here import MEMORY_SHARE, serving
from tests.real_vllm.here import needs_real_vllm as needs

needs()
pytestmark = pytest.mark.long

SERVED = {"full": "full weights", "adapter": "an adapter"}
PAIRS = 4


def make_models(folder: Path) -> None:
    """Full weights, an adapter to them that changes moves, and both as one."""
    # It takes the prize's value for an id nearly always: no two ids are nearly as likely.
    recipe = DuelRecipe(misread=0.9, games=40, steps=120, batch=16)
    base = build_duel_base(folder / "full", recipe=recipe)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(1)
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"]
    adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=8, target_modules=layers))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    adapted.save_pretrained(folder / "adapter")
    whole = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder / "adapter"
    ).merge_and_unload()
    whole.save_pretrained(folder / "adapter-merged")
    for file in base.glob("*token*"):
        (folder / "adapter-merged" / file.name).write_bytes(file.read_bytes())
    template = base / "chat_template.jinja"
    (folder / "adapter-merged" / template.name).write_bytes(template.read_bytes())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served-duel")
    make_models(folder)
    return folder


@pytest.fixture(scope="module")
def url(models: Path) -> Iterator[str]:
    """Of the base and its adapter behind one server."""
    port = free_port()
    words = [
        *("serve", str(models / "full"), "--served-model-name", "full"),
        *("--dtype", "float16", "--max-model-len", "2048", "--port", str(port)),
        *("--gpu-memory-utilization", str(MEMORY_SHARE), "--max-num-seqs", "16"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--enable-lora", "--lora-modules", f"adapter={models / 'adapter'}"),
        *("--generation-config", "vllm"),
    ]
    with serving(words, port, models / "log") as url:
        yield url


def match(player: Player) -> MatchResult:
    """A few pairs of Goofspiel against random bids, with the cards that the base has seen."""
    rules = Rules(6, own_wording(), sizes=DuelRecipe().sizes, keep_plies=True, turn_limit_s=600)

    async def play() -> MatchResult:
        try:
            other = RulePlayer("random", random_move(1))
            return await play_match(GAMES["goofspiel"], player, other, rules, Limits(pairs=PAIRS))
        finally:
            await player.close()

    with BackgroundLoop() as loop:
        return loop.run(play())


@pytest.mark.parametrize("name", SERVED, ids=SERVED.get)
def test_a_duel_over_http_is_the_duel_in_process(
    models: Path, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM hands tools to the template as the request has them; SGLang, which duels are held on,
    does not."""
    monkeypatch.setattr(model_player, "shaped", list)
    over_http = match(EndpointPlayer("model", f"{url}/v1", name, timeout_s=600))
    folder = models / ("full" if name == "full" else "adapter-merged")
    here = match(load_model_player(folder, "model"))
    assert over_http.failure is None
    assert len(here.games) == 2 * PAIRS
    for served_game, own_game in zip(over_http.games, here.games, strict=True):
        assert served_game.history == own_game.history
        assert served_game.forfeit == own_game.forfeit
        seat = own_game.first_seat
        assert served_game.usage[seat].prompt_tokens == own_game.usage[seat].prompt_tokens
    causes = {game.forfeit.cause for game in here.games if game.forfeit}
    assert causes <= {Cause.ILLEGAL}  # calls were made, and read
    assert sum(game.usage[game.first_seat].turns for game in here.games) > 2 * PAIRS
