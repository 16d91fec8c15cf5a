"""`python -m miner agent`: ask a model something that it may write code for."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def agent_command(
    model: Annotated[Path, typer.Option(help="Folder of the model (`from_pretrained`).")],
    prompt: Annotated[list[str], typer.Option(help="What to ask; several are asked at once.")],
    executor: Annotated[
        Literal["local", "e2b"], typer.Option(help="What runs the code.")
    ] = "local",
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of each reply.")] = 256,
    max_turns: Annotated[int, typer.Option(min=1, help="Replies to each prompt.")] = 8,
) -> None:
    """Let a model answer prompts; code that it writes between <code> and </code> is run.

    What it wrote and what its programs printed comes out as one text per prompt.
    """
    import torch  # seconds

    from miner.agents import CodeAgentEnvironment, E2BExecuter, LocalExecuter
    from miner.agents.client import SamplerClient, VLLMClientGenerationConfig
    from miner.background_loop import BackgroundLoop
    from miner.inference.transformers.sampler import TransformersSampler
    from miner.rollout.model_folder import load_model_folder

    executer = E2BExecuter() if executor == "e2b" else LocalExecuter()
    loaded = load_model_folder(model, torch.float32)
    environment = CodeAgentEnvironment(executer, loaded.chat.tokenizer, max_turns=max_turns)
    config = VLLMClientGenerationConfig(temperature=temperature, max_tokens=max_tokens)
    asked = [loaded.chat.renderer.render([{"role": "user", "content": text}]) for text in prompt]
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with (
        BackgroundLoop() as loop,
        TransformersSampler(loaded.model, loaded.chat.tokenizer) as sampler,
    ):
        client = SamplerClient(sampler, loaded.chat.tokenizer, loop)
        try:
            answers = environment.run_agent(client, config, asked)
        finally:
            executer.close()
    for text, answer in zip(prompt, answers, strict=True):
        console.print(f"> {text}\n{without_controls(answer)}\n")


def without_controls(text: str) -> str:
    """`text` with what would control a terminal escaped, such as what programs print."""
    return _CONTROLS.sub(lambda control: repr(control[0])[1:-1], text)
