"""Memory that runs out, and how it is told from a crash."""

import json
from typing import Any

import pytest
import torch

from miner.config.settings import Settings, to_toml
from miner.config.statuses import TrainerStatus
from miner.distributed.ranks import Ranks
from miner.inference.engines import is_out_of_memory
from miner.inference.vllm.colocated_engine import ColocatedEngine
from miner.inference.vllm.colocated_sampler import VllmColocatedSampler
from miner.training import engine_choice
from miner.training import run as training
from tests.training.generation import ColocatedDouble
from tests.training.in_process import Work

MAPPING = "CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:119"
"""What vLLM's allocator says where memory cannot be mapped again; a RuntimeError."""

AT_START = (
    "Free memory on device cuda:0 (5.1/79.2 GiB) on startup is less than desired GPU memory "
    "utilization (0.5, 39.6 GiB). Decrease GPU memory utilization or reduce GPU memory used by "
    "other processes."
)
"""What vLLM says of a share that is not free any more."""

IN_STEP = "CUDA out of memory. Tried to allocate 2.00 GiB"
"""torch's."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError(IN_STEP), True),
        (MemoryError(), True),
        (RuntimeError(MAPPING), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (ValueError(AT_START), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (OSError("out of memory"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_less_memory_would_help(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize("channel", ["builtin", "recorded"])
def test_what_to_lower_is_named(
    work: Work, monkeypatch: pytest.MonkeyPatch, train: Any, channel: str
) -> None:
    """Recorded conversations of another length would be another run."""

    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError(IN_STEP)

    monkeypatch.setattr(training, "train", refuse)
    data = work.folder / "data"
    data.mkdir()
    talk = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    lines = (
        json.dumps({"messages": [{"role": "system", "content": str(n)}, *talk]}) for n in range(8)
    )
    (data / "talks.jsonl").write_text("\n".join(lines))
    words = [f"environment.channel={channel}", "reward.credit=episode"]
    words += [f"environment.datasets=['{data}']"] if channel == "recorded" else []
    settings = work.folder / "settings.toml"
    settings.write_text(to_toml(work.settings(*words)))
    status, printed = train("--config", str(settings))
    assert status == TrainerStatus.OUT_OF_MEMORY
    assert "lower optimizer.micro_batch_tokens" in printed.err
    assert ("rollout.max_episode_tokens" in printed.err) == (channel == "builtin")


@pytest.mark.parametrize("part", ["start", "weights", "kv_cache", "sampling"])
def test_an_engine_that_finds_no_memory_is_not_a_crash(
    work: Work, monkeypatch: pytest.MonkeyPatch, train: Any, part: str
) -> None:
    """vLLM's allocator maps an engine's memory again when it wakes. Another share would help, not
    shorter passes."""
    message = AT_START if part == "start" else MAPPING

    def wake_up(tags: list[str]) -> None:
        raise RuntimeError(MAPPING)

    def step() -> None:
        raise RuntimeError(MAPPING)

    def refuse(*_: object, **__: object) -> None:
        raise ValueError(AT_START)

    def open_engine(settings: Settings, learner: Any, *others: Any) -> ColocatedEngine:
        if part == "start":
            monkeypatch.setattr(engine_choice, "ColocatedLLM", refuse)
            monkeypatch.setattr(engine_choice, "_vllm_for_cpus", lambda: True)
            return engine_choice._colocated_engine(settings, learner, None, Ranks())
        double: Any = ColocatedDouble(learner.model)
        if part == "sampling":
            double.llm.llm_engine.step = step
        else:
            double.llm.wake_up = wake_up
        if part == "weights":
            double.sync_weights = lambda: wake_up(["weights"])
        rules = learner.reply_rules(1024)
        sampler = VllmColocatedSampler(double.llm.llm_engine, rules, make_params=dict)
        return ColocatedEngine(double, sampler)

    monkeypatch.setattr(training, "open_engine", open_engine)
    settings = work.folder / "settings.toml"
    settings.write_text(to_toml(work.settings("rollout.engine=vllm_colocated")))
    status, printed = train("--config", str(settings))
    assert status == TrainerStatus.ENGINE_OUT_OF_MEMORY
    assert f"error: out of memory: {message}; lower rollout.memory_share" in printed.err
