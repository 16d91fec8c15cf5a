"""The shapes of the replies of `vllm serve` that are read.

Invariant: a reply is accepted only if every field named here has its type; fields that are
not named are skipped unread. Written against vLLM 0.31.0.
"""

from typing import Final

import msgspec

CONTROL_REPLY_LIMIT: Final = 4 << 20
"""Bytes; /server_info holds the server's whole configuration."""

COMPLETION_HEAD: Final = 64 << 10
BYTES_PER_TOKEN: Final = 256
"""A completion reply is at most the head plus this for each token of every prompt and reply."""

ENGINE_HEADER: Final = "X-data-parallel-rank"
"""Of a completion: which of the server's engines is to answer it."""

BASE_WEIGHTS: Final = "default"
"""`weight_version` of a server without a push."""

FILE_BACKEND: Final = "file"
"""The weight-transfer backend of ours (`miner.inference.vllm.worker`)."""


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs`: one natural logarithm per sampled token."""

    token_logprobs: list[float]


class Choice(msgspec.Struct, frozen=True):
    """One reply; its ids include the token it stopped on, or that completed the stop string. The
    prompt's are with it, which may have been sent as text. `cached_tokens` of it were held: the
    reply's usage has it for its last choice, see `VllmServer.complete`."""

    index: int
    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: CompletionLogprobs
    finish_reason: str
    stop_reason: int | str | None = None
    cached_tokens: int | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    """With `--enable-prompt-tokens-details`."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a completion and its prompt."""

    prompt_tokens_details: PromptDetails | None = None


class CompletionReply(msgspec.Struct, frozen=True):
    """Answer of `POST /v1/completions`."""

    choices: list[Choice]
    usage: Usage | None = None


class ModelCard(msgspec.Struct, frozen=True):
    """One entry of `/v1/models`; the id is the name that requests have to give."""

    id: str
    max_model_len: int | None = None


class ModelsReply(msgspec.Struct, frozen=True):
    """Answer of `GET /v1/models`."""

    data: list[ModelCard]


class WeightInfo(msgspec.Struct, frozen=True):
    """Answer of `GET /weight_info`."""

    weight_version: str


class TransferConfig(msgspec.Struct, frozen=True):
    """`--weight-transfer-config`."""

    backend: str


class ModelConfig(msgspec.Struct, frozen=True):
    """The part of vLLM's model configuration that decides over the distribution."""

    logprobs_mode: str
    max_model_len: int
    dtype: str


class ParallelConfig(msgspec.Struct, frozen=True):
    """`--data-parallel-size`: engines that each hold the whole model."""

    data_parallel_size: int


class VllmConfig(msgspec.Struct, frozen=True):
    """`vllm_config` of `/server_info`."""

    model_config: ModelConfig
    parallel_config: ParallelConfig
    weight_transfer_config: TransferConfig | None


class ServerInfo(msgspec.Struct, frozen=True):
    """Answer of `GET /server_info?config_format=json`."""

    vllm_config: VllmConfig
