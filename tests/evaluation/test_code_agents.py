"""Evaluating an agent: replies end at its stop strings, and its own message goes on."""

from collections.abc import AsyncIterator, Sequence

import pytest

from miner.environments import EpisodeTask, Message
from miner.environments.code_agent import Arithmetic, CodeAgentSource, Form
from miner.environments.code_agent.arithmetic import number_of
from miner.evaluation.llm_url import LlmUrlPolicy, ended_at
from miner.evaluation.policies import SamplerPolicy
from miner.evaluation.results import EvaluationResult
from miner.evaluation.runner import evaluate
from miner.executors import LocalSandbox
from miner.inference.sampler import SamplingParams
from miner.reporting.replay import replay_of
from miner.reporting.replay_page import replay_html
from miner.rollout.renderer import ChatRenderer
from tests.builders import CHATML, ScriptedSampler, build_sample, build_tokenizer
from tests.evaluation.test_llm_url import Endpoint, endpoint  # noqa: F401

TASK = EpisodeTask("arithmetic", number_of(6, "times", 7), 1, "none")
CODE, OUTPUT = "<code>print(6 * 7)</code>", "<output>42</output>"
QUESTION = {"role": "user", "content": "6 times 7 ?"}


@pytest.fixture
async def sandbox() -> AsyncIterator[LocalSandbox]:
    sandbox = LocalSandbox()
    yield sandbox
    await sandbox.close()


def inline(sandbox: LocalSandbox) -> CodeAgentSource:
    return CodeAgentSource(Arithmetic(), sandbox, form=Form.INLINE)


def shown(result: EvaluationResult) -> list[tuple[tuple[str, ...], str]]:
    [episode] = result.episodes
    return [(reply.shown, reply.text) for reply in episode.replies]


TOKENIZER = build_tokenizer(CHATML)


def saying(*texts: str) -> ScriptedSampler:
    """A sampler that says these texts."""
    ids = (TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in texts)
    return ScriptedSampler(lambda _: build_sample(next(ids)))


def policy_of(sampler: ScriptedSampler) -> SamplerPolicy:
    return SamplerPolicy("model", sampler, ChatRenderer(TOKENIZER), SamplingParams(64))


async def test_a_model_stops_where_the_environment_wants_and_continues(
    sandbox: LocalSandbox,
) -> None:
    sampler = saying(f"{CODE}.", "42.")  # the end token of each is not text
    result = await evaluate(policy_of(sampler), inline(sandbox), [TASK])
    assert shown(result) == [(("6 times 7 ?",), CODE), ((OUTPUT,), "42")]
    assert result.episodes[0].score == 1.0
    [exchanges] = sampler.exchanges.values()
    first, second = (TOKENIZER.decode(list(prompt)) for prompt, _ in exchanges)
    assert sampler.params[0].stop == ("</code>",)
    assert second == first + CODE + OUTPUT


async def test_a_model_that_fills_its_context_scores_0(sandbox: LocalSandbox) -> None:
    sampler = saying("<code>print(*range(99))</code>.", "42.")
    policy = SamplerPolicy("model", sampler, ChatRenderer(TOKENIZER), SamplingParams(64), 200)
    [episode] = (await evaluate(policy, inline(sandbox), [TASK])).episodes
    assert (episode.score, episode.failure, episode.turns) == (0.0, "invalid_replies", 1)
    small = SamplerPolicy("model", sampler, ChatRenderer(TOKENIZER), SamplingParams(64), 64)
    [episode] = (await evaluate(small, inline(sandbox), [TASK])).episodes
    assert (episode.score, episode.failure) == (None, "too_long")


async def test_an_endpoint_is_asked_to_go_on_and_cut_off(
    endpoint: Endpoint,  # noqa: F811
    sandbox: LocalSandbox,
) -> None:
    said = [f"{CODE}<output>41</output> 41", " 42"]
    endpoint.answers = [(200, {"choices": [{"message": {"content": text}}]}) for text in said]
    policy = LlmUrlPolicy(endpoint.url, "named")
    try:
        result = await evaluate(policy, inline(sandbox), [TASK])
    finally:
        await policy.close()
    assert result.episodes[0].score == 1.0
    first, second = endpoint.requests
    assert first["messages"] == [QUESTION]
    assert "continue_final_message" not in first
    own: Message = {"role": "assistant", "content": CODE + OUTPUT}
    assert second["messages"] == [QUESTION, own]
    assert (second["continue_final_message"], second["add_generation_prompt"]) == (True, False)


async def test_an_episode_without_a_board_is_replayed_as_a_transcript(
    sandbox: LocalSandbox,
) -> None:
    source = CodeAgentSource(Arithmetic(), sandbox)
    result = await evaluate(policy_of(saying("<b>42.")), source, [TASK])
    replay = replay_of(result, result.episodes[0])
    assert [(move.by, move.label) for move in replay.moves] == [
        ("environment", "6 times 7 ?"),
        ("agent", ""),
    ]
    page = replay_html(replay)
    assert "&lt;b&gt;4" in page
    assert "6 times 7 ?" in page
    assert "model in arithmetic" in page
    assert result.by_seat == {}


@pytest.mark.parametrize(
    ("stop", "left"),
    [((), "a|b.c"), (("|",), "a|"), ((".", "|"), "a|"), (("x",), "a|b.c"), (("b.",), "a|b.")],
)
def test_a_reply_ends_with_the_first_stop_in_it(stop: Sequence[str], left: str) -> None:
    assert ended_at("a|b.c", stop) == left
