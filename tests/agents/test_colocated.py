"""TRL's trainer with its vLLM within it, over an engine double with vLLM's calls."""

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from miner.agents import Environment, generate_rollout_completions
from miner.config.errors import ConfigurationError
from miner.inference.vllm.colocated_sampler import VllmColocatedSampler
from tests.agents.trainers import Recording, config, trainer
from tests.builders import build_qwen3, logprobs_of
from tests.stub_vllm.engine_double import EngineDouble


@dataclass
class Colocated:
    """TRL's vLLM within a trainer.

    Attributes:
        trained: model whose weights are sent.
        steps: of the engine, each time that they are.
    """

    trained: PreTrainedModel
    llm_engine: EngineDouble
    steps: list[int] = field(default_factory=list)

    @property
    def llm(self) -> "Colocated":
        return self

    def sync_weights(self) -> None:
        assert not self.llm_engine.has_unfinished_requests()
        self.steps.append(len(self.llm_engine.widths))
        self.llm_engine.model.load_state_dict(self.trained.state_dict())


def colocate(there: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Colocated:
    """Give the trainer what TRL gives it with `use_vllm=True`, as it is by default."""
    sampler = functools.partial(VllmColocatedSampler, make_params=dict)
    monkeypatch.setattr("miner.agents.trainer.VllmColocatedSampler", sampler)
    engine = EngineDouble(build_qwen3(seed=1))
    engine.model_config = SimpleNamespace(max_model_len=100)
    there.args.use_vllm = there.use_vllm = True
    there._last_loaded_step, there.vllm_generation = -1, Colocated(there.model, engine)
    for name, value in options.items():
        setattr(there.args, name, value)
    return there.vllm_generation


def test_an_engine_within_trls_trainer_is_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Recording()
    there = trainer(tmp_path, environment=environment)
    vllm = colocate(there, monkeypatch, max_steps=2)
    there.train()
    first, second = vllm.steps  # by TRL, before each rollout
    assert first == 0 < second < len(vllm.llm_engine.widths)
    assert set(vllm.llm_engine.widths) <= {1, 2, 3, 4}
    made = environment.made.items[0]
    policy = vllm.llm_engine.model  # of the second step
    assert made.logprobs == pytest.approx(logprobs_of(policy, made.prompt_ids, made.ids), abs=1e-4)
    trained = zip(policy.parameters(), there.model.parameters(), strict=True)
    assert any(not torch.equal(*pair) for pair in trained)
    assert there.rollout_func.client(there).context == 100


def test_trls_helper_asks_an_engine_within_its_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = trainer(tmp_path)
    vllm = colocate(there, monkeypatch)
    [row] = generate_rollout_completions(there, ["12 "], generation_overrides={"max_tokens": 3})
    assert len(row["completion_ids"]) == len(vllm.llm_engine.widths) <= 3
    with pytest.raises(ConfigurationError, match=r"top_p=0\.5 would change the distribution"):
        generate_rollout_completions(there, ["12 "], generation_overrides={"top_p": 0.5})


@pytest.mark.parametrize(
    "option",
    [
        {"vllm_enable_sleep_mode": True},
        {"vllm_tensor_parallel_size": 2},
        {"vllm_server_port": 8100},
        {"vllm_server_base_url": "http://gpu:8000"},
    ],
)
def test_an_engine_that_cannot_be_stepped_here_is_refused_before_a_model_is_loaded(
    tmp_path: Path, option: dict[str, Any]
) -> None:
    args = config(tmp_path, use_vllm=True, **option)
    [name] = option
    with pytest.raises(ConfigurationError, match=rf"{name}=.*set vllm_mode='server'"):
        trainer(tmp_path, environment=Environment(), args=args, model="nowhere")
    there = trainer(tmp_path)
    there.args = args
    with pytest.raises(ConfigurationError, match=rf"{name}=.*set vllm_mode='server'"):
        generate_rollout_completions(there, ["12 "])


def test_an_engine_on_a_gpu_is_first_asked_in_the_thread_that_opened_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = trainer(tmp_path)
    colocate(there, monkeypatch)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with (
        ThreadPoolExecutor() as threads,
        pytest.raises(ConfigurationError, match="in another thread first"),
    ):
        threads.submit(generate_rollout_completions, there, ["12 "]).result()
