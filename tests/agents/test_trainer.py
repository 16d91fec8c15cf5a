"""TRL's trainer with an environment, rollout functions of both forms, and the documented one."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from trl import GRPOConfig

from miner.agents import (
    CodeAgentEnvironment,
    Environment,
    generate_rollout_completions,
    legacy_rollout,
)
from miner.agents.client import (
    Client,
    SamplerClient,
    VLLMClientGenerationConfig,
    prompt_texts,
)
from miner.agents.completions import Completions
from miner.agents.trainer import EnvironmentRollout, config_of
from miner.background_loop import BackgroundLoop
from miner.config.errors import ConfigurationError
from miner.inference.transformers.sampler import TransformersSampler
from miner.rollout.completions import prompt_ids
from tests.agents.trainers import Recording, config, trainer
from tests.builders import build_qwen3, build_tokenizer, logprobs_of


def test_an_environments_completions_are_trained(tmp_path: Path) -> None:
    environment = Recording()
    there = trainer(tmp_path, environment=environment)
    before = {name: value.clone() for name, value in there.model.named_parameters()}
    there.train()
    assert sorted(set(environment.prompts)) == ["12 ", "3 "]
    assert len(environment.made) == 4
    assert any(not torch.equal(before[n], v) for n, v in there.model.named_parameters())


def test_outputs_are_not_trained_on(tmp_path: Path) -> None:
    """The policy is made to say code; whatever it says next is its own."""
    tokenizer = build_tokenizer()

    class Telling:
        def __init__(self, client: Client) -> None:
            self._client, self._asked = client, 0
            self.context = client.context

        def generate(self, prompts: Sequence[Any], **given: Any) -> Completions:
            made = self._client.generate(prompts=prompts, **given)
            self._asked += 1
            if self._asked > 1:
                return made
            code = tokenizer("<code>1</code>", add_special_tokens=False)["input_ids"]
            ends = [type(i)(i.prompt_ids, tuple(code), (-1.0,) * len(code), (1,) * len(code),
                            "stop_string") for i in made.items]  # fmt: skip
            return Completions(ends)

    class Echo:
        def execute(self, codes: Sequence[str]) -> list[str]:
            return [f"ran {code}" for code in codes]

    rollout = EnvironmentRollout(CodeAgentEnvironment(Echo(), tokenizer, max_turns=2))
    there = trainer(tmp_path, rollout_func=rollout)
    sampler = TransformersSampler(there.model, tokenizer)
    with BackgroundLoop() as loop:
        rollout._client = Telling(SamplerClient(sampler, tokenizer, loop))
        columns = rollout(["12 ", "3 "], there)
    output = tokenizer("<output>ran 1</output>", add_special_tokens=False)["input_ids"]
    for ids, mask in zip(columns["completion_ids"], columns["env_mask"], strict=True):
        assert [i for i, own in zip(ids, mask, strict=True) if not own] == output
    sampler.close()


def test_an_environment_that_loses_completions_is_an_error(tmp_path: Path) -> None:
    class Losing(Environment):
        def generate(self, *given: Any, **named: Any) -> list[list[int]]:
            return super().generate(*given, **named)[:-1]

    with pytest.raises(ConfigurationError, match=r"Losing.generate returned 3 .* for 4 prompts"):
        trainer(tmp_path, environment=Losing()).train()


def test_what_cannot_be_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="exclude each other"):
        trainer(tmp_path, environment=Environment(), rollout_func=lambda prompts, trainer: {})


def test_lists_without_logprobs_are_trained_under_vllms_defaults(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TRL's trainer itself takes the step: it would subtract the missing log-probabilities."""

    class Plain(Environment):
        def generate(self, *given: Any, **named: Any) -> list[list[int]]:
            return [list(ids) for ids in super().generate(*given, **named)]

    there = trainer(tmp_path, environment=Plain())
    there.train()  # without vLLM nothing needs them; the client is made
    assert there.vllm_importance_sampling_correction
    there.use_vllm, there._last_loaded_step = True, -1
    there.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    there.args.max_steps = 2  # the second one has no correction left to switch off
    before = {name: value.clone() for name, value in there.model.named_parameters()}
    there.train()
    assert not there.vllm_importance_sampling_correction
    assert caplog.text.count("Plain.generate returned lists without log-probabilities") == 1
    assert any(not torch.equal(before[n], v) for n, v in there.model.named_parameters())


def test_completions_with_other_ids_are_refused(tmp_path: Path) -> None:
    class Cut(Environment):
        def generate(self, *given: Any, **named: Any) -> Completions:
            found = super().generate(*given, **named)
            for ids in found:
                ids[:] = [5, 6]
            return found

    rollout = EnvironmentRollout(Cut())
    with pytest.raises(ConfigurationError, match=r"Cut.generate changed the ids .*plain lists"):
        rollout(["12 ", "3 "], trainer(tmp_path, rollout_func=rollout))


def test_parameters_of_generation_reach_the_environment(tmp_path: Path) -> None:
    environment = Recording()
    args = config(tmp_path, generation_kwargs={"stop": "9", "max_tokens": 3})
    trainer(tmp_path, environment=environment, args=args).train()
    assert (environment.config.stop, environment.config.max_tokens) == (["9"], 3)
    regex = config(tmp_path, vllm_structured_outputs_regex="[ab]+", top_p=0.5)
    made = config_of(regex, stop=["a", "b"])
    assert (made.guided_decoding_regex, made.stop, made.top_p) == ("[ab]+", ["a", "b"], 0.5)


@pytest.mark.parametrize("ignored", ["seed", "n", "structured_outputs", "stop_strings"])
def test_parameters_of_generation_that_would_be_ignored_are_refused(
    tmp_path: Path, ignored: str
) -> None:
    args = config(tmp_path, use_vllm=True, generation_kwargs={"top_p": 0.9, ignored: 2})
    with pytest.raises(ConfigurationError, match=rf"^{ignored}=2 .*would be ignored"):
        trainer(tmp_path, environment=Environment(), args=args)


def test_prompts_are_rendered_with_the_arguments_of_the_template() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{{ mark }}"
    there = SimpleNamespace(processing_class=tokenizer, chat_template_kwargs={"mark": "!"})
    assert prompt_texts([[{"role": "user", "content": "a"}], "b"], there) == ["a!", "b"]


def test_a_prompt_begins_with_one_bos_token() -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    assert tokenizer("12 ")["input_ids"][0] == bos
    assert prompt_ids(tokenizer, "12 ") == prompt_ids(tokenizer, "<s>12 ")
    assert prompt_ids(tokenizer, "12 ").count(bos) == 1
    asked: list[Any] = []

    class Asked:
        context = 1000

        def generate(self, prompts: Any, **_: Any) -> Completions:
            asked.extend(prompts)
            return Completions([])

    environment = CodeAgentEnvironment(Mock(), tokenizer)
    environment.generate(Asked(), VLLMClientGenerationConfig(max_tokens=8), ["12 ", "<s>12 "])
    with BackgroundLoop() as loop, TransformersSampler(build_qwen3(), tokenizer) as sampler:
        client = SamplerClient(sampler, tokenizer, loop)
        asked += client.generate(["12 ", "<s>12 "], max_tokens=1).prompt_ids
    assert asked == [prompt_ids(tokenizer, "12 ")] * 4


def test_a_distribution_that_is_not_trained_is_refused() -> None:
    tokenizer = build_tokenizer()
    with BackgroundLoop() as loop, TransformersSampler(build_qwen3(), tokenizer) as sampler:
        client = SamplerClient(sampler, tokenizer, loop)
        for name, value in {"top_p": 0.9, "min_p": 0.1, "top_k": 5}.items():
            with pytest.raises(ConfigurationError, match=name):
                client.generate(["1"], **{name: value})
        assert len(client.generate(["1", "2"], n=3, max_tokens=2)) == 6


def made(prompts: Sequence[Any], **more: Any) -> dict[str, list[Any]]:
    count = len(prompts)
    return {
        "prompt_ids": [[5, 6]] * count, "completion_ids": [[7, 8, 1]] * count,
        "logprobs": [[-1.0] * 3] * count, **more,
    }  # fmt: skip


@pytest.mark.parametrize("repeated", [False, True])
def test_a_rollout_function_of_the_first_form_runs_and_its_columns_reach_rewards(
    tmp_path: Path, repeated: bool
) -> None:
    """It gets each prompt once, and `n` completions of each come back."""
    seen: dict[str, Any] = {}

    def rollout_func(prompts, args, processing_class):  # type: ignore[no-untyped-def]
        seen["given"] = (type(args), processing_class)
        seen["prompts"] = prompts
        n = args.num_generations
        columns = made(prompts * n, env_reward=[0.25 * k for k in range(n * len(prompts))])
        ids = [[k] for k in range(len(prompts)) for _ in range(n if repeated else 1)]
        return {**columns, "prompt_ids": ids}

    def reward_from_env(completions, **kwargs):  # type: ignore[no-untyped-def]
        rewards = kwargs.get("env_reward", [])
        seen["rewards"] = [float(r) for r in rewards] if rewards else [0.0] * len(completions)
        return seen["rewards"]

    there = trainer(
        tmp_path, rollout_func=legacy_rollout(rollout_func), reward_funcs=[reward_from_env]
    )
    there.train()
    assert seen["given"] == (GRPOConfig, there.processing_class)
    assert sorted(seen["prompts"]) == ["12 ", "3 "]
    assert seen["rewards"] == [0.0, 0.25, 0.5, 0.75]
    columns = legacy_rollout(rollout_func)(["a", "a", "b", "b"], there)
    assert columns["prompt_ids"] == [[0], [0], [1], [1]]
    with pytest.raises(ConfigurationError, match="not whole groups of 2"):
        legacy_rollout(rollout_func)(["a", "b", "b"], there)

    def with_more(client, prompts, args, processing_class, env=None):  # type: ignore[no-untyped-def]
        return rollout_func(prompts, args, processing_class)

    bound = legacy_rollout(functools.partial(with_more, "client"))
    assert bound(["a", "a", "b", "b"], there) == columns


def test_a_rollout_function_of_todays_form_gets_the_trainer() -> None:
    there = object()

    def rollout_func(prompts, trainer):  # type: ignore[no-untyped-def]
        return made(prompts, seen=[trainer] * len(prompts))

    assert legacy_rollout(rollout_func)(["a"], there)["seen"] == [there]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"prompt_ids": [[1]], "completion_ids": [[1]]}, "no 'logprobs'"),
        (made("ab"), "2 entries of 'prompt_ids' for 1 completions"),
        (made("a", env_reward=[]), "0 entries of 'env_reward'"),
    ],
)
def test_what_a_rollout_function_returns_is_checked(columns: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        legacy_rollout(lambda prompts, trainer: columns)(["a"], None)


def test_a_function_of_no_known_form_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes 1 arguments"):
        legacy_rollout(lambda prompts: {})


def test_trls_helper_of_rollout_functions_samples_the_trained_model(tmp_path: Path) -> None:
    def rollout_func(prompts, trainer):  # type: ignore[no-untyped-def]
        rows = generate_rollout_completions(trainer, prompts)
        return {key: [row[key] for row in rows] for key in rows[0]}

    seen: list[str] = []

    def reward(completions, text, **_):  # type: ignore[no-untyped-def]
        seen.extend(text)
        assert text == completions
        return [float(len(each)) for each in text]

    there = trainer(tmp_path, rollout_func=legacy_rollout(rollout_func), reward_funcs=reward)
    there.train()
    assert len(seen) == 4
    chat = [{"role": "user", "content": "12 "}]
    overrides = {"max_tokens": 3, "temperature": 0.7}
    plain, *chats = generate_rollout_completions(
        there, ["12 ", chat], generation_overrides=overrides
    ) + generate_rollout_completions(there, ["12 "], as_chat=True)
    tokenizer = there.processing_class
    rendered = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert [row["prompt_ids"] for row in chats] == [tokenizer(rendered)["input_ids"]] * 2
    ids = plain["completion_ids"]
    assert (plain["prompt_ids"], len(ids) <= 3) == (tokenizer("12 ")["input_ids"], True)
    expected = logprobs_of(there.model, plain["prompt_ids"], ids, 0.7)
    assert plain["logprobs"] == pytest.approx(expected, abs=1e-4)
    assert plain["text"] == tokenizer.decode(ids, skip_special_tokens=True)
    greedy = {"max_tokens": 3, "temperature": 0.0}
    first, second = generate_rollout_completions(there, ["12 "] * 2, generation_overrides=greedy)
    assert first == second
    with pytest.raises(ConfigurationError, match=r"^logprobs=5 .*would be ignored"):
        generate_rollout_completions(there, ["12 "], generation_overrides={"logprobs": 5})


def test_processes_draw_different_completions_of_a_prompt(tmp_path: Path) -> None:
    model, tokenizer, drawn = build_qwen3(), build_tokenizer(), []
    for rank in (0, 1):
        ranks = SimpleNamespace(num_processes=2, process_index=rank, unwrap_model=lambda m: m)
        there = SimpleNamespace(
            args=config(tmp_path), accelerator=ranks, model=model, processing_class=tokenizer
        )
        client = EnvironmentRollout(Recording()).client(there)
        drawn.append(list(client.generate(prompts=["12 "] * 4, max_tokens=6)))
    assert drawn[0] != drawn[1]


DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "rollout_functions.md"


def test_the_documents_example_trains(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    example: dict[str, Any] = {}
    exec(compile(code, str(DOCUMENT), "exec"), example)
    model = build_qwen3()
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    there = example["train"](model, build_tokenizer(), str(tmp_path), steps=2)
    rewards = [entry["reward"] for entry in there.state.log_history if "reward" in entry]
    after = torch.cat([p.detach().flatten() for p in there.model.parameters()])
    assert there.state.global_step == 2
    assert all(reward < 0 for reward in rewards)
    assert rewards
    assert not torch.equal(before, after)
