"""TRL's GRPOTrainer with `environment=`: completions come from the environment's `generate`.

With `args.use_vllm` the environment's client is one of TRL's vLLM, a server or an engine within the
trainer, whose weights TRL sends before each rollout; without vLLM the trained model itself
generates, by continuous batching.
"""

import logging
import threading
from dataclasses import replace
from typing import Any

import torch
import trl

from miner.agents.client import (
    Client,
    SamplerClient,
    VLLMClient,
    VLLMClientGenerationConfig,
    prompt_texts,
)
from miner.agents.completions import Completions
from miner.agents.environment import Environment
from miner.background_loop import BackgroundLoop
from miner.config.errors import ConfigurationError
from miner.inference.transformers.sampler import TransformersSampler, eos_token_ids
from miner.inference.vllm.colocated_sampler import (
    VllmColocatedSampler,
    on_this_stream,
    take_over_threads,
)
from miner.inference.vllm.replies import ReplyRules
from miner.rollout.completions import prompt_ids

log = logging.getLogger(__name__)

HONOURED = ("repetition_penalty", "temperature", "top_p", "top_k", "min_p", "max_tokens", "stop")
"""Keys of `generation_kwargs`, by vLLM's names, that clients can be asked for."""


class GRPOTrainer(trl.GRPOTrainer):
    """See TRL's; `environment` takes the place of `rollout_func`.

    Raises: `ConfigurationError` for an environment together with a rollout function, for
        `args.generation_kwargs` that its client cannot be asked for, and for an engine within the
        trainer that sleeps or is spread over GPUs.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: trl.GRPOConfig | None = None,
        *more: Any,
        environment: Environment | None = None,
        **kwargs: Any,
    ) -> None:
        if environment is not None:
            if kwargs.get("rollout_func") is not None:
                raise ConfigurationError("environment and rollout_func exclude each other")
            kwargs["rollout_func"] = EnvironmentRollout(environment)
            if args is not None:
                config_of(args)  # raises before a model is loaded
                check_vllm(args)
        super().__init__(model, reward_funcs, args, *more, **kwargs)


class EnvironmentRollout:
    """A rollout function that asks an environment.

    Args:
        environment: whose `generate` is called once for all prompts of a step.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._client: Client | None = None
        self._sampler: TransformersSampler | None = None
        self._making = threading.Lock()

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any] | None]:
        """Prompts, completions, logprobs and masks, one of each per prompt.

        Plain lists have no logprobs: TRL's correction by them is then switched off.
        """
        tokenizer = trainer.processing_class
        texts = prompt_texts(prompts, trainer)
        client, config = self.client(trainer), config_of(trainer.args)
        made = self._environment.generate(client, config, texts)
        if len(made) != len(prompts):
            raise ConfigurationError(
                f"{type(self._environment).__name__}.generate returned {len(made)} completions for "
                f"{len(prompts)} prompts: with n=1 it must be one for each, in their order"
            )
        if isinstance(made, Completions):
            if made != [list(item.ids) for item in made.items]:
                raise ConfigurationError(
                    f"{type(self._environment).__name__}.generate changed the ids of the client's "
                    "`Completions`, whose masks and log-probabilities are of others: return plain "
                    "lists of ids"
                )
            return {
                "prompt_ids": made.prompt_ids,
                "completion_ids": list(made),
                "logprobs": made.logprobs,
                "env_mask": made.masks,
            }
        if trainer.use_vllm and trainer.vllm_importance_sampling_correction:
            log.warning(
                "%s.generate returned lists without log-probabilities: "
                "vllm_importance_sampling_correction is switched off; return the client's "
                "`Completions` to keep it",
                type(self._environment).__name__,
            )
            trainer.vllm_importance_sampling_correction = False  # read after each rollout
        return {
            "prompt_ids": [prompt_ids(tokenizer, text) for text in texts],
            "completion_ids": [list(ids) for ids in made],
            "logprobs": None,
        }

    def client(self, trainer: Any) -> Client:
        """The client of the engine that samples for `trainer`; from any thread.

        Raises: `ConfigurationError` as `check_vllm`, and for an engine within the trainer that is
            asked first from another thread; `EngineLostError`.
        """
        with self._making:
            self._client = self._client or self._make_client(trainer)
        if self._sampler is not None:
            self._sampler.invalidate()  # the weights may have changed
        return self._client

    def _make_client(self, trainer: Any) -> Client:
        args = trainer.args
        if not args.use_vllm:
            ranks = trainer.accelerator
            self._sampler = TransformersSampler(
                ranks.unwrap_model(trainer.model),
                trainer.processing_class,
                # ranks may hold the same prompt, whose completions are one group
                seed=args.seed * ranks.num_processes + ranks.process_index,
            )
            return SamplerClient(self._sampler, trainer.processing_class, BackgroundLoop("agent"))
        check_vllm(args)
        if args.vllm_mode == "colocate":
            sampler = _colocated_sampler(trainer)
            return SamplerClient(sampler, trainer.processing_class, BackgroundLoop("agent"))
        return VLLMClient(
            args.vllm_server_base_url,
            args.vllm_server_host,
            args.vllm_server_port,
            bos_token=trainer.processing_class.bos_token,
        )


def check_vllm(args: trl.GRPOConfig) -> None:
    """Raises: `ConfigurationError` for an engine within the trainer that cannot be stepped here, or
    beside a server that is named."""
    if not args.use_vllm or args.vllm_mode != "colocate":
        return
    fields = trl.GRPOConfig.__dataclass_fields__
    for name in ("vllm_server_base_url", "vllm_server_host", "vllm_server_port"):
        if (given := getattr(args, name)) != fields[name].default:
            raise ConfigurationError(
                f"{name}={given!r} names a server, but vllm_mode='colocate', TRL's default, opens "
                "an engine within the trainer: set vllm_mode='server' in GRPOConfig"
            )
    reasons = {
        "vllm_enable_sleep_mode": (False, "the engine sleeps while a rollout function runs"),
        "vllm_tensor_parallel_size": (1, "all ranks would have to step it alike"),
    }
    for name, (expected, reason) in reasons.items():
        if (given := getattr(args, name)) != expected:
            raise ConfigurationError(
                f"{name}={given} with vllm_mode='colocate': {reason}; set it to {expected}, or "
                "start `vllm serve` and set vllm_mode='server' in GRPOConfig"
            )


def _colocated_sampler(trainer: Any) -> VllmColocatedSampler:
    """Raises: `ConfigurationError` on a GPU in another thread than the main one, since the engine
    runs on the CUDA stream of the thread that opened it."""
    on_gpu = torch.cuda.is_available()
    if on_gpu and threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "vllm_mode='colocate' was asked for a completion in another thread first: call "
            "generate_rollout_completions once in the rollout function's"
        )
    engine = trainer.vllm_generation.llm.llm_engine
    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    rules = ReplyRules(
        eos_token_ids(model, tokenizer),
        vocabulary=model.config.get_text_config().vocab_size,
        context=engine.model_config.max_model_len,
    )
    prepare = on_this_stream() if on_gpu else take_over_threads
    return VllmColocatedSampler(engine, rules, prepare_thread=prepare)


def config_of(args: trl.GRPOConfig, **overrides: Any) -> VLLMClientGenerationConfig:
    """Sampling parameters by the trainer's arguments; each prompt comes as often as needed.

    `args.generation_kwargs` come before other arguments, as in TRL, and `overrides` before both.
    Raises: `ConfigurationError` for keys of these that are not among `HONOURED`.
    """
    given: Any = args.generation_kwargs or {}  # a JSON text has become a dictionary by now
    more = {**given, **overrides}
    if unknown := sorted(more.keys() - set(HONOURED)):
        raise ConfigurationError(
            f"{unknown[0]}={more[unknown[0]]!r} among the parameters of generation would be "
            f"ignored: expected {', '.join(HONOURED)}, or vllm_structured_outputs_regex in "
            "GRPOConfig"
        )
    if isinstance(more.get("stop"), str):
        more["stop"] = [more["stop"]]
    plain = VLLMClientGenerationConfig()
    config = VLLMClientGenerationConfig(
        n=1,
        repetition_penalty=args.repetition_penalty,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k or -1,
        min_p=args.min_p or 0.0,
        max_tokens=args.max_completion_length or plain.max_tokens,
        guided_decoding_regex=args.vllm_structured_outputs_regex,
    )
    return replace(config, **more)
