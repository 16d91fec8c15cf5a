"""The HTTP API of one `vllm serve`, as typed calls: completions, versions, cache, facts.

Invariants:
* a reply is untrusted: its size is bounded before it is parsed, its types are checked while it is;
* no, late or broken replies and HTTP 5xx leave as `EngineLostError`, everything else that is not
  the expected reply as a plain `SamplerError`, which another try would only repeat;
* the control endpoints need `VLLM_SERVER_DEV_MODE=1`; a server without them has another error
  than one that is down.
"""

from typing import Any, Final, Literal

import aiohttp
import msgspec

from miner.http_replies import CONNECT_S, JsonServer
from miner.inference.sampler import EngineLostError, SamplerError
from miner.inference.vllm.wire import (
    BYTES_PER_TOKEN,
    COMPLETION_HEAD,
    CONTROL_REPLY_LIMIT,
    ENGINE_HEADER,
    Choice,
    CompletionReply,
    ModelCard,
    ModelsReply,
    ServerInfo,
    VllmConfig,
    WeightInfo,
)

_COMPLETIONS: Final = "v1/completions"
_CONTROL_S: Final = 30.0
_CONFIG_S: Final = 180.0
"""/server_info first runs other programs to describe the machine."""


class VllmServer(JsonServer):
    """Client of one server. Usable from any event loop; one connection pool per loop.

    Args:
        url: base URL, `http://host:port`, with or without /v1.
        reply_timeout_s: longest wait for the reply to one prompt, the server's queue included; None
            for any time.

    Attributes:
        engines: number of engines side by side; 1 until `config` was read.
    """

    what = "the inference server"

    def __init__(self, url: str, *, reply_timeout_s: float | None = 120.0) -> None:
        super().__init__(url.rstrip("/").removesuffix("/v1"))
        self.engines = 1
        self._reply_timeout_s = reply_timeout_s
        self._model: str | None = None

    async def complete(
        self, prompt: str | list[int], options: dict[str, Any], *, engine: int | None = None
    ) -> list[Choice]:
        """`options["n"]` completions of a text or of ids (one by default), by their numbers.

        `options` are vLLM's sampling parameters, all of them; `engine` is the one of `engines` that
        answers, which the server chooses by default.

        Raises: `EngineLostError`, `SamplerError`.
        """
        if self._model is None:
            self._model = await self.model_name()
        payload = {
            "model": self._model,
            "prompt": prompt,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **options,
        }
        n = int(options.get("n", 1))
        longest = len(prompt.encode() if isinstance(prompt, str) else prompt)
        body = await self._ask(
            "POST",
            _COMPLETIONS,
            payload,
            limit=COMPLETION_HEAD + BYTES_PER_TOKEN * n * (longest + int(options["max_tokens"])),
            seconds=self._reply_timeout_s,
            headers=None if engine is None else {ENGINE_HEADER: str(engine)},
        )
        reply = self._decode(CompletionReply, body, _COMPLETIONS)
        choices = reply.choices
        if n == 1 and reply.usage and (details := reply.usage.prompt_tokens_details):
            choices = [
                msgspec.structs.replace(choice, cached_tokens=details.cached_tokens)
                for choice in choices
            ]
        if len(choices) != n:
            raise SamplerError(
                f"{self.url}/{_COMPLETIONS} gave {len(choices)} choices, expected {n}"
            )
        return sorted(choices, key=lambda choice: choice.index)

    async def health_error(self) -> str:
        """Reason why it is unusable: vLLM answers 200 while its engine lives, a proxy others."""
        try:
            await self._get("health")
        except SamplerError as error:
            return str(error)
        return ""

    async def model_name(self) -> str:
        """The name under which the server serves its (first) model."""
        return (await self._model_card()).id

    async def context(self) -> int | None:
        """Tokens that a prompt and its reply may have together; None where it does not say."""
        return (await self._model_card()).max_model_len

    async def _model_card(self) -> ModelCard:
        served = self._decode(ModelsReply, await self._get("v1/models"), "v1/models").data
        if not served:
            raise SamplerError(f"{self.url}/v1/models lists no model")
        return served[0]

    async def config(self) -> VllmConfig:
        """The server's configuration of distribution and weight transfer."""
        path = "server_info?config_format=json"
        body = await self._get(path, seconds=_CONFIG_S)
        config = self._decode(ServerInfo, body, path).vllm_config
        self.engines = config.parallel_config.data_parallel_size
        return config

    async def weight_version(self) -> str:
        """Label of the weights it serves; `BASE_WEIGHTS` if none were pushed."""
        return self._decode(
            WeightInfo, await self._get("weight_info"), "weight_info"
        ).weight_version

    async def set_weight_version(self, label: str) -> None:
        """Name the weights that were sent last."""
        await self.post("update_weight_version", {"new_version": label})

    async def reset_prefix_cache(self) -> None:
        """Forget all cached states; requests that run begin again.

        Without that vLLM refuses while they hold some, and answers for its first engine alone; with
        it an engine that refuses is an error.
        """
        await self.post("reset_prefix_cache?reset_running_requests=true", None)

    async def post(self, path: str, payload: object, *, seconds: float = _CONTROL_S) -> bytes:
        """A control call; returns the reply's body."""
        return await self._ask("POST", path, payload, limit=CONTROL_REPLY_LIMIT, seconds=seconds)

    async def _get(self, path: str, *, seconds: float = _CONTROL_S) -> bytes:
        return await self._ask("GET", path, None, limit=CONTROL_REPLY_LIMIT, seconds=seconds)

    async def _ask(
        self,
        method: Literal["GET", "POST"],
        path: str,
        payload: object,
        *,
        limit: int,
        seconds: float | None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        data = None if payload is None else msgspec.json.encode(payload)
        patience = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_S)
        return await self._request(
            method, path, data, limit=limit, patience=patience, headers=headers
        )

    def _away(self, message: str) -> Exception:
        return EngineLostError(message)

    def _broken(self, message: str) -> Exception:
        return SamplerError(message)

    def _refusal(self, path: str, status: int, detail: str, wanted: int = 200) -> Exception:
        if status == 404 and not path.startswith("v1/"):
            return SamplerError(
                f"{self.url}/{path} does not exist: start `vllm serve` with VLLM_SERVER_DEV_MODE=1 "
                "in its environment"
            )
        return super()._refusal(path, status, detail, wanted)
