"""A whole rollout: what the rows say is what a trainer's own forward says."""

from itertools import compress

import pytest

from miner.background_loop import BackgroundLoop
from miner.inference.sampler import SamplingParams
from miner.inference.transformers.sampler import TransformersSampler
from miner.rollout.episode import EpisodeParams, sampled
from miner.rollout.groups import Group
from miner.rollout.renderer import ChatRenderer
from miner.rollout.scheduler import Scheduler
from miner.rollout.stats import RolloutStats
from tests.builders import (
    THINK_STRIPPING,
    CountingEnvironment,
    ScriptedSource,
    build_qwen3,
    build_task,
    build_tokenizer,
    logprobs_of,
)


@pytest.mark.parametrize("template", [None, THINK_STRIPPING], ids=["chatml", "think"])
def test_logprobs_of_rows_are_those_of_a_plain_forward(template):
    tokenizer = build_tokenizer(template) if template else build_tokenizer()
    model = build_qwen3(len(tokenizer)).train()
    source = ScriptedSource(
        lambda number, avoid, on_close: CountingEnvironment(4, on_close=on_close), capacity=16
    )
    params = EpisodeParams(SamplingParams(max_tokens=6), max_tokens=1000)
    with BackgroundLoop() as loop, TransformersSampler(model, tokenizer) as sampler:
        scheduler = Scheduler(source, sampled(sampler, ChatRenderer(tokenizer), params))
        results = loop.run(scheduler.run([Group(build_task(seed=i), 4) for i in range(6)]))
    assert model.training
    stats = RolloutStats.of(results)
    assert (stats.episodes, stats.replies, stats.lost_episodes) == (24, 96, 0)
    rows = [row for result in results for t in result.trajectories for row in t.rows]
    assert len(rows) >= 24
    model.eval()
    for row in rows:
        expected = logprobs_of(model, row.prompt_ids, row.completion_ids)
        found, wanted = (list(compress(p, row.loss_mask)) for p in (row.logprobs, expected))
        assert found == pytest.approx(wanted, abs=1e-4)
