"""Environments of the interface: `generate` in the trainer's loop, `run_agent` to look at.

Invariants:
* completions come in the prompts' order, `n` of each, and each holds its own outputs;
* sampled ids stay as they were sampled; outputs are known by where they came from, so that a reply
  that forges `<output>` cannot change what is trained;
* a completion has `max_turns` replies at most.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from miner.agents.client import Client, Prompt, VLLMClientGenerationConfig
from miner.agents.completions import Completion, Completions
from miner.config.errors import ConfigurationError
from miner.environments.code_agent.form import Tags


class Environment:
    """Loop that makes completions; the base class only generates."""

    def generate(
        self,
        vllm_client: Client,
        generation_config: VLLMClientGenerationConfig,
        prompts: Sequence[str],
    ) -> list[list[int]]:
        """Token ids of `generation_config.n` completions of each prompt, in the prompts' order."""
        return vllm_client.generate(prompts=prompts, **vars(generation_config))


class CodeExecuter(Protocol):
    """Runner of programs."""

    def execute(self, codes: Sequence[str]) -> list[str]:
        """One text for each program, in order."""


class CodeAgentEnvironment(Environment):
    """Completions in which the policy may run code: the output is written right behind it.

    Args:
        code_executer: the executor that runs it.
        tokenizer: the model's; outputs, and only these, are tokenised with it.
        parsing_string, stop_string: text before and after code.
        tools_script: code that runs before the policy's.
        output_string_start, output_string_end: text before and after an output.
        max_turns: replies of one completion; the code of the last one is not run.
    """

    def __init__(
        self,
        code_executer: CodeExecuter,
        tokenizer: PreTrainedTokenizerBase,
        parsing_string: str = "<code>",
        stop_string: str = "</code>",
        tools_script: str = "",
        output_string_start: str = "<output>",
        output_string_end: str = "</output>",
        *,
        max_turns: int = 8,
    ) -> None:
        if max_turns < 1:
            raise ConfigurationError(
                f"max_turns is {max_turns}: a completion has one reply at least"
            )
        self.code_executer = code_executer
        self.tokenizer = tokenizer
        self.tags = Tags(parsing_string, stop_string, output_string_start, output_string_end)
        self.tools_script = tools_script
        self.max_turns = max_turns

    def generate(
        self,
        vllm_client: Client,
        generation_config: VLLMClientGenerationConfig,
        prompts: Sequence[str],
    ) -> Completions:
        """Raises: `InfrastructureError` where the executer is down."""
        stop = [self.tags.code_end, *(generation_config.stop or ())]
        first = replace(generation_config, stop=stop)
        done = list(vllm_client.generate(prompts=prompts, **vars(first)).items)
        fresh = dict(enumerate(done))  # by place: the latest reply of those that may continue
        for _ in range(self.max_turns - 1):
            codes = {at: code for at, reply in fresh.items() if (code := self._code(reply))}
            if not codes:
                break
            outputs = self.code_executer.execute([self._program(code) for code in codes.values()])
            for at, output in zip(codes, outputs, strict=True):
                done[at] = done[at].appended(self._ids(self.tags.output(output)))
            asked: list[Prompt] = [done[at].prompt_ids + done[at].ids for at in codes]
            more = vllm_client.generate(prompts=asked, **vars(replace(first, n=1)))
            fresh = dict(zip(codes, more.items, strict=True))
            for at, reply in fresh.items():
                done[at] = done[at].sampled(reply)
        return Completions(done)

    def run_agent(
        self,
        vllm_client: Client,
        generation_config: VLLMClientGenerationConfig,
        prompts: Sequence[str],
    ) -> list[str]:
        """The completions as texts, outputs included."""
        completions = self.generate(vllm_client, generation_config, prompts)
        return [self._text(ids) for ids in completions]

    def _code(self, reply: Completion) -> str | None:
        """The code that a reply ended on; None where it ended in another way."""
        if reply.finish_reason != "stop_string":
            return None
        return self.tags.code(self._text(reply.ids))

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _program(self, code: str) -> str:
        return f"{self.tools_script}\n{code}" if self.tools_script else code

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
