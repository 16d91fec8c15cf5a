"""Adapters: how they resume, what is saved of them, when they may take over."""

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import TrainerCallback

from miner.config.errors import ConfigurationError
from miner.config.heartbeat import HeartbeatWriter
from miner.config.run_files import BEST_FILE, newest_checkpoint
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.inference.merged_weights import weights_on_cpu
from miner.learning.checkpoints import Checkpoints, RunDisk
from miner.learning.learner import Learner
from miner.learning.schedule import Schedule
from miner.learning.trainer import EpisodeTrainer, grpo_config
from miner.training.run_dir import prepare_run_dir
from tests.builders import build_qwen3, save_base
from tests.learning.test_trainer import fixed_rollout

RATE = 1e-3


class Watch(TrainerCallback):
    """The weights before the first step, and the learning rate of each."""

    def __init__(self):
        self.first = None
        self.rates = {}

    def on_step_begin(self, args, state, control, model, optimizer, **kwargs):
        self.first = self.first or weights_on_cpu(model)
        self.rates[state.global_step + 1] = optimizer.param_groups[0]["lr"]


@pytest.fixture
def base(tmp_path):
    model = build_qwen3(tie_word_embeddings=False).to(torch.bfloat16)
    return save_base(tmp_path / "base", model)


def settings(tmp_path, *overrides):
    wanted = [
        f"run_dir={tmp_path / 'run'}",
        f"model.path={tmp_path / 'base'}",
        "rollout.groups_per_step=2",
        "rollout.group_size=2",
        f"optimizer.learning_rate={RATE}",
        "optimizer.max_steps=8",
        "checkpoint.every_steps=1",
    ]
    return Settings.load(None, [*wanted, *overrides], environ={})


def train(wanted, until):
    """An attempt from what the run folder holds, killed after this step."""
    prepare_run_dir(wanted)
    checkpoint = newest_checkpoint(wanted.run_dir / "checkpoints")
    learner = Learner(wanted, wanted.model.path)
    args = grpo_config(wanted)
    args.max_steps = until
    trainer = EpisodeTrainer(
        model=learner.model,
        args=args,
        processing_class=learner.tokenizer,
        train_dataset=Dataset.from_dict({"prompt": list("ab" * 16)}),
        reward_funcs=[lambda episode_reward, **_: episode_reward],
        tokens_per_pass=wanted.optimizer.micro_batch_tokens,
    )
    trainer.learn_from(fixed_rollout([1.0, 0.0, 0.5, 0.25]), lambda step: 1 - step / 8)
    watch = Watch()
    trainer.add_callback(watch)
    heartbeat = HeartbeatWriter(wanted.run_dir)
    disk = RunDisk(wanted.run_dir, print)
    trainer.add_callback(Checkpoints(Schedule(8), Ranks(), heartbeat, disk, size=0))
    trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    return learner, trainer, watch


LORA = ("model.tuning=lora", f"optimizer.learning_rate={10 * RATE}")


def test_adapters_resume_where_they_were(tmp_path, base):
    before, _, _ = train(settings(tmp_path, *LORA), until=3)
    ended = weights_on_cpu(before.model)

    _, trainer, watch = train(settings(tmp_path, *LORA), until=4)
    for name, weight in ended.items():
        torch.testing.assert_close(watch.first[name], weight, atol=1e-6, rtol=1e-5)
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {4}
    assert watch.rates == pytest.approx({4: 10 * RATE * 5 / 8})


def test_adapters_take_over_only_where_full_fine_tuning_has_saved_nothing(tmp_path, base):
    prepare_run_dir(settings(tmp_path))
    (tmp_path / "run" / BEST_FILE).write_text("{}")  # the run has scored its base
    with pytest.raises(ConfigurationError, match=r"\(optimizer\.learning_rate\)"):
        prepare_run_dir(settings(tmp_path, "optimizer.learning_rate=0.5"))
    with pytest.raises(ConfigurationError, match=r"other settings \(seed\)"):
        prepare_run_dir(settings(tmp_path, *LORA, "seed=5"))
    prepare_run_dir(settings(tmp_path, *LORA))
    with pytest.raises(ConfigurationError, match=r"other settings \(model\.tuning"):
        prepare_run_dir(settings(tmp_path))

    begun = settings(tmp_path / "other", f"model.path={base}")
    train(begun, until=1)
    with pytest.raises(ConfigurationError, match=r"other settings \(model\.tuning"):
        prepare_run_dir(settings(tmp_path / "other", f"model.path={base}", *LORA))


def published(learner, folder):
    folder.mkdir()
    learner.save(folder, weights_on_cpu(learner.model))
    return load_file(folder / "model.safetensors")


def test_what_is_published_is_merged_into_the_base(tmp_path, base):
    learner, _, _ = train(settings(tmp_path, *LORA), until=2)
    merged = published(learner, tmp_path / "out")
    own = load_file(base / "model.safetensors")
    assert any(not torch.equal(merged[name], weight) for name, weight in own.items())
    for name, weight in weights_on_cpu(learner.model).items():
        assert torch.equal(merged[name], weight.to(torch.bfloat16)), name
    for companion in ("config.json", "tokenizer.json"):
        assert (tmp_path / "out" / companion).read_bytes() == (base / companion).read_bytes()


def test_adapters_have_their_rank_and_scale(tmp_path, base):
    wanted = settings(tmp_path, *LORA, "model.lora_rank=4")
    config = Learner(wanted, base).model.peft_config["default"]
    assert (config.r, config.lora_alpha) == (4, 8)
