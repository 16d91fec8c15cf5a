"""Environments of the interface: `generate` in the trainer's loop, `run_agent` to look at.

Invariants:
* completions come in the prompts' order, `n` of each, and each holds its own outputs;
* sampled ids stay as they were sampled; outputs are known by where they came from, so that a reply
  that forges `<output>` cannot change what is trained;
* a completion has `max_turns` replies and `max_completion_tokens` ids at most, and with its prompt
  it fits the client's context, whatever programs print.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from miner.agents.client import Client, Prompt, VLLMClientGenerationConfig
from miner.agents.completions import Completion, Completions
from miner.config.errors import ConfigurationError
from miner.environments.code_agent.form import Tags
from miner.rollout.completions import prompt_ids


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
        max_output_tokens: tokens of an output, of which the rest is left out.
        max_completion_tokens: a completion in which an output and a whole further reply have no
            room, here or in the client's context, ends before that output, with the finish reason
            "length".
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
        max_output_tokens: int = 1024,
        max_completion_tokens: int = 8192,
    ) -> None:
        if max_turns < 1:
            raise ConfigurationError(
                f"max_turns is {max_turns}: a completion has one reply at least"
            )
        if max_output_tokens < 1:
            raise ConfigurationError(
                f"max_output_tokens is {max_output_tokens}: an output needs one at least"
            )
        self.code_executer = code_executer
        self.tokenizer = tokenizer
        self.tags = Tags(parsing_string, stop_string, output_string_start, output_string_end)
        self.tools_script = tools_script
        self.max_turns = max_turns
        self.max_output_tokens = max_output_tokens
        self.max_completion_tokens = max_completion_tokens

    def generate(
        self,
        vllm_client: Client,
        generation_config: VLLMClientGenerationConfig,
        prompts: Sequence[str],
    ) -> Completions:
        """Raises: `InfrastructureError` where the executer is down, `ConfigurationError` where a
        reply may be as long as a whole completion."""
        if self.max_turns > 1 and generation_config.max_tokens >= self.max_completion_tokens:
            raise ConfigurationError(
                f"replies of max_tokens={generation_config.max_tokens} leave no room for another "
                f"in max_completion_tokens={self.max_completion_tokens}: raise it, or lower "
                "max_tokens (max_completion_length in GRPOConfig)"
            )
        stop = [self.tags.code_end, *(generation_config.stop or ())]
        first = replace(generation_config, stop=stop)
        # encoded here: a client without the tokenizer cannot tell a text that begins with its BOS
        began = [prompt_ids(self.tokenizer, text) for text in prompts]
        done = list(vllm_client.generate(prompts=began, **vars(first)).items)
        fresh = dict(enumerate(done))  # by place: the latest reply of those that may continue
        for _ in range(self.max_turns - 1):
            codes = {at: code for at, reply in fresh.items() if (code := self._code(reply))}
            if not codes:
                break
            outputs = self.code_executer.execute([self._program(code) for code in codes.values()])
            fresh = {}
            for at, output in zip(codes, outputs, strict=True):
                ids = self._output(output)
                room = min(
                    self.max_completion_tokens, vllm_client.context - len(done[at].prompt_ids)
                )
                if len(done[at].ids) + len(ids) + first.max_tokens > room:
                    done[at] = replace(done[at], finish_reason="length")
                else:
                    done[at] = fresh[at] = done[at].appended(ids)
            asked: list[Prompt] = [each.prompt_ids + each.ids for each in fresh.values()]
            if not asked:
                break
            more = vllm_client.generate(prompts=asked, **vars(replace(first, n=1)))
            fresh = dict(zip(fresh, more.items, strict=True))
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

    def _output(self, text: str) -> list[int]:
        """Ids of an output between its marks, cut to `max_output_tokens` without them."""
        ids = self._ids(text)
        if len(ids) > self.max_output_tokens:
            text = str(self.tokenizer.decode(ids[: self.max_output_tokens]))
        return self._ids(self.tags.output(text))

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
