"""Architectures of the pool, from its folder to a trained model that loads as it is served.

`python -m pytest tests/base_models/test_pool.py` gives the rows of docs/base_models.md.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers.core_model_loading import Chunk, WeightConverter
from trl.trainer.utils import add_fused_lm_head

from miner.config.settings import Settings
from miner.duel.calls import parse_calls, write_calls
from miner.duel.family import folder_family
from miner.duel.players.model import load_model_player
from miner.duel.tools import move_call, offered_tools, shaped
from miner.duel.turn import MAX_TOKENS
from miner.inference.merged_weights import weights_on_cpu
from miner.learning.forest import Row, grow, single
from miner.learning.learner import Learner, with_adapters, write_checkpoint_model
from miner.learning.tree_forward import let_take_trees, score
from miner.model_class import outside_text
from miner.publishing.publisher import PublishedScore, Publisher
from miner.publishing.structure import read_headers
from miner.publishing.verify import verify_model
from miner.rollout.model_folder import LoadedModel, load_model_folder
from tests.base_models.pool import MIXTURES, POOL, PoolBase, make_folder
from tests.duel.stand_ins import asked
from tests.learning.test_trainer import make_trainer

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Made:
    base: PoolBase
    folder: Path
    loaded: LoadedModel


@pytest.fixture(scope="module", params=POOL, ids=lambda base: f"{base.kind}-{base.bases[0]}")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("pool") / "0123456789abcdef"
    make_folder(request.param, folder)
    return Made(request.param, folder, load_model_folder(folder, torch.float32))


def row(made: Made) -> tuple[torch.Tensor, torch.Tensor]:
    """A turn's tokens with a written call, and labels of the call alone."""
    renderer, request = made.loaded.chat.renderer, asked()
    prompt = list(renderer.encode(renderer.render(request.messages, shaped(request.tools))))
    tokenizer = made.loaded.chat.tokenizer
    call = write_calls(made.base.family, [move_call(1)])
    ids = tokenizer(call, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    return torch.tensor([prompt + ids]), torch.tensor([[-100] * len(prompt) + ids])


def two_steps(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """Losses before each of two steps and after them."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(3):
        loss = model(input_ids=ids, labels=labels).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def test_its_parser_is_found_under_a_hash_for_a_name(made: Made) -> None:
    assert folder_family(made.folder, made.loaded.chat.tokenizer) == made.base.family


def test_a_turn_shows_rules_tools_and_state_and_a_call_survives_the_tokens(made: Made) -> None:
    request, chat = asked(), made.loaded.chat
    shown = chat.renderer.render(request.messages, shaped(request.tools))
    for part in ("leduc_poker", "working_memory_append", "game_action", "Legal actions:"):
        assert part in shown
    text = write_calls(made.base.family, [move_call(1)])
    ids = chat.tokenizer(text, add_special_tokens=False)["input_ids"]
    read = parse_calls(made.base.family, chat.tokenizer.decode(ids), offered_tools(request.tools))
    assert read == [move_call(1)]


def test_all_weights_learn_and_are_published_as_served(made: Made, tmp_path: Path) -> None:
    ids, labels = row(made)
    learner = Learner(Settings.load(None, [], environ={}), made.folder)
    outside = tuple(f"{name}." for name in outside_text(learner.model))
    assert not [name for name in learner.trained if name.startswith(outside)]
    losses = two_steps(learner.model, ids, labels)
    assert max(losses[1:]) < losses[0]

    def save(folder: Path) -> None:
        learner.save(folder, weights_on_cpu(learner.model))

    publisher = Publisher(tmp_path / "out", in_process=True, dtype="bfloat16")
    publisher.publish(save, PublishedScore(2))
    assert verify_model(tmp_path / "out", load=True, dtype="bfloat16").loaded
    assert read_headers(tmp_path / "out") == read_headers(made.folder)
    served = load_model_folder(tmp_path / "out", torch.float32)
    assert served.chat.changes == ()
    loss = served.model(input_ids=ids, labels=labels).loss.item()
    assert loss == pytest.approx(learner.model(input_ids=ids, labels=labels).loss.item(), rel=1e-3)


def test_a_checkpoint_brings_every_weight_back(made: Made, tmp_path: Path) -> None:
    learner = Learner(Settings.load(None, [], environ={}), made.folder)
    trainer = make_trainer(tmp_path, model=learner.model)
    checkpoint, written = tmp_path / "checkpoint-1", tmp_path / "written"
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(1.0)
    expected = weights_on_cpu(learner.model)
    trainer._save(str(checkpoint))
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.zero_()
    trainer._load_from_checkpoint(str(checkpoint))
    for name, weight in weights_on_cpu(learner.model).items():
        torch.testing.assert_close(weight, expected[name], msg=name)
    written.mkdir()
    write_checkpoint_model(made.folder, checkpoint, written)
    again = weights_on_cpu(load_model_folder(written, torch.float32).model)
    for name, weight in again.items():
        torch.testing.assert_close(weight, expected[name], atol=0, rtol=1e-2, msg=name)


def test_what_is_not_trained_is_published_as_it_came(made: Made, tmp_path: Path) -> None:
    """By names, shapes, dtypes and values, where the base has two dtypes."""
    base, out = tmp_path / "base", tmp_path / "out"
    shutil.copytree(made.folder, base)
    out.mkdir()
    tensors = load_file(base / "model.safetensors")
    expected = {n: t if t.dim() == 1 else t.bfloat16() for n, t in tensors.items()}
    save_file(expected, base / "model.safetensors", {"format": "pt"})
    learner = Learner(Settings.load(None, [], environ={}), base)
    learner.save(out, weights_on_cpu(learner.model))
    assert read_headers(out) == read_headers(base)
    found = load_file(out / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    "base", [*POOL, *MIXTURES], ids=lambda base: f"{base.kind}-{base.bases[0]}"
)
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_engines_are_sent_what_the_files_hold(base: PoolBase, tuning: str, tmp_path: Path) -> None:
    """vLLM leaves out names that it does not know, such as those of Nemotron's fused experts."""
    make_folder(base, tmp_path)
    wanted = [f"model.tuning={tuning}", "model.dtype=float32"]
    learner = Learner(Settings.load(None, wanted, environ={}), tmp_path)
    sent = weights_on_cpu(learner.model, stored=learner.as_stored)
    expected = load_file(tmp_path / "model.safetensors")
    assert sent.keys() == expected.keys()
    assert all(torch.equal(sent[name], tensor) for name, tensor in expected.items())


def test_a_part_of_what_is_one_tensor_in_the_files_is_sent_as_it_is(tmp_path: Path) -> None:
    make_folder(next(base for base in POOL if base.kind == "qwen3"), tmp_path)
    learner = Learner(Settings.load(None, [], environ={}), tmp_path)
    joined = WeightConverter("attn.qk", ["attn.q_proj", "attn.k_proj"], [Chunk(dim=0)])
    learner.model._weight_conversions = [joined]
    part = {"model.layers.0.self_attn.q_proj.weight": torch.zeros(32, 32)}
    assert learner.as_stored(part) is part


def test_adapters_attach_to_every_layer_learn_and_merge(made: Made) -> None:
    ids, labels = row(made)
    model = load_model_folder(made.folder, torch.float32).model
    settings = Settings.load(None, ["model.lora_rank=4", "model.tuning=lora"], environ={})
    adapted: PeftModel = with_adapters(model, settings)
    outside = tuple(outside_text(model))
    assert bool(outside) == (made.base.image is not None)
    assert not [name for name in _adapters(adapted) if any(part in name for part in outside)]
    attached = {name.split(".layers.")[1].split(".")[0] for name in _adapters(adapted)}
    assert attached == {str(n) for n in range(model.config.get_text_config().num_hidden_layers)}
    losses = two_steps(adapted, ids, labels)
    assert losses[2] < losses[0]
    before = adapted(input_ids=ids, labels=labels).loss.item()
    merged = adapted.merge_and_unload()
    assert merged(input_ids=ids, labels=labels).loss.item() == pytest.approx(before, rel=1e-3)


TREES = {"llama", "qwen2", "qwen3", "granite", "olmo3", "mistral3", "gemma4"} | {
    "gemma4_text",
    "ministral3",
}
"""Types whose layers all attend, to all before a token or to the nearest; of the others, rows are
computed apart."""


def test_trees_or_rows_have_the_loss_and_gradient_of_whole_rows(made: Made) -> None:
    model = load_model_folder(made.folder, torch.float32).model
    draw = np.random.default_rng(0)
    begin = draw.integers(20, 300, 12)
    ids = [np.array([*begin[:shared], *draw.integers(20, 300, 6)]) for shared in (12, 12, 7)]
    rows = {number: Row(row, np.array([9, len(row) - 1])) for number, row in enumerate(ids)}
    expected = []
    for row in rows.values():
        logits = model(input_ids=torch.from_numpy(row.ids)[None]).logits[0]
        odds = logits.float().log_softmax(-1)[row.targets - 1]
        expected.append(odds[[0, 1], row.ids[row.targets]])
    torch.cat(expected).sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    assert (let_take_trees(model) is None) == (made.base.kind in TREES)
    add_fused_lm_head(model, temperature=1.0, outputs=("log_probs", "entropy"))
    trees = grow(rows, 1000) if made.base.kind in TREES else single(rows)
    order = [row for tree in trees for row in tree.rows]
    targets = torch.from_numpy(np.concatenate([rows[n].ids[rows[n].targets] for n in order]))
    found = score(model, model, trees, targets).logprobs
    found.sum().backward()
    torch.testing.assert_close(found, torch.cat([expected[n] for n in order]), atol=1e-4, rtol=1e-4)
    for name, parameter in model.named_parameters():
        if name in gradients:
            torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-4, rtol=1e-3)
    computed, whole = (
        sum(tree.tokens for tree in trees),
        sum(len(row.path) for row in rows.values()),
    )
    assert (computed < whole) == (made.base.kind in TREES)


def _adapters(model: PeftModel) -> Iterator[str]:
    return (name for name, _ in model.named_parameters() if "lora_A" in name and ".layers." in name)


async def test_it_answers_in_a_duel(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAX_TOKENS, "turn", 16)  # random weights never end a reply
    player = load_model_player(made.folder, "made")
    try:
        reply = await player.reply(asked())
    finally:
        await player.close()
    assert reply.tokens
    assert reply.prompt_tokens
