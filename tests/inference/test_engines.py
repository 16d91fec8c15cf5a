"""Weights on their way to a server that samples with them, and what happens when it is lost."""

import asyncio
import gc
import weakref
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from miner.background_loop import BackgroundLoop
from miner.distributed.ranks import Ranks
from miner.inference.engines import EngineMemoryError, TransformersEngine
from miner.inference.merged_weights import weights_on_cpu
from miner.inference.sampler import EngineLostError, SamplingParams
from miner.inference.transformers.sampler import TransformersSampler
from miner.inference.vllm.client import VllmServer
from miner.inference.vllm.colocated_engine import ColocatedEngine
from miner.inference.vllm.colocated_sampler import VllmColocatedSampler
from miner.inference.vllm.server_engine import ServerEngine
from miner.inference.vllm.server_sampler import VllmServerSampler
from miner.inference.vllm.weight_sync import (
    WeightSync,
    WeightSyncError,
)
from miner.rollout.episode import EpisodeParams, sampled
from miner.rollout.groups import Group
from miner.rollout.renderer import ChatRenderer
from miner.rollout.scheduler import RetryParams, Scheduler
from miner.rollout.trajectory import Trajectory
from miner.training.playing import play_through, repeat_until_held
from tests.builders import (
    CountingEnvironment,
    ScriptedSource,
    build_qwen3,
    build_task,
    build_tokenizer,
    logprobs_of,
)
from tests.rollout.sampling import RULES
from tests.training.generation import ColocatedDouble, Server

PROMPT = [5, 6, 7, 8]
UPDATE = [
    "/update_weight_version",  # nobody takes half of them for a model
    *("/start_weight_update", "/update_weights", "/finish_weight_update"),
    "/reset_prefix_cache",
]


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def loop(stack):
    return stack.enter_context(BackgroundLoop())


@pytest.fixture
def server(stack):
    server = Server(stack)
    stack.callback(server.die)
    return server


@pytest.fixture
def model():
    return build_qwen3()


@pytest.fixture
def engine(server, model, loop, stack, tmp_path):
    client = VllmServer(server.url, reply_timeout_s=20)
    engine = ServerEngine(
        VllmServerSampler(client, RULES, pause_s=0.01),
        loop,
        WeightSync(lambda: weights_on_cpu(model), client, loop, tmp_path, 20),
        start_seconds=20,
        ranks=Ranks(),
    )
    stack.callback(engine.close)
    return engine


@torch.no_grad()
def learn(model, amount=0.05):
    for parameter in model.parameters():
        parameter.add_(amount * torch.randn_like(parameter))


def sample(engine, loop):
    return loop.run(engine.sampler.sample(PROMPT, SamplingParams(5)))


def test_samples_come_from_the_weights_of_the_last_step(engine, model, loop, server):
    for step in range(3):
        engine.weights_changed(step)
        with engine.playing():
            drawn = sample(engine, loop)
        assert drawn.weight_version == step
        expected = logprobs_of(model, PROMPT, drawn.token_ids)
        assert drawn.logprobs == pytest.approx(expected, abs=1e-4)
        learn(model)
        stale = logprobs_of(model, PROMPT, drawn.token_ids)
        assert drawn.logprobs != pytest.approx(stale, abs=1e-2)
    assert [version for version, _ in server.stub.completions] == ["default", "1", "2"]
    assert server.paths == [*UPDATE, *UPDATE]


def test_weights_travel_once_per_step_and_leave_nothing_on_the_disk(engine, loop, server, tmp_path):
    engine.weights_changed(1)
    for _ in range(3):
        engine.sync_weights()
        with engine.playing():
            sample(engine, loop)
    assert server.paths.count("/update_weights") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_server_left_over_from_an_earlier_trainer_gets_the_weights(engine, model, loop, server):
    server.stub.weights.version = "17"
    with engine.playing():
        assert sample(engine, loop).weight_version == 0
    assert server.stub.weights.version == "0"
    assert server.paths.count("/update_weights") == 1


def test_a_push_that_hangs_ends_in_one_line_with_its_position(engine, server):
    server.stub.hung.add("/update_weights")
    engine._sync._seconds = 0.5
    engine.weights_changed(4)
    with pytest.raises(WeightSyncError) as caught:
        engine.sync_weights()
    line = str(caught.value)
    assert f"weights '4' did not arrive: {server.url}/update_weights did not answer in time" in line
    assert f"{server.url} answers and holds 'on their way'" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"/finish_weight_update": 500}, "/finish_weight_update failed with HTTP 500"),
        ({}, "calls its weights 'on their way' afterwards"),
    ],
    ids=["refused", "not confirmed"],
)
def test_a_push_that_is_not_finished_has_failed(broken, words, engine, server, caplog):
    server.stub.broken |= broken
    server.stub.weights.finish = lambda version: None
    engine.weights_changed(4)
    with pytest.raises(WeightSyncError):
        engine.sync_weights()
    assert words in caplog.text


def test_a_server_that_stays_dead_is_named(engine, server, caplog):
    engine.sync_weights()
    server.die()
    engine.weights_changed(1)
    engine._start_seconds = 0.1
    with pytest.raises(EngineLostError, match=f"{server.url} did not answer for 0.1 s"):
        engine.sync_weights()
    assert f"weights '1' did not arrive: {server.url}/update_weight_version failed" in caplog.text


def test_a_server_that_died_between_rollouts_is_waited_for(engine, model, loop, server):
    engine.sync_weights()
    server.die()
    server.start()
    learn(model)
    engine.weights_changed(1)
    with engine.playing():
        drawn = sample(engine, loop)
    assert drawn.logprobs == pytest.approx(logprobs_of(model, PROMPT, drawn.token_ids), abs=1e-4)
    assert [version for version, _ in server.stub.completions] == ["1"]


def counting_play(engine, loop, before=None):
    """Plays groups of three-round episodes; `before(round)` is awaited before each step."""
    source = ScriptedSource(
        lambda number, avoid, on_close: CountingEnvironment(3, before=before, on_close=on_close),
        capacity=8,
    )
    scheduler = Scheduler(
        source,
        sampled(
            engine.sampler, ChatRenderer(build_tokenizer()), EpisodeParams(SamplingParams(4), 900)
        ),
        retry=RetryParams(pause_seconds=0.01),
    )
    return lambda groups: loop.run(scheduler.run(groups))


def test_a_server_that_dies_in_a_rollout_gets_weights_before_the_lost_episodes_are_played_again(
    engine, model, loop, server
):
    learn(model)
    engine.weights_changed(6)
    steps = []

    async def before(round_number):
        steps.append(round_number)
        if len(steps) == 12:
            await asyncio.to_thread(server.die)
            await asyncio.to_thread(server.start)

    groups = [Group(build_task(seed=seed), 4) for seed in range(3)]
    results = play_through(engine, counting_play(engine, loop, before), groups)
    outcomes = [outcome for result in results for outcome in result.outcomes]
    assert [result.group for result in results] == groups
    assert len(outcomes) == 12
    assert all(isinstance(outcome, Trajectory) for outcome in outcomes)
    [dead], alive = server.past, server.stub
    assert dead.completions
    assert alive.completions
    assert {version for version, _ in alive.completions} == {"6"}
    assert server.paths == UPDATE


def test_what_may_have_been_sampled_from_other_weights_is_played_again(engine, loop, server):
    """A server that was started anew between two requests: no request fails."""
    engine.weights_changed(2)
    play = counting_play(engine, loop)
    played = []

    def play_and_restart(groups):
        played.append(len(groups))
        if len(played) == 1:
            server.stub.weights.version = "default"
        return play(groups)

    play_through(engine, play_and_restart, [Group(build_task(), 2), Group(build_task(seed=3), 2)])
    assert played == [2, 2]
    versions = [version for version, _ in server.stub.completions]
    assert versions[-12:] == ["2"] * 12


def test_an_engine_that_is_lost_again_and_again_ends_the_run(engine, loop, server):
    def play(groups):
        server.stub.weights.version = "default"
        return []

    engine.weights_changed(1)
    with pytest.raises(EngineLostError, match="lost 4 times in one rollout"):
        play_through(engine, play, [])


def test_an_evaluation_during_which_the_server_was_lost_is_repeated(engine, server):
    results = iter(["with base weights", "with the right ones"])

    def play():
        result = next(results)
        if "base" in result:
            server.stub.weights.version = "default"
        return result

    engine.weights_changed(1)
    assert repeat_until_held(engine, play) == "with the right ones"


def test_a_push_that_is_refused_leaves_the_server_ready_for_the_next(engine, server, tmp_path):
    server.stub.broken["/update_weights"] = 500
    engine.weights_changed(1)
    with pytest.raises(WeightSyncError, match=r"weights '1' did not arrive"):
        engine.sync_weights()
    assert server.stub.weights.version == "on their way"
    assert list(tmp_path.iterdir()) == []
    server.stub.broken.clear()
    engine.sync_weights()
    assert server.stub.weights.version == "1"


@pytest.fixture
def generation(model):
    return ColocatedDouble(model)


@pytest.fixture
def colocated(generation, loop, stack):
    sampler = VllmColocatedSampler(generation.llm.llm_engine, RULES, make_params=dict)
    engine = ColocatedEngine(generation, sampler)
    stack.callback(engine.close)
    return engine


def test_the_colocated_engine_wakes_and_sleeps_once_per_rollout(colocated, generation, model, loop):
    engine = colocated
    groups = [Group(build_task(seed=seed), 4) for seed in range(2)]
    for step in range(2):
        learn(model)
        engine.weights_changed(step)
        engine.sync_weights()  # as a run does before it plays
        play_through(engine, counting_play(engine, loop), groups)
        assert generation.log == ["sync", "wake kv_cache", "sleep 2"] * (step + 1)
        with torch.no_grad():
            torch.testing.assert_close(
                generation._engine.model.lm_head.weight, model.lm_head.weight
            )
    with engine.playing():  # an evaluation with the same weights: sleeping has dropped them
        assert sample(engine, loop).weight_version == 1
    assert generation.log[-3:] == ["sync", "wake kv_cache", "sleep 2"]


def test_weights_are_loaded_once_a_version(colocated, generation):
    colocated.weights_changed(3)
    colocated.sync_weights()
    colocated.sync_weights()
    assert generation.log == ["sync"]
    assert colocated.sampler.weight_version == 3


def test_the_colocated_engine_sleeps_after_the_last_step_of_a_request_that_was_abandoned(
    colocated, generation, loop
):
    async def give_up():
        asked = asyncio.ensure_future(colocated.sampler.sample([5, 6], SamplingParams(400)))
        await asyncio.sleep(0.05)
        asked.cancel()

    for _ in range(3):
        with colocated.playing():
            loop.run(give_up())
    colocated.detach()
    assert colocated.sampler.failure is None
    assert len(generation._engine.aborted) == 3
    assert generation.log[-1] == "shutdown"


@pytest.mark.parametrize(
    ("failure", "leaves_as"),
    [
        (RuntimeError("device-side assert"), EngineLostError),
        (torch.OutOfMemoryError("device-side assert"), EngineMemoryError),
    ],
)
def test_a_colocated_engine_that_fails_ends_the_run_and_gives_the_reason(
    failure, leaves_as, colocated, generation, loop
):
    """It is not made to sleep: CUDA would raise its error once more, in the place of the reason."""
    generation._engine.fails_at, generation._engine.failure = 5, failure
    with pytest.raises(leaves_as, match="device-side assert"):
        play_through(colocated, counting_play(colocated, loop), [Group(build_task(), 4)])
    assert generation.log[-1] == "wake kv_cache"


def test_what_sampling_has_held_is_free_for_learning(model, loop):
    def tensors() -> list[torch.Tensor]:
        gc.collect()
        return [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]

    with TransformersSampler(model, build_tokenizer()) as sampler:
        engine = TransformersEngine(sampler)
        # by reference: those that earlier tests have left may go at any time
        before = {id(one): weakref.ref(one) for one in tensors()}

        def held() -> int:
            new = (one for one in tensors() if before.get(id(one), lambda: None)() is not one)
            return sum(one.nbytes for one in new)

        with engine.playing():
            loop.run(sampler.sample([5] * 50, SamplingParams(4, temperature=1.0), session=1))
            assert held() > 0
        assert held() == 0


def test_a_model_that_ran_out_of_memory_while_sampling_reports_it():
    sampler = SimpleNamespace(out_of_memory=None)
    engine = TransformersEngine(sampler)
    assert engine.engine_loss() is None
    sampler.out_of_memory = torch.OutOfMemoryError("full")
    with pytest.raises(torch.OutOfMemoryError):
        engine.engine_loss()
