"""The interface's environment, without what was wrong with it when it was proposed."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from miner.agents import (
    CodeAgentEnvironment,
    Completions,
    LocalExecuter,
    VLLMClientGenerationConfig,
)
from miner.agents.client import SamplerClient
from miner.agents.completions import Completion
from miner.agents.executers import Executer
from miner.background_loop import BackgroundLoop
from miner.config.errors import ConfigurationError
from miner.environments import InfrastructureError
from miner.executors import Execution
from miner.inference.transformers.sampler import TransformersSampler
from tests.builders import build_qwen3, build_tokenizer

TOKENIZER = build_tokenizer()
CONFIG = VLLMClientGenerationConfig(max_tokens=64)


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def text_of(ids: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(ids), skip_special_tokens=True))


@dataclass
class ScriptedClient:
    """Replies with the text or ids that `reply` makes of a prompt's text."""

    reply: Callable[[str], str | Sequence[int]]
    asked: list[dict[str, Any]] = field(default_factory=list)
    context: int = 10_000

    def generate(self, prompts: Sequence[str | Sequence[int]], **config: Any) -> Completions:
        self.asked.append(config)
        return Completions([self._one(p) for p in prompts for _ in range(config["n"])])

    def _one(self, prompt: str | Sequence[int]) -> Completion:
        before = ids_of(prompt) if isinstance(prompt, str) else tuple(prompt)
        said = self.reply(text_of(before))
        ids = ids_of(said) if isinstance(said, str) else tuple(said)
        stopped = "</code>" in text_of(ids)
        ids = ids if stopped else (*ids, TOKENIZER.eos_token_id)
        ending = "stop_string" if stopped else "stop"
        return Completion(before, ids, (-0.5,) * len(ids), (1,) * len(ids), ending)


class Doubling:
    """An executer whose programs are numbers."""

    def execute(self, codes: Sequence[str]) -> list[str]:
        return [str(2 * int(code.split("\n")[-1])) for code in codes]


def script(*replies: str | Sequence[int]) -> ScriptedClient:
    left = iter(replies)
    return ScriptedClient(lambda _: next(left))


def marked(completions: Completions, at: int = 0) -> str:
    """What is trained on in a completion, everything else as a dot a token."""
    item = completions.items[at]
    return "".join(text_of([i]) if own else "." for i, own in zip(item.ids, item.mask, strict=True))


def test_the_output_is_written_behind_the_code_and_generation_continues() -> None:
    client = script("<code>21</code>", "so 42")
    [text] = CodeAgentEnvironment(Doubling(), TOKENIZER).run_agent(client, CONFIG, ["ask "])
    assert text == "<code>21</code><output>42</output>so 42"
    assert [config["stop"] for config in client.asked] == [["</code>"]] * 2


def test_sampled_ids_are_never_tokenised_again() -> None:
    word = next(text for i in range(300, 400) if len(text := text_of([i])) > 1)
    odd = [i for letter in f"{word}<code>21</code>" for i in ids_of(letter)]  # a token a letter
    assert tuple(odd) != ids_of(text_of(odd))
    made = CodeAgentEnvironment(Doubling(), TOKENIZER).generate(script(odd, "42"), CONFIG, ["ask "])
    assert made[0][: len(odd)] == odd
    assert [len(row) for row in made] == [len(row) for row in made.logprobs]


def test_a_reply_that_forges_an_output_is_trained_like_any_other() -> None:
    forged = "<output>1</output><code>21</code>"
    made = CodeAgentEnvironment(Doubling(), TOKENIZER).generate(
        script(forged, "<output>7</output>"), CONFIG, ["ask "]
    )
    dots = "." * len(ids_of("<output>42</output>"))
    assert marked(made) == f"{forged}{dots}<output>7</output>"
    assert made.logprobs[0].count(0.0) == len(dots)


def test_results_belong_to_their_prompts_however_long_each_takes() -> None:
    def reply(shown: str) -> str:
        number = int(shown.split()[1])
        turns = shown.count("<output>")
        return f"<code>{number}</code>" if turns < number % 4 else f"I am {number}"

    prompts = [f"ask {number} now" for number in range(12)]
    made = CodeAgentEnvironment(Doubling(), TOKENIZER).run_agent(
        ScriptedClient(reply), VLLMClientGenerationConfig(n=2), prompts
    )
    assert [text.split(" ")[-1] for text in made] == [str(n) for n in range(12) for _ in "ab"]
    for number, text in enumerate(made[::2]):
        assert text.count(f"<output>{2 * number}</output>") == number % 4


def test_the_loop_ends() -> None:
    client = ScriptedClient(lambda _: "<code>1</code>")
    [text] = CodeAgentEnvironment(Doubling(), TOKENIZER, max_turns=3).run_agent(
        client, CONFIG, ["ask "]
    )
    assert text == "<code>1</code><output>2</output>" * 2 + "<code>1</code>"
    assert len(client.asked) == 3


def test_an_executer_that_is_down_is_not_an_output() -> None:
    class Down:
        def execute(self, codes: Sequence[str]) -> list[str]:
            raise InfrastructureError("the sandbox is down")

    with pytest.raises(InfrastructureError, match="the sandbox is down"):
        CodeAgentEnvironment(Down(), TOKENIZER).run_agent(
            script("<code>1</code>"), CONFIG, ["ask "]
        )


def test_a_program_is_run_again_where_its_executor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that would be over in a second must not end a whole training run."""

    class Flaky:
        name = "flaky"
        codes: list[str]

        async def run(self, code: str) -> Execution:
            self.codes.append(code)
            if self.codes.count(code) < 3:
                raise InfrastructureError("busy", server=self.name)
            return Execution(code)

        async def close(self) -> None:
            pass

    pauses = "miner.environments.code_agent.environment.growing_pauses"
    monkeypatch.setattr(pauses, lambda: itertools.repeat(0.0, 3))
    flaky = Flaky()
    flaky.codes = []
    executer = Executer(flaky)
    assert executer.execute(["1", "2"]) == ["1", "2"]
    assert sorted(flaky.codes) == ["1", "1", "1", "2", "2", "2"]
    executer.close()


def test_tags_and_tools_are_ones_own() -> None:
    environment = CodeAgentEnvironment(Doubling(), TOKENIZER, "[run]", "[/run]", "x = 1", "[", "]")
    left = iter([Completion((5,), ids_of("[run]4[/run]"), (-1.0,) * 99, (1,) * 99, "stop_string")])

    class Client:
        context = 10_000

        def generate(self, prompts: Sequence[Any], **config: Any) -> Completions:
            item = next(left, None)
            return Completions([item or Completion((5,), (7,), (-1.0,), (1,), "stop")])

    [text] = environment.run_agent(Client(), CONFIG, ["ask "])
    assert text.startswith("[run]4[/run][8]")


def test_the_local_executer_runs_programs_in_order_and_keeps_failures_apart() -> None:
    executer = LocalExecuter()
    texts = executer.execute(["import time; time.sleep(0.2); print(1)", "print(2)", "1 / 0"])
    assert texts[:2] == ["1", "2"]
    assert texts[2].endswith("ZeroDivisionError: division by zero")
    executer.close()
    executer.close()


def test_no_turns_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_turns is 0"):
        CodeAgentEnvironment(Doubling(), TOKENIZER, max_turns=0)


class Printing:
    """An executer whose programs print `count` digits."""

    def __init__(self, count: int) -> None:
        self.count = count

    def execute(self, codes: Sequence[str]) -> list[str]:
        return ["7" * self.count for _ in codes]


def test_a_long_output_is_cut() -> None:
    whole = CodeAgentEnvironment(Printing(40), TOKENIZER)
    [text] = whole.run_agent(script("<code>1</code>", "so"), CONFIG, ["ask "])
    assert text == f"<code>1</code><output>{'7' * 40}</output>so"
    tokens = len(ids_of("7" * 40))
    cut = CodeAgentEnvironment(Printing(16_000), TOKENIZER, max_output_tokens=tokens)
    [text] = cut.run_agent(script("<code>1</code>", "so"), CONFIG, ["ask "])
    assert text == f"<code>1</code><output>{'7' * 40}</output>so"


def test_replies_as_long_as_a_completion_are_refused() -> None:
    """The output of each program would be left out."""
    environment = CodeAgentEnvironment(Printing(1), TOKENIZER, max_completion_tokens=64)
    with pytest.raises(ConfigurationError, match="max_tokens=64 leave no room"):
        environment.generate(script("<code>1</code>"), CONFIG, ["ask "])


def test_a_completion_without_room_for_a_reply_ends_and_the_others_continue() -> None:
    replies = {"long ": "9" * 60 + "<code>1</code>", "short ": "<code>1</code>"}

    def reply(prompt: str) -> str:
        return replies.get(prompt, "so")

    output = len(ids_of("<output>7</output>"))
    limit = len(ids_of(replies["long "])) + output + CONFIG.max_tokens
    for room, ending, replied in ((limit - 1, "length", False), (limit, "stop", True)):
        environment = CodeAgentEnvironment(Printing(1), TOKENIZER, max_completion_tokens=room)
        made = environment.generate(ScriptedClient(reply), CONFIG, ["long ", "short "])
        assert made.items[0].finish_reason == ending
        assert text_of(made[0]).endswith("so") == replied
        assert text_of(made[1]) == "<code>1</code><output>7</output>so"


def test_a_completion_that_fills_the_models_context_ends() -> None:
    class Coding(SamplerClient):
        """The model, which is made to write code in every reply."""

        def generate(self, prompts: Sequence[Any], **config: Any) -> Completions:
            made, code = super().generate(prompts, **config), ids_of("<code>1</code>")
            row = ((-0.5,) * len(code), (1,) * len(code), "stop_string")
            return Completions([Completion(each.prompt_ids, code, *row) for each in made.items])

    turn = len(ids_of("<code>1</code><output>7</output>"))
    model = build_qwen3(max_position_embeddings=4 * turn)
    config = VLLMClientGenerationConfig(max_tokens=turn)
    with BackgroundLoop() as loop, TransformersSampler(model, TOKENIZER) as sampler:
        environment = CodeAgentEnvironment(Printing(1), TOKENIZER)
        made = environment.generate(Coding(sampler, TOKENIZER, loop), config, ["12 ", "3 " * turn])
    assert [item.finish_reason for item in made.items] == ["length"] * 2
    assert [text_of(item.ids).count("<output>") for item in made.items] == [2, 1]
