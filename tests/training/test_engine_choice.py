"""Choice of the engine, and servers that are refused before any episode."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from transformers.integrations import deepspeed as integration

from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.environments import EpisodeTask
from miner.inference.sampler import EngineLostError
from miner.inference.vllm.replies import ReplyRules
from miner.rollout.episode import RolloutStopped
from miner.training import engine_choice, playing
from miner.training.engine_choice import live_episodes, open_engine
from miner.training.playing import Rollouts
from tests.builders import build_qwen3, build_tokenizer
from tests.stub_vllm.app import StubVllm
from tests.stub_vllm.engine_double import EngineDouble
from tests.stub_vllm.serving import stub_in_thread

TRAINER = SimpleNamespace(accelerator=SimpleNamespace(wait_for_everyone=lambda: None))
RULES = ReplyRules(frozenset({1}), vocabulary=400, context=1024)


def settings_for(tmp_path, *overrides):
    return Settings.load(None, [f"run_dir={tmp_path}", *overrides], environ={})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logprobs_mode": "raw_logprobs"}, "--logprobs-mode processed_logprobs"),
        ({"backend": None}, "--weight-transfer-config"),
        ({"backend": "nccl"}, "'nccl'"),
        ({"max_model_len": 512}, "--max-model-len is 512"),
        ({"dev_mode": False}, "VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_flags_that_cannot_work_are_refused_at_the_start(options, words, loop, tmp_path):
    stub = StubVllm(build_qwen3(), build_tokenizer(), **options)
    learner = SimpleNamespace(model=build_qwen3(), reply_rules=lambda context: RULES)
    with stub_in_thread(stub) as url:
        settings = settings_for(
            tmp_path,
            "rollout.engine=vllm_server",
            f"rollout.server={url}",
            "rollout.max_episode_tokens=1024",
        )
        with pytest.raises(ConfigurationError, match=words):
            open_engine(settings, learner, TRAINER, loop, lambda: None, Ranks())


@pytest.mark.parametrize(
    ("words", "live"),
    [
        ((), 100),
        (("evaluation.episodes=900",), 900),
        (("rollout.live_episodes=300",), 300),
        (("rollout.groups_per_step=64",), 512),
    ],
)
def test_held_out_duels_that_the_user_has_not_numbered_are_not_all_played_at_once(
    monkeypatch, words, live
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    small = ("environment.channel=duel", "rollout.groups_per_step=4", "rollout.group_size=8")
    settings = Settings.load(None, (*small, *words), environ={})
    assert live_episodes(settings, SimpleNamespace(count=1)) == live


@pytest.mark.parametrize(
    ("gpu", "engine", "live"),
    [
        (False, "transformers", 100),  # a step has 48 episodes, an evaluation 200
        (True, "transformers", 24),
        (True, "vllm_colocated", 24),
    ],
)
def test_no_more_held_out_games_are_begun_than_the_engine_has_places(
    tmp_path, monkeypatch, gpu, engine, live
):
    """The clock of an episode runs from its beginning: in a queue it would be lost by time."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    settings = settings_for(
        tmp_path,
        f"rollout.engine={engine}",
        *("rollout.groups_per_step=6", "rollout.group_size=8", "evaluation.episodes=200"),
        *("rollout.max_episode_tokens=1024", "rollout.episode_seconds=3600"),
        "rollout.temperature=0.8",
    )
    ranks = SimpleNamespace(count=2)
    assert live_episodes(settings, ranks) == live
    fewer = settings.having(rollout={"live_episodes": 5})
    assert live_episodes(fewer, ranks) == 5
    planned = settings.having(rollout={"live_episodes": 60})  # there is memory for so many
    assert live_episodes(planned, ranks) == 60
    asked, merged = [], []

    def played(policy, source, tasks, rules, on_episode, outages, *, seconds):
        asked.append((rules.concurrency, rules.timeout_s, policy.temperature, outages, seconds))

    monkeypatch.setattr(playing, "evaluate", played)
    monkeypatch.setattr(playing, "repeat_until_held", lambda engine, play: play())
    monkeypatch.setattr(playing, "unless", lambda stopped, play: None)
    run = SimpleNamespace(
        settings=settings,
        ranks=SimpleNamespace(count=2, rank=0, leads=True, gather=lambda part: [part, part]),
        engine=SimpleNamespace(sampler=None),
        source=SimpleNamespace(capacity=4096),
        learner=SimpleNamespace(
            renderer=None, as_published=lambda: nullcontext(merged.append(engine))
        ),
        trainer=SimpleNamespace(state=SimpleNamespace(global_step=1)),
        loop=SimpleNamespace(run=lambda _: None),
        progress=SimpleNamespace(note=print),
        dark=None,
        heartbeat=SimpleNamespace(beat=lambda phase: None),
        stop=None,
        schedule=SimpleNamespace(for_evaluation=lambda: 700.0),
    )
    rollouts = Rollouts(run)
    with pytest.raises(RolloutStopped):
        rollouts.evaluate([EpisodeTask("goofspiel", 1, 2, "random")] * 4)
    assert asked == [(live, 3600, 0.0, rollouts._outages, 700.0)], "greedily, as graded"
    assert merged == ["transformers"] * (engine == "transformers"), "another engine is pushed them"
    monkeypatch.setattr(playing, "Scheduler", lambda *_, **parts: asked.append(parts["retry"]))
    rollouts.player(0.8)
    assert asked[-1].episode_seconds == 3600


def test_a_server_that_never_starts_is_waited_for_and_named(loop, tmp_path):
    settings = settings_for(
        tmp_path,
        "rollout.engine=vllm_server",
        "rollout.server=http://127.0.0.1:1",
        "rollout.start_seconds=0.1",
    )
    beats = []
    with pytest.raises(EngineLostError, match=r"127\.0\.0\.1:1 did not answer for 0\.1 s"):
        open_engine(settings, None, None, loop, lambda: beats.append(1), Ranks())
    assert beats


def test_without_a_gpu_the_colocated_engine_reports_it(loop, tmp_path):
    settings = settings_for(tmp_path, "rollout.engine=vllm_colocated")
    with pytest.raises(ConfigurationError, match="needs a CUDA GPU"):
        open_engine(settings, None, None, loop, lambda: None, Ranks())


def test_a_model_spread_by_zero_3_needs_an_engine_that_has_it_whole(loop, tmp_path):
    settings = settings_for(tmp_path, "optimizer.zero_stage=3")
    with pytest.raises(ConfigurationError, match=r"vLLM engine, or optimizer\.zero_stage=2"):
        open_engine(settings, None, None, loop, lambda: None, Ranks())


def test_the_thread_that_steps_vllm_computes_on_the_stream_that_vllm_was_opened_on(
    monkeypatch, loop, tmp_path
):
    """Device first: a stream is one of a device."""
    chosen, stream = [], object()
    here = threading.current_thread()

    def choose(what):
        def record(value):
            assert threading.current_thread() is not here
            chosen.append((what, value))

        return record

    cuda = {
        "is_available": lambda: True,
        "current_device": lambda: 3,
        "current_stream": lambda: stream,
        "set_device": choose("device"),
        "set_stream": choose("stream"),
    }
    for name, double in cuda.items():
        monkeypatch.setattr(torch.cuda, name, double)
    opened = SimpleNamespace(llm=SimpleNamespace(llm_engine=EngineDouble(build_qwen3())))
    monkeypatch.setattr(engine_choice, "ColocatedLLM", lambda *args, **options: opened)
    learner = SimpleNamespace(
        base="base", model=build_qwen3(), as_stored=renamed, reply_rules=lambda context: RULES
    )
    settings = settings_for(
        tmp_path, "rollout.engine=vllm_colocated", "rollout.max_episode_tokens=1024"
    )
    engine = open_engine(settings, learner, TRAINER, loop, lambda: None, Ranks())
    engine.sampler.settle()
    engine.close()
    assert chosen == [("device", 3), ("stream", stream)]


def renamed(weight):
    """The base's files have other names than the model in memory."""
    return {f"stored.{name}": tensor for name, tensor in weight.items()}


def test_a_server_is_pushed_weights_of_the_dtype_that_it_holds(monkeypatch, loop, tmp_path):
    learner = SimpleNamespace(
        model=build_qwen3(), as_stored=renamed, reply_rules=lambda context: RULES
    )
    pushed = []
    monkeypatch.setattr(engine_choice, "WeightSync", lambda make, *_, **__: pushed.append(make()))
    with stub_in_thread(StubVllm(build_qwen3().bfloat16(), build_tokenizer())) as url:
        wanted = "rollout.engine=vllm_server", f"rollout.server={url}"
        settings = settings_for(tmp_path, *wanted, "rollout.max_episode_tokens=1024")
        open_engine(settings, learner, TRAINER, loop, lambda: None, Ranks()).close()
    [weights] = pushed
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert all(name.startswith("stored.") for name in weights)


@pytest.mark.parametrize(("seed", "drawn"), [(7, 23), (2**31 - 1, 2**31 - 1)])
def test_the_colocated_engine_is_opened_as_it_was_planned(seed, drawn, monkeypatch, loop, tmp_path):
    """The dtype is not that of config.json, which is vLLM's choice; no two ranks share a seed, of
    which NumPy, that vLLM seeds, takes 32 bits."""
    opened = {}
    zero = SimpleNamespace(is_zero3=lambda: True)
    monkeypatch.setattr(integration, "_hf_deepspeed_config_weak_ref", lambda: zero)

    def open_llm(*args, **options):
        assert not integration.is_deepspeed_zero3_enabled()  # it would spread vLLM's own model
        opened.update(options)
        return SimpleNamespace(llm=SimpleNamespace(llm_engine=EngineDouble(build_qwen3())))

    monkeypatch.setattr(engine_choice, "ColocatedLLM", open_llm)
    monkeypatch.setattr(engine_choice, "_vllm_for_cpus", lambda: True)
    learner = SimpleNamespace(
        base="base", model=build_qwen3(), as_stored=renamed, reply_rules=lambda context: RULES
    )
    settings = settings_for(
        tmp_path,
        "rollout.engine=vllm_colocated",
        "rollout.max_episode_tokens=1024",
        *("rollout.memory_share=0.3", "rollout.live_episodes=5"),
        *("model.dtype=bfloat16", f"seed={seed}"),
    )
    ranks = SimpleNamespace(count=3, rank=2)
    engine = open_engine(settings, learner, TRAINER, loop, lambda: None, ranks)
    engine.close()
    assert integration.is_deepspeed_zero3_enabled()
    assert opened == {
        "dtype": "bfloat16",
        "stored": renamed,
        "sleeps": False,
        "seed": drawn,
        "gpu_memory_utilization": 0.3,
        "max_model_len": RULES.context,
        "max_num_seqs": 5,
    }
