"""The sampler and the weight transfer against `vllm serve` itself, on a CPU."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from scipy.stats import chisquare
from torch import softmax
from transformers import Qwen3ForCausalLM

from examples.code_agent_environment import look
from examples.custom_environment import MyCustomEnv
from miner.agents import (
    CodeAgentEnvironment,
    LocalExecuter,
    VLLMClient,
    VLLMClientGenerationConfig,
)
from miner.background_loop import BackgroundLoop
from miner.inference.merged_weights import weights_on_cpu
from miner.inference.sampler import SamplingParams
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.server_sampler import VllmServerSampler
from miner.inference.vllm.weight_sync import (
    WeightSync,
    WeightSyncError,
)
from miner.inference.vllm.wire import BASE_WEIGHTS, FILE_BACKEND
from tests.builders import build_tokenizer, next_logits
from tests.entrypoint.two_programs import SIX_GPUS
from tests.real_vllm.here import needs_real_vllm, real_server
from tests.real_vllm.models import assert_sampled_from, model, save_model
from tests.rollout.sampling import PROMPTS, RULES

needs_real_vllm()
pytestmark = pytest.mark.long


ENGINES = 2


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all tests, as planned for six GPUs: the head is tied, two engines serve."""
    folder = tmp_path_factory.mktemp("real-vllm")
    with real_server(save_model(folder / "base"), folder / "log", SIX_GPUS) as url:
        yield url


class Trainer:
    """The trainer's side of one server: its weights, and what it samples with them."""

    def __init__(self, url: str, loop: BackgroundLoop, folder: Path) -> None:
        self.loop = loop
        self.server = VllmServer(url)
        self.sampler = VllmServerSampler(self.server, RULES)
        self.weights = lambda: weights_on_cpu(model(0))
        self.sync = WeightSync(lambda: self.weights(), self.server, loop, folder, 60.0)

    def push(self, seed: int, label: str) -> Qwen3ForCausalLM:
        """Have the server hold the weights of `seed`."""
        pushed = model(seed)
        self.weights = lambda: weights_on_cpu(pushed)
        self.sync.push(label)
        return pushed

    def check(self, of: Qwen3ForCausalLM, temperature: float = 1.0) -> None:
        """All prompts at once; what is sampled is sampled from `of`."""

        async def ask() -> None:
            asked = SamplingParams(6, temperature)
            samples = await asyncio.gather(*(self.sampler.sample(p, asked) for p in PROMPTS))
            for prompt, sample in zip(PROMPTS, samples, strict=True):
                assert_sampled_from(of, prompt, sample.token_ids, sample.logprobs, temperature)

        self.loop.run(ask())


@pytest.fixture
def trainer(url: str, loop: BackgroundLoop, tmp_path: Path) -> Iterator[Trainer]:
    trainer = Trainer(url, loop, tmp_path)
    yield trainer
    loop.run(trainer.server.close())


def test_draws_of_its_engines_differ(trainer: Trainer) -> None:
    """Both have done the same since they started, and both start with the same seed."""
    config = trainer.loop.run(trainer.server.config())
    assert trainer.server.engines == config.parallel_config.data_parallel_size == ENGINES
    asked = SamplingParams(40, 1.0)
    one, other, again = (
        trainer.loop.run(trainer.sampler.sample(PROMPTS[0], asked, session=session))
        for session in (0, 1, 2)
    )
    assert len({one.token_ids, other.token_ids, again.token_ids}) == 3
    repeated = Trainer(trainer.server.url, trainer.loop, Path())  # with the same seed as the first
    first = trainer.loop.run(repeated.sampler.sample(PROMPTS[0], asked, session=0))
    trainer.loop.run(repeated.server.close())
    assert first.token_ids == one.token_ids


def test_it_answers_the_trainers_questions(trainer: Trainer) -> None:
    config = trainer.loop.run(trainer.server.config())
    assert config.model_config.logprobs_mode == "processed_logprobs"
    assert config.weight_transfer_config is not None
    assert config.weight_transfer_config.backend == FILE_BACKEND
    assert trainer.loop.run(trainer.server.weight_version()) == BASE_WEIGHTS


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_trained_distribution(
    trainer: Trainer, temperature: float
) -> None:
    base = trainer.push(0, "0")
    trainer.check(base, temperature)


def test_sampled_ids_follow_the_trained_distribution(trainer: Trainer) -> None:
    base, draws = trainer.push(0, "0"), 1500

    async def draw_all() -> Counter[int]:
        places = asyncio.Semaphore(64)

        async def draw() -> int:
            async with places:
                sample = await trainer.sampler.sample(PROMPTS[0], SamplingParams(1, 1.5))
                return sample.token_ids[0]

        return Counter(await asyncio.gather(*(draw() for _ in range(draws))))

    seen = trainer.loop.run(draw_all())
    expected = (softmax(next_logits(base, PROMPTS[0]) / 1.5, -1) * draws).tolist()
    common = [token for token, count in enumerate(expected) if count >= 5]
    observed = [seen[token] for token in common]
    frequencies = [expected[token] for token in common]
    rest, rare = draws - sum(observed), draws - sum(frequencies)
    assert chisquare([*observed, rest], [*frequencies, rare]).pvalue > 1e-4


def test_pushed_weights_are_sampled_from_every_one_of_them(trainer: Trainer) -> None:
    """The head too, where it is tied to the embedding; and no cached prefix of older weights."""
    for seed in (1, 2):
        pushed = trainer.push(seed, str(seed))
        assert trainer.loop.run(trainer.server.weight_version()) == str(seed)
        for _ in range(4):  # whichever engine answers
            trainer.check(pushed)


def test_a_push_that_is_refused_is_reported_and_the_next_one_works(trainer: Trainer) -> None:
    trainer.weights = lambda: {"model.norm.weight": model(3).lm_head.weight.detach().clone()}
    with pytest.raises(WeightSyncError, match=r"weights 'broken' did not arrive"):
        trainer.sync.push("broken")
    trainer.check(trainer.push(1, "1"))


def test_requests_without_a_waiting_caller_are_dropped(trainer: Trainer) -> None:
    async def emptied() -> bool:
        said: bool = json.loads(await trainer.server.post("reset_prefix_cache", None))["success"]
        return said

    async def leave() -> None:
        asked = SamplingParams(1000, 1.0)
        tasks = [asyncio.ensure_future(trainer.sampler.sample([5], asked)) for _ in range(16)]
        while await emptied():
            pass  # until they hold some of it
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    trainer.loop.run(leave())
    trainer.check(trainer.push(1, "1"))  # whatever they hold on to at first
    while not trainer.loop.run(emptied()):  # or cancelled ones hold it
        time.sleep(0.05)


def test_the_proposals_examples_run_against_it(
    trainer: Trainer, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of random weights, held to programs: each prints a digit, and reads it."""
    trainer.push(0, "0")
    executer, client, prompts = LocalExecuter(), VLLMClient(url), ["one ", "two "]
    my_env = CodeAgentEnvironment(
        code_executer=executer,
        tokenizer=build_tokenizer(),
        parsing_string="<code>",
        stop_string="</code>",
        max_turns=2,
    )
    gen_config = VLLMClientGenerationConfig(
        n=2, repetition_penalty=1.0, temperature=0.8, top_p=0.9, top_k=10, min_p=0.0,
        max_tokens=32, guided_decoding_regex=r"<code>print\(\d\)</code>",
    )  # fmt: skip
    responses = my_env.run_agent(vllm_client=client, generation_config=gen_config, prompts=prompts)
    program = r"<code>print\((\d)\)</code>"
    assert len(responses) == 4
    for text in responses:
        assert re.fullmatch(rf"{program}<output>\1</output>{program}", text)
    plain = VLLMClientGenerationConfig(n=2, max_tokens=4)
    made = MyCustomEnv("please:").generate(client, plain, prompts)
    assert [0 < len(ids) <= 4 for ids in made] == [True] * 4
    look(my_env, None, build_tokenizer(), prompts, url)
    assert capsys.readouterr().out.count("\n") >= 2
    client.close()
    executer.close()
