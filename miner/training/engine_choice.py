"""Choice of the generation engine, by the settings and the inference servers' configuration."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from miner.background_loop import BackgroundLoop
from miner.config.contract import split_server_urls
from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks, ensure_world_variables
from miner.inference.engines import GenerationEngine, TransformersEngine
from miner.inference.merged_weights import merged_weights, weights_on_cpu
from miner.inference.sampler import SamplerError
from miner.inference.transformers.sampler import TransformersSampler
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.colocated_engine import ColocatedEngine
from miner.inference.vllm.colocated_llm import ColocatedLLM
from miner.inference.vllm.colocated_sampler import VllmColocatedSampler
from miner.inference.vllm.server_engine import ServerEngine, wait_until_healthy
from miner.inference.vllm.server_sampler import VllmServerSampler
from miner.inference.vllm.weight_sync import (
    FileWeightSync,
    NcclWeightSync,
    WeightSync,
    merged_generation,
)
from miner.inference.vllm.wire import NCCL_OR_FILE, VllmConfig
from miner.training.learner import Learner

WEIGHTS_PORT = 8101
"""Port of NCCL's group: below the ports that the kernel gives to outgoing connections, among
which TRL's own default is."""

LOGPROBS_MODE = "processed_logprobs"
TRANSFER_FLAGS = (
    f"""--weight-transfer-config '{{"backend":"{NCCL_OR_FILE}"}}' --worker-extension-cls """
    "miner.inference.vllm.worker.NcclOrFile (and this repository on its PYTHONPATH)"
)


def open_engine(
    settings: Settings,
    learner: Learner,
    trainer: Any,
    loop: BackgroundLoop,
    alive: Callable[[], None],
    ranks: Ranks,
) -> GenerationEngine:
    """The engine that `rollout.engine` names, ready to play.

    Args:
        trainer: TRL's, whose processes weights come from.
        alive: called while a server is waited for.

    Raises: `ConfigurationError` where a server's flags do not fit, `EngineLostError` where it does
        not answer.
    """
    if settings.rollout.engine == "vllm_server":
        return _server_engine(settings, learner, trainer, loop, alive, ranks)
    if settings.rollout.engine == "vllm_colocated":
        return _colocated_engine(settings, learner, trainer, ranks)
    if settings.optimizer.zero_stage == 3:
        raise ConfigurationError(
            'rollout.engine="transformers" cannot generate with weights that ZeRO-3 spreads over '
            "processes: use a vLLM engine, or optimizer.zero_stage=2"
        )
    return TransformersEngine(
        TransformersSampler(
            learner.model,
            learner.tokenizer,
            max_sessions=max(settings.episodes_per_step, settings.evaluation.episodes)
            // ranks.count,
            seed=_sampling_seed(settings, ranks),
        )
    )


def _sampling_seed(settings: Settings, ranks: Ranks) -> int:
    """Of the draws of this process; no two ranks share one, so that groups are not correlated."""
    return settings.seed * ranks.count + ranks.rank


def _colocated_engine(
    settings: Settings, learner: Learner, trainer: Any, ranks: Ranks
) -> ColocatedEngine:
    on_gpu = torch.cuda.is_available()
    if not on_gpu and not _vllm_for_cpus():
        raise ConfigurationError(
            'rollout.engine="vllm_colocated" needs a CUDA GPU, or a vLLM that was built for CPUs, '
            'and there is neither: use "transformers", or the Python of .venv-vllm (make '
            "setup-vllm)"
        )
    rollout = settings.rollout
    rules = learner.reply_rules(rollout.episode_limit)

    ensure_world_variables()  # vLLM asks them which of the ranks this process is
    opened = ColocatedLLM(
        str(learner.base),
        partial(merged_weights, learner.model),
        sleeps=on_gpu,
        dtype=settings.model.dtype,
        seed=_sampling_seed(settings, ranks),
        gpu_memory_utilization=rollout.memory_share,
        max_model_len=rules.context,
        max_num_seqs=settings.episodes_per_step // ranks.count,
    )
    trainer.accelerator.wait_for_everyone()  # DeepSpeed hangs where some of them go on
    if on_gpu:
        sampler = VllmColocatedSampler(
            opened.llm.llm_engine, rules, prepare_thread=on_this_stream()
        )
        return ColocatedEngine(opened, sampler)
    from miner.inference.vllm.reload import reloading_on_cpu

    sampler = VllmColocatedSampler(opened.llm.llm_engine, rules)
    return ColocatedEngine(opened, sampler, sleeps=False, reloading=reloading_on_cpu)


def on_this_stream() -> Callable[[], None]:
    """Return a function that moves another thread to the CUDA device and stream of the calling one.

    vLLM copies its inputs on the stream of the thread that opened it; a thread begins with the
    default stream, where its first step would not wait for them.
    """
    device, stream = torch.cuda.current_device(), torch.cuda.current_stream()

    def choose() -> None:
        torch.cuda.set_device(device)
        torch.cuda.set_stream(stream)

    return choose


def _vllm_for_cpus() -> bool:
    if find_spec("vllm") is None:
        return False
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _server_engine(
    settings: Settings,
    learner: Learner,
    trainer: Any,
    loop: BackgroundLoop,
    alive: Callable[[], None],
    ranks: Ranks,
) -> ServerEngine:
    rollout = settings.rollout
    servers = [
        VllmServer(url, reply_timeout_s=rollout.episode_seconds)
        for url in split_server_urls(rollout.server)
    ]
    with ExitStack() as stack:
        for server in servers:
            stack.callback(lambda server: loop.run(server.close()), server)
        wait_until_healthy(servers, loop, rollout.start_seconds, alive)
        agreed = _agreed(servers, loop, rollout.episode_limit)
        sync: WeightSync
        if _way_for_weights(rollout.weights, agreed.backend, len(servers)) == "nccl":
            sync = _nccl_sync(trainer, servers, loop, rollout.start_seconds, ranks)
        else:
            sync = FileWeightSync(
                partial(weights_on_cpu, learner.model, keep=ranks.leads, dtype=agreed.dtype),
                servers,
                loop,
                Path(settings.run_dir),
                rollout.sync_seconds,
                leads=ranks.leads,
            )
        engine = ServerEngine(
            VllmServerSampler(
                servers, learner.reply_rules(agreed.context), seed=_sampling_seed(settings, ranks)
            ),
            loop,
            sync,
            start_seconds=rollout.start_seconds,
            sync_seconds=rollout.sync_seconds,
            ranks=ranks,
            alive=alive,
        )
        engine.connect()
        stack.pop_all()
    return engine


@dataclass(frozen=True)
class _Agreed:
    """Common facts of all servers: way of weights, shortest context, dtype of the weights."""

    backend: str
    context: int
    dtype: torch.dtype


def _agreed(servers: list[VllmServer], loop: BackgroundLoop, episode_tokens: int) -> _Agreed:
    """Raises: `ConfigurationError` for flags that cannot work."""
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
    dtype = getattr(torch, configs[0].model_config.dtype.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigurationError(
            f"{servers[0].url} holds its weights in {configs[0].model_config.dtype!r}, which torch "
            "does not know: start it with --dtype bfloat16"
        )
    return _Agreed(_common_backend(servers, configs), context, dtype)


def _common_backend(servers: list[VllmServer], configs: list[VllmConfig]) -> str:
    """Return the common way of weights. Raises: `ConfigurationError` for flags that cannot work."""
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
    if others or backend not in ("nccl", NCCL_OR_FILE):
        raise ConfigurationError(
            f"the inference servers take weights by {sorted(map(str, backends))} (None: not at "
            f"all): start each with {TRANSFER_FLAGS}"
        )
    return backend


def _way_for_weights(wanted: str, backend: str, servers: int) -> str:
    """ "nccl" or "file". Raises: `ConfigurationError` where servers or machine cannot do it."""
    way = wanted
    if wanted == "nccl" and backend == NCCL_OR_FILE and not torch.cuda.is_available():
        raise ConfigurationError(
            'rollout.weights="nccl" needs a CUDA GPU in the trainer, which has none: leave it '
            'out, or set it to "file"'
        )
    if wanted == "auto":
        for_nccl = torch.cuda.is_available() and servers == 1
        way = "nccl" if for_nccl or backend == "nccl" else "file"
    if way == "file" and backend == "nccl":
        raise ConfigurationError(
            f'rollout.weights="file" needs servers with {TRANSFER_FLAGS}; theirs is the plain NCCL'
        )
    if way == "nccl" and servers > 1:
        raise ConfigurationError(
            f"rollout.server names {servers} servers, TRL sends weights by NCCL to one: start one "
            'with --data-parallel-size, or set rollout.weights="file"'
        )
    return way


def _nccl_sync(
    trainer: Any, servers: list[VllmServer], loop: BackgroundLoop, seconds: float, ranks: Ranks
) -> NcclWeightSync:
    [server] = servers

    def connect() -> Any:
        return merged_generation(
            model=trainer.model,
            accelerator=trainer.accelerator,
            processing_class=trainer.processing_class,
            mode="server",
            server_base_url=server.url,
            server_timeout=seconds,
            group_port=WEIGHTS_PORT,
        )

    def name(label: str) -> None:
        loop.run(server.set_weight_version(label))

    return NcclWeightSync(connect, trainer.accelerator.device, name, leads=ranks.leads)
