"""Choice of the generation engine, by the settings and the inference servers' configuration."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from miner.background_loop import BackgroundLoop
from miner.config.channel_facts import FACTS
from miner.config.errors import ConfigurationError
from miner.config.held_out_games import usual_in_duels
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks, ensure_world_variables
from miner.distributed.zero import loading_whole
from miner.inference.engines import GenerationEngine, TransformersEngine, engine_memory
from miner.inference.merged_weights import merged_weights, weights_on_cpu
from miner.inference.sampler import SamplerError
from miner.inference.transformers.sampler import TransformersSampler
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.colocated_engine import ColocatedEngine
from miner.inference.vllm.colocated_llm import ColocatedLLM, transformers_as_before
from miner.inference.vllm.colocated_sampler import VllmColocatedSampler, on_this_stream
from miner.inference.vllm.server_engine import ServerEngine, wait_until_healthy
from miner.inference.vllm.server_sampler import VllmServerSampler
from miner.inference.vllm.weight_sync import WeightSync
from miner.inference.vllm.wire import FILE_BACKEND
from miner.learning.learner import Learner

SYNC_SECONDS = 300.0
"""Longest wait until a server has loaded the weights."""

LOGPROBS_MODE = "processed_logprobs"
TRANSFER_FLAGS = (
    f"""--weight-transfer-config '{{"backend":"{FILE_BACKEND}"}}' --worker-extension-cls """
    "miner.inference.vllm.worker.WeightsByFile (and this repository on its PYTHONPATH)"
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
        not answer, `EngineMemoryError` where vLLM's share of the GPU is not free.
    """
    if settings.rollout.engine == "vllm_server":
        return _server_engine(settings, learner, loop, alive, ranks)
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
            max_sessions=live_episodes(settings, ranks),
            seed=_sampling_seed(settings, ranks),
        )
    )


UNSET_AT_ONCE = 100
"""Cached turns of six games at once would be more than a CPU's memory holds of most models."""


def live_episodes(settings: Settings, ranks: Ranks) -> int:
    """Episodes that one rank plays at once.

    On GPUs those of a step, or as many as the plan has found memory for: held-out games may be
    more, and the clock of one that only waits for a place in the engine would run. On a CPU all
    held-out games too, since a tiny model gains from many rows, but of duels `UNSET_AT_ONCE` where
    their number is the default.
    """
    live, rollout, held_out = settings.episodes_per_step, settings.rollout, settings.evaluation
    on_cpu = rollout.engine == "transformers" and not torch.cuda.is_available()
    environment = settings.environment
    usual = usual_in_duels(environment.games)["evaluation"]["episodes"]
    unset = FACTS[environment.channel].duels and held_out.episodes == usual
    if rollout.live_episodes:
        live = max(live, held_out.episodes)
    elif on_cpu:
        live = max(live, UNSET_AT_ONCE if unset else held_out.episodes)
    live = max(1, live // ranks.count)
    return min(live, settings.rollout.live_episodes or live)


def _sampling_seed(settings: Settings, ranks: Ranks) -> int:
    """Of the draws of this process; no two ranks share one, so that groups are not correlated."""
    return (settings.seed * ranks.count + ranks.rank) % 2**32  # vLLM seeds NumPy: 32 bits


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
    # vLLM builds some models by transformers, which would spread them under ZeRO-3
    with engine_memory(), loading_whole(), transformers_as_before(learner.model):
        opened = ColocatedLLM(
            str(learner.base),
            partial(merged_weights, learner.model),
            stored=learner.as_stored,
            sleeps=on_gpu,
            dtype=settings.model.dtype,
            seed=_sampling_seed(settings, ranks),
            gpu_memory_utilization=rollout.memory_share,
            max_model_len=rules.context,
            max_num_seqs=live_episodes(settings, ranks),
        )
    trainer.accelerator.wait_for_everyone()  # DeepSpeed hangs where some of them go on
    if on_gpu:
        sampler = VllmColocatedSampler(
            opened.llm.llm_engine, rules, prepare_thread=on_this_stream()
        )
        return ColocatedEngine(opened, sampler)
    sampler = VllmColocatedSampler(opened.llm.llm_engine, rules)
    return ColocatedEngine(opened, sampler, sleeps=False)


def _vllm_for_cpus() -> bool:
    if find_spec("vllm") is None:
        return False
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _server_engine(
    settings: Settings,
    learner: Learner,
    loop: BackgroundLoop,
    alive: Callable[[], None],
    ranks: Ranks,
) -> ServerEngine:
    rollout = settings.rollout
    server = VllmServer(rollout.server, reply_timeout_s=rollout.episode_seconds)
    try:
        wait_until_healthy(server, loop, rollout.start_seconds, alive)
        context, dtype = _agreed(server, loop, rollout.episode_limit)
    except BaseException:
        loop.run(server.close())
        raise
    sync = WeightSync(
        partial(
            weights_on_cpu, learner.model, keep=ranks.leads, dtype=dtype, stored=learner.as_stored
        ),
        server,
        loop,
        Path(settings.run_dir),
        SYNC_SECONDS,
        leads=ranks.leads,
    )
    rules = learner.reply_rules(context)
    return ServerEngine(
        VllmServerSampler(server, rules, seed=_sampling_seed(settings, ranks)),
        loop,
        sync,
        start_seconds=rollout.start_seconds,
        ranks=ranks,
        alive=alive,
    )


def _agreed(
    server: VllmServer, loop: BackgroundLoop, episode_tokens: int
) -> tuple[int, torch.dtype]:
    """Context and dtype of the server. Raises: `ConfigurationError` for flags that cannot work."""
    try:
        config = loop.run(server.config())
    except SamplerError as error:
        raise ConfigurationError(str(error)) from error
    model, transfer = config.model_config, config.weight_transfer_config
    if model.max_model_len < episode_tokens:
        raise ConfigurationError(
            f"the inference server's --max-model-len is {model.max_model_len}, "
            f"rollout.max_episode_tokens is {episode_tokens}: raise the one or lower the other"
        )
    if model.logprobs_mode != LOGPROBS_MODE:
        raise ConfigurationError(
            f"{server.url} runs with --logprobs-mode {model.logprobs_mode}, which are not those of "
            f"the distribution it draws from: start it with --logprobs-mode {LOGPROBS_MODE}"
        )
    backend = transfer.backend if transfer else None
    if backend != FILE_BACKEND:
        raise ConfigurationError(
            f"{server.url} takes weights by {backend!r} (None: not at all): start it with "
            f"{TRANSFER_FLAGS}"
        )
    dtype = getattr(torch, model.dtype.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigurationError(
            f"{server.url} holds its weights in {model.dtype!r}, which torch does not know: start "
            "it with --dtype bfloat16"
        )
    return model.max_model_len, dtype
