"""Which engine generates, by the settings and by what the inference servers say of themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from miner.environments import ConfigurationError
from miner.environments.servers import split_server_urls
from miner.rollout.loop import BackgroundLoop
from miner.rollout.sampler import SamplerError
from miner.rollout.transformers_sampler import TransformersSampler
from miner.rollout.vllm_client import VllmServer
from miner.rollout.vllm_colocated_sampler import VllmColocatedSampler
from miner.rollout.vllm_server_sampler import VllmServerSampler
from miner.rollout.vllm_wire import VllmConfig
from miner.training.colocated_engine import ColocatedEngine
from miner.training.engines import GenerationEngine, TransformersEngine
from miner.training.learner import Learner
from miner.training.ranks import Ranks
from miner.training.server_engine import ServerEngine, wait_until_healthy
from miner.training.settings import Settings
from miner.training.weight_sync import FileWeightSync, NcclWeightSync, WeightSync, whole_weights
from miner.training.zero import gathered_weights, zero_stage

LOGPROBS_MODE = "processed_logprobs"


def open_engine(
    settings: Settings,
    learner: Learner,
    loop: BackgroundLoop,
    alive: Callable[[], None],
    ranks: Ranks,
) -> GenerationEngine:
    """The engine that `rollout.engine` names; `alive` is called while a server is waited for.

    Raises: `ConfigurationError` where a server's flags do not fit, `EngineLostError` where it does
        not answer.
    """
    if settings.rollout.engine == "vllm_server":
        return _server_engine(settings, learner, loop, alive, ranks)
    if settings.rollout.engine == "vllm_colocated":
        return _colocated_engine(settings, learner, ranks)
    if zero_stage(settings) == 3:
        raise ConfigurationError(
            'rollout.engine="transformers" cannot generate with weights that ZeRO-3 spreads over '
            "processes: use a vLLM engine, or stage 2 in optimizer.deepspeed"
        )
    return TransformersEngine(
        TransformersSampler(
            learner.model,
            learner.tokenizer,
            max_sessions=max(settings.episodes_per_step, settings.evaluation.episodes)
            // ranks.count,
            seed=settings.seed * ranks.count + ranks.rank,
        )
    )


def _colocated_engine(settings: Settings, learner: Learner, ranks: Ranks) -> ColocatedEngine:
    if not torch.cuda.is_available():
        raise ConfigurationError(
            'rollout.engine="vllm_colocated" needs a CUDA GPU and there is none: use "transformers"'
        )
    rollout = settings.rollout
    rules = learner.reply_rules(rollout.max_episode_tokens)

    def make_generation(trainer: Any) -> Any:
        from trl.generation.vllm_generation import VLLMGeneration

        return VLLMGeneration(
            model=trainer.model,
            accelerator=trainer.accelerator,
            processing_class=trainer.processing_class,
            mode="colocate",
            gpu_memory_utilization=rollout.memory_share,
            max_model_length=rules.context,
            max_num_seqs=settings.episodes_per_step // ranks.count,
            enable_sleep_mode=True,
        )

    def make_sampler(llm: Any) -> VllmColocatedSampler:
        device = torch.cuda.current_device()
        return VllmColocatedSampler(
            llm.llm_engine, rules, prepare_thread=lambda: torch.cuda.set_device(device)
        )

    return ColocatedEngine(make_generation, make_sampler)


def _server_engine(
    settings: Settings,
    learner: Learner,
    loop: BackgroundLoop,
    alive: Callable[[], None],
    ranks: Ranks,
) -> ServerEngine:
    rollout = settings.rollout
    servers = [
        VllmServer(url, reply_timeout_s=rollout.episode_seconds)
        for url in split_server_urls(rollout.server)
    ]
    wait_until_healthy(servers, loop, rollout.start_seconds, alive)
    try:
        backend, context = _agreed(servers, loop, rollout.max_episode_tokens)
    except ConfigurationError:
        for server in servers:
            loop.run(server.close())
        raise

    def make_sync(trainer: Any) -> WeightSync:
        if backend == "nccl":
            return _nccl_sync(trainer, servers, loop, rollout.start_seconds, ranks)
        return FileWeightSync(
            lambda: whole_weights(learner.model, gathered_weights(trainer)),
            servers,
            loop,
            Path(settings.run_dir),
            rollout.sync_seconds,
            leads=ranks.leads,
        )

    return ServerEngine(
        VllmServerSampler(servers, learner.reply_rules(context)),
        loop,
        make_sync,
        start_seconds=rollout.start_seconds,
        sync_seconds=rollout.sync_seconds,
        ranks=ranks,
        alive=alive,
    )


def _agreed(
    servers: list[VllmServer], loop: BackgroundLoop, episode_tokens: int
) -> tuple[str, int]:
    """How weights travel, and the shortest context. Raises: `ConfigurationError`."""
    try:
        configs = [loop.run(server.config()) for server in servers]
    except SamplerError as error:
        raise ConfigurationError(str(error)) from error
    context = min(config.model_config.max_model_len for config in configs)
    if context < episode_tokens:
        raise ConfigurationError(
            f"the inference server's --max-model-len is {context}, rollout.max_episode_tokens is "
            f"{episode_tokens}: raise the one or lower the other"
        )
    return _common_backend(servers, configs), context


def _common_backend(servers: list[VllmServer], configs: list[VllmConfig]) -> str:
    """How weights travel. Raises: `ConfigurationError` for flags that cannot work."""
    backends = set()
    for server, config in zip(servers, configs, strict=True):
        mode = config.model_config.logprobs_mode
        if mode != LOGPROBS_MODE:
            raise ConfigurationError(
                f"{server.url} runs with --logprobs-mode {mode}, which are not those of the "
                f"distribution it draws from: start it with --logprobs-mode {LOGPROBS_MODE}"
            )
        transfer = config.weight_transfer_config
        backends.add(transfer.backend if transfer else None)
    [backend, *others] = sorted(backends, key=str)
    if others or backend not in ("nccl", "file"):
        raise ConfigurationError(
            f"the inference servers take weights by {sorted(map(str, backends))}: start each with "
            """--weight-transfer-config '{"backend":"nccl"}'"""
        )
    if backend == "nccl" and len(servers) > 1:
        raise ConfigurationError(
            f"rollout.server names {len(servers)} servers, TRL sends weights by NCCL to one: start "
            "one with --data-parallel-size"
        )
    return backend


def _nccl_sync(
    trainer: Any, servers: list[VllmServer], loop: BackgroundLoop, seconds: float, ranks: Ranks
) -> NcclWeightSync:
    from trl.generation.vllm_generation import VLLMGeneration

    [server] = servers

    def connect() -> Any:
        return VLLMGeneration(
            model=trainer.model,
            accelerator=trainer.accelerator,
            processing_class=trainer.processing_class,
            mode="server",
            server_base_url=server.url,
            server_timeout=seconds,
        )

    def name(label: str) -> None:
        loop.run(server.set_weight_version(label))

    return NcclWeightSync(connect, trainer.accelerator.device, name, leads=ranks.leads)
