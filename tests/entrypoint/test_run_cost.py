"""Estimates of a step and a run, and what follows: how often it evaluates, what it prints."""

import json
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from entrypoint import main
from entrypoint.batch import BatchShape
from entrypoint.job import parse_invocation
from entrypoint.pretended import pretend_hardware
from entrypoint.run_cost import MOST_OF_BASE, RunCost, run_cost
from entrypoint.run_plan import RunPlan
from entrypoint.step_cost import (
    SHARED_TOKENS,
    WIDE_PASS,
    StepCost,
    rollout_seconds,
    step_cost,
    taught_step_seconds,
)
from entrypoint.topology import plan_topology
from entrypoint.trainer_settings import DUEL_TURNS, PlannedSettings
from entrypoint.workload import DUELS, SERVED, TURN_SECONDS, duels, workload
from miner.config.contract import GAMES
from miner.config.held_out_games import LEAST_GATED, few_gated
from tests.entrypoint.test_topology import MODELS

NAMES = ", ".join(f'"{name}"' for name in GAMES)
JOB = (
    *("--task-id", "t", "--model", "acme/base", "--expected-repo-name", "r"),
    *("--dataset-type", f'{{"environment_names": [{NAMES}]}}', "--dry-run"),
)


def prepared(size: str, inventory: str, hours: float, *words: str) -> main.Prepared:
    """A job of all six duels."""
    asked = ("--hours-to-complete", f"{hours:.2f}", "--gpus", inventory, "--model-config", size)
    return main.prepare(parse_invocation((*JOB, *asked, *words), {}), time.time(), {})


def cost(size: str, inventory: str, hours: float = 1.5) -> RunCost:
    return prepared(size, inventory, hours).cost


WITHOUT_TEACHERS = ("--set", "demonstrations.share=0")
HALF = ("--set", "demonstrations.share=0.5")


def test_a_job_of_duels_has_time_for_some_70_steps_and_evaluates_in_between() -> None:
    """With 7 billion parameters on 4 GPUs; by the tokens of servers' games it were more."""
    job = prepared("7B", "4xH100-80GB", 1.5, *WITHOUT_TEACHERS)
    assert 50 <= job.cost.steps <= 90
    assert 3 <= job.cost.steps // job.settings.evaluation.every_steps <= 12
    assert job.cost.every_steps == job.settings.evaluation.every_steps


@pytest.mark.parametrize(("size", "inventory"), [("0.5B", "1xH100-80GB"), ("7B", "4xH100-80GB")])
def test_steps_of_teachers_take_their_share_of_the_time(size: str, inventory: str) -> None:
    """Nothing is played in them, so that they are many; they are not evaluated more often."""
    job, without = (prepared(size, inventory, 1.5, *w) for w in (HALF, WITHOUT_TEACHERS))
    cost, played = job.cost, job.cost.steps - job.cost.taught_steps
    assert played == pytest.approx(0.5 * without.cost.steps, abs=1)
    assert cost.taught is not None
    assert cost.taught < cost.step.seconds / 5
    seconds = job.plan.trainer_ends_at - job.plan.started_at
    assert 0.2 * seconds < cost.taught_steps * cost.taught < 0.5 * seconds
    assert cost.every_steps == without.cost.every_steps
    rhythm = job.settings.evaluation
    detour = cost.evaluation + cost.publication
    apart = detour * (1 / rhythm.time_share - 1)
    assert rhythm.every_steps * cost.taught < apart
    assert apart < seconds / 2  # one at least comes before the last


@pytest.mark.parametrize("inventory", ["1xH100-80GB", "4xH100-80GB", "8xH100-80GB"])
def test_larger_models_get_fewer_steps_and_longer_jobs_more(inventory: str) -> None:
    costs = [prepared(size, inventory, 1.5, *HALF).cost for size in ("0.5B", "3B", "14B")]
    played = [each.steps - each.taught_steps for each in costs]
    assert played == sorted(played, reverse=True)
    hours = [cost("7B", inventory, hours).steps for hours in (1, 2, 8)]
    assert all(fewer < more for fewer, more in pairwise(hours))
    assert hours[2] > 4 * hours[1]  # what comes once counts less


def test_a_job_of_many_steps_keeps_the_recipes_rhythm() -> None:
    assert cost("0.5B", "8xH100-80GB", 12.0).every_steps == 20


def test_what_the_user_set_wins(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--set", "evaluation.every_steps=9", "--set", "optimizer.max_steps=12")
    job = prepared("7B", "4xH100-80GB", 1.5, *words)
    main.print_plan(job)
    assert ", every 9 steps\n" in capsys.readouterr().out
    assert job.settings.evaluation.every_steps == 9
    assert job.settings.evaluation.time_share == 1.0
    assert job.cost.steps == 12


QWEN_32B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 5120,
    "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
    "num_key_value_heads": 8, "vocab_size": 152064, "tie_word_embeddings": False,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_the_base_of_a_large_model_plays_as_many_games_as_it_has_time_for(tmp_path: Path) -> None:
    """An engine beside its weights holds eleven; the gate needs 72 of each game."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN_32B))
    jobs = [
        prepared(str(tmp_path / "config.json"), "4xH100-80GB", 1.5, *words)
        for words in ((), ("--set", "evaluation.episodes=1800"))
    ]
    few, all_of_them = jobs
    assert few.cost.evaluation < 0.2 * few.invocation.job.seconds < all_of_them.cost.evaluation
    assert few.settings.evaluation.episodes == few.cost.episodes == 6 * LEAST_GATED
    assert not few_gated(few.cost.episodes, 6)
    assert all_of_them.settings.evaluation.episodes == 1800
    assert few.cost.steps > 100 > all_of_them.cost.steps
    assert prepared("7B", "4xH100-80GB", 1.5).settings.evaluation.episodes == 1800
    assert prepared("14B", "1xH100-80GB", 0.04).settings.evaluation.episodes == 6 * LEAST_GATED


def test_held_out_duels_are_played_as_many_at_once_as_the_memory_holds() -> None:
    """Steps of own games, which are fewer, are none of a job's."""
    live = [prepared("7B", f"{count}xH100-80GB", 1.5).topology.live_episodes for count in (1, 4)]
    assert live == [256, 143]


def test_no_time_is_not_a_step() -> None:
    assert cost("14B", "1xH100-80GB", 0.1).steps == 0


def test_everything_that_comes_once_is_counted() -> None:
    """A run whose weights take longer to read and write has fewer steps."""
    job = prepared("7B", "4xH100-80GB", 1.5)
    batch = PlannedSettings(job.invocation, job.facts.shape.parameters).batch_shape()
    usual, slow = (
        run_cost(
            *(batch, job.topology, job.facts.shape, job.hardware),
            weight_bytes=times * job.facts.weight_bytes,
        )
        for times in (1, 10)
    )
    assert slow.start > usual.start + 100
    assert slow.publication > usual.publication + 100
    assert slow.steps < usual.steps
    assert slow.pace > usual.pace


def test_the_dry_run_prints_the_steps_to_expect(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--hours-to-complete", "1.5", "--gpus", "4xH100-80GB", "--model-config", "7B")
    assert main.main([*JOB, *words]) == 0
    lines = dict(
        line.strip().split("  ", 1)
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  ") and "  " in line.strip()
    )
    wanted = cost("7B", "4xH100-80GB")
    expected = f"about {wanted.steps:,}, of them {wanted.taught_steps:,} of teachers"
    assert lines["steps to expect"].strip() == expected
    assert f"every {wanted.every_steps} steps, 10% of the" in lines["seconds an evaluation"]
    assert lines["seconds a step of teachers"].strip() == f"{wanted.taught:.3g}"
    assert "up to 1,445" in lines["assumed"]


def test_duels_are_all_played_at_once_and_hold_a_turn_each() -> None:
    """No server bounds them, and each turn is a chat of its own."""
    work = duels(GAMES, DUEL_TURNS)
    shape, hardware = MODELS["7B"], pretend_hardware("4xH100-80GB")
    alone = plan_topology(hardware, shape, BatchShape(episode_tokens=8192, servers=0, work=work))
    served = plan_topology(hardware, shape, BatchShape(episode_tokens=8192, servers=1))
    assert (alone.live_episodes, served.live_episodes) == (32, 12)
    cache = dict(alone.memory[1].items)["KV cache"]
    assert cache == 32 * work.held * shape.kv_bytes_per_token


def test_an_engine_has_room_for_one_longest_episode_at_least() -> None:
    """vLLM refuses to start otherwise."""
    few = BatchShape(1, 2, 8192, servers=0, work=duels(["leduc_poker"], DUEL_TURNS))
    plan = plan_topology(pretend_hardware("1xH100-80GB"), MODELS["3B"], few)
    cache = dict(plan.memory[1].items)["KV cache"]
    assert cache >= 8192 * MODELS["3B"].kv_bytes_per_token


def test_the_work_of_duels_is_that_of_their_games() -> None:
    short, long = duels(["leduc_poker"], DUEL_TURNS), duels(["gin_rummy"], DUEL_TURNS)
    both = duels(["leduc_poker", "gin_rummy"], DUEL_TURNS)
    assert both.longest == long.longest > 8 * short.longest
    assert both.sampled == pytest.approx((short.sampled + long.sampled) / 2)
    assert long.trained == pytest.approx(DUEL_TURNS * (DUELS["gin_rummy"].prompt + 50))
    assert duels(["gin_rummy"], None).trained > 2 * long.trained
    assert set(DUELS) == set(GAMES)


def test_a_model_without_trees_learns_row_by_row() -> None:
    trees, rows = (replace(MODELS["3B"], trees=trees) for trees in (True, False))
    hardware = pretend_hardware("1xH100-80GB")
    topology = plan_topology(hardware, trees, BatchShape())
    of_trees, of_rows = (step_cost(topology, each, hardware, 8, SERVED) for each in (trees, rows))
    again = 1 + SHARED_TOKENS / topology.pass_tokens - SHARED_TOKENS / WIDE_PASS
    more = SERVED.trained / SERVED.computed / again  # of a row each pass computes nothing twice
    assert of_rows.learning == pytest.approx(of_trees.learning * more, rel=0.001)
    assert of_rows.rollout == of_trees.rollout
    leduc = duels(["leduc_poker"], DUEL_TURNS)
    times = [taught_step_seconds(topology, each, hardware, 64, leduc) for each in (trees, rows)]
    assert 2 < times[1] / times[0] < 7


def test_a_mixture_computes_with_the_experts_of_a_token_and_reads_all() -> None:
    dense, hardware = MODELS["14B"], pretend_hardware("8xH100-80GB")
    mixture = replace(dense, idle=dense.parameters * 9 // 10)
    topology = plan_topology(hardware, dense, BatchShape())
    work = duels(["gin_rummy"], DUEL_TURNS)
    taught, prompts, words = (
        [seconds(each) for each in (dense, mixture)]
        for seconds in (
            lambda shape: taught_step_seconds(topology, shape, hardware, 10**6, work),
            lambda shape: rollout_seconds(
                topology, shape, hardware, 10**4, replace(work, sampled=0, longest=0)
            ),
            lambda shape: rollout_seconds(
                topology, shape, hardware, 10**4, replace(work, prefilled=0)
            ),
        )
    )
    assert taught[1] < taught[0] / 2
    assert prompts[1] < prompts[0] / 2
    assert words[1] == words[0]


def test_a_step_waits_for_processes_of_teachers_only_where_they_are_slower() -> None:
    shape, hardware = MODELS["0.5B"], pretend_hardware("1xH100-80GB")
    topology, slow = plan_topology(hardware, shape, BatchShape()), duels(["othello"], DUEL_TURNS)

    def seconds(teachers: int) -> float:
        work = replace(slow, teachers=teachers)
        return taught_step_seconds(topology, shape, hardware, 64, work)

    of_teachers = 64 * (TURN_SECONDS + slow.teaching)
    assert seconds(1) == pytest.approx(of_teachers)
    assert seconds(2) == pytest.approx(of_teachers / 2)
    assert seconds(0) == pytest.approx(of_teachers + seconds(16))
    assert 0 < seconds(16) == seconds(8) < of_teachers / 4
    hardware = replace(hardware, cpus=2)
    assert seconds(2) == pytest.approx(of_teachers), "one core is the trainer's"


def test_short_contexts_hold_short_episodes() -> None:
    assert SERVED.within(1000).trained == 600
    assert SERVED.within(10**6).trained == SERVED.trained


def test_a_run_of_one_step_by_hand_evaluates_after_it() -> None:
    invocation = parse_invocation((*JOB, "--set", "optimizer.max_steps=1"), {})
    shape, hardware = MODELS["0.5B"], pretend_hardware("1xH100-80GB")
    batch = PlannedSettings(invocation, shape.parameters).batch_shape()
    plan = plan_topology(hardware, shape, batch)
    found = run_cost(replace(batch, seconds=3600.0), plan, shape, hardware)
    assert (found.steps, found.every_steps >= 1) == (1, True)


def step_of(size: str, inventory: str) -> StepCost:
    hardware = pretend_hardware(inventory)
    batch = BatchShape(episode_tokens=4653, servers=max(1, len(hardware.gpus)))  # 2,792 on average
    topology = plan_topology(hardware, MODELS[size], batch)
    return step_cost(topology, MODELS[size], hardware, batch.group_size, SERVED)


def test_larger_models_take_longer_and_more_gpus_less() -> None:
    by_size = [step_of(size, "8xH100-80GB").seconds for size in ("0.5B", "3B", "7B")]
    assert by_size == sorted(by_size)
    by_gpus = [step_of("0.5B", f"{count}xH100-80GB").seconds for count in (1, 4, 8)]
    assert by_gpus == sorted(by_gpus, reverse=True)
    assert step_of("0.5B", "1xA100-80GB").seconds > step_of("0.5B", "1xH100-80GB").seconds
    assert step_of("0.5B", "0").seconds > 10 * step_of("0.5B", "1xH100-80GB").seconds


@pytest.mark.parametrize(
    ("size", "inventory", "by_hand"),
    [("3B", "1xH100-80GB", 34), ("7B", "1xH100-80GB", 64), ("7B", "8xH100-80GB", 13)],
)
def test_estimates_agree_with_those_by_hand_within_a_factor_of_two(
    size: str, inventory: str, by_hand: float
) -> None:
    assert by_hand / 2 < step_of(size, inventory).seconds < 2 * by_hand


def test_a_plan_knows_the_rate_of_adapters_that_may_take_over() -> None:
    full, lora = (
        prepared("3B", "1xH100-80GB", 1.5, *words) for words in ((), ("--set", "model.tuning=lora"))
    )
    assert full.plan.adapter_learning_rate == lora.settings.optimizer.learning_rate
    assert full.plan.adapter_learning_rate != full.settings.optimizer.learning_rate


def test_a_model_that_vllm_cannot_load_plays_fewer_held_out_games() -> None:
    """By transformers each turn computes its whole prompt, and a token takes much longer."""
    job = prepared("7B", "2xH100-80GB", 1.5)
    shape, work = job.facts.shape, workload(job.settings)
    served, alone = (
        rollout_seconds(replace(job.topology, memory_share=share), shape, job.hardware, 600, work)
        for share in (0.4, 0.0)
    )
    assert alone > 4 * served


@pytest.mark.parametrize(("size", "inventory"), [("3B", "1xH100-80GB"), ("7B", "4xH100-80GB")])
def test_a_plan_knows_the_held_out_games_of_trainers_that_have_to_generate(
    size: str, inventory: str
) -> None:
    job = prepared(size, inventory, 1.5)
    written = RunPlan.model_validate_json(job.plan.model_dump_json())
    served, alone = job.settings.evaluation, written.unserved_evaluation
    assert alone is not None
    assert 6 * LEAST_GATED <= alone.episodes < served.episodes == 1800
    assert (alone.time_share, alone.base_seed) == (served.time_share, served.base_seed)
    topology, work = job.topology.without_engine(), workload(job.settings)
    assert topology.live_episodes == job.settings.rollout.live_episodes
    seconds = rollout_seconds(topology, job.facts.shape, job.hardware, alone.episodes, work)
    room = MOST_OF_BASE * (job.plan.trainer_ends_at - job.plan.started_at)
    assert seconds == pytest.approx(room, rel=0.05)


def test_held_out_games_by_hand_and_without_vllm_are_no_others_without_it() -> None:
    by_hand = prepared("7B", "4xH100-80GB", 1.5, "--set", "evaluation.episodes=1500").plan
    assert by_hand.unserved_evaluation is not None
    assert by_hand.unserved_evaluation.episodes == 1500
    assert prepared("7B", "0", 1.5).plan.unserved_evaluation is None


def test_states_are_read_in_the_place_of_recurrent_layers_keys() -> None:
    plain, hardware = MODELS["7B"], pretend_hardware("1xH100-80GB")
    hybrid = replace(plain, recurrent_layers=21, state_bytes=10**7)
    topology = plan_topology(hardware, plain, BatchShape())
    wide = replace(topology, live_episodes=1000)
    own, served = (
        [
            rollout_seconds(replace(wide, memory_share=share), shape, hardware, 1000, SERVED)
            for shape in (plain, hybrid)
        ]
        for share in (0.0, 0.4)
    )
    assert own[1] < own[0]
    assert served[1] == served[0]
