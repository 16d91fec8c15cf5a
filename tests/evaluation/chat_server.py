"""An OpenAI-compatible chat endpoint over a model folder and the transformers engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from miner.background_loop import BackgroundLoop
from miner.inference.sampler import SamplingParams
from miner.inference.transformers.sampler import TransformersSampler
from miner.rollout.model_folder import load_model_folder

NAME = "tiny model behind HTTP"


@contextmanager
def served_chat(model: Path, *, max_reply_tokens: int) -> Iterator[str]:
    """Serve the model; yields the base URL, with /v1. Replies end after `max_reply_tokens`."""
    loaded = load_model_folder(model, torch.float32, None)
    with (
        BackgroundLoop() as loop,
        TransformersSampler(loaded.model, loaded.chat.tokenizer) as sampler,
    ):

        async def list_models(request: web.Request) -> web.Response:
            return web.json_response({"data": [{"id": NAME}]})

        async def complete(request: web.Request) -> web.Response:
            asked = await request.json()
            params = SamplingParams(max_reply_tokens, asked["temperature"])
            prompt = loaded.chat.renderer.encode(loaded.chat.renderer.render(asked["messages"]))
            sample = await sampler.sample(prompt, params)
            message = {"role": "assistant", "content": loaded.chat.renderer.reply_text(sample)}
            return web.json_response({"choices": [{"index": 0, "message": message}]})

        app = web.Application()
        app.router.add_get("/v1/models", list_models)
        app.router.add_post("/v1/chat/completions", complete)
        server = TestServer(app)
        loop.run(server.start_server())
        try:
            yield str(server.make_url("/v1"))
        finally:
            loop.run(server.close())
