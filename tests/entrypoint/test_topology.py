"""Placement on GPUs: golden plans, and the invariants of every plan."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint import step_cost
from entrypoint.batch import BatchShape
from entrypoint.hardware import GIB
from entrypoint.layout import Topology
from entrypoint.memory import CONTEXT_BYTES, ModelShape
from entrypoint.pretended import SIZES as MODELS
from entrypoint.pretended import pretend_hardware
from entrypoint.topology import AS_FAST, UNSPREAD_SHARE, plan_topology
from entrypoint.trainer_settings import DUEL_TURNS
from entrypoint.workload import SERVED, duels
from miner.config.contract import DUEL_TURN_TOKENS

INVENTORIES = ("0", "1xH100-80GB", "2xH100-80GB", "4xH100-80GB", "8xH100-80GB")
UNSHARED = replace(MODELS["14B"], parameters=32 * 10**9)  # too large to share 80 GB with an engine
TINY = ModelShape(600_000, 2, 128, 512, 4, 2, 32, 300, 1024)


def plan(inventory: str, shape: ModelShape, **batch: Any) -> Topology:
    servers = 1 if inventory == "0" else int(inventory[0])
    return plan_topology(
        pretend_hardware(inventory), shape, BatchShape(**{"servers": servers, **batch})
    )


def readable(topology: Topology) -> dict[str, object]:
    """The plan as it is reviewed: sizes in GiB, reasons as sentences."""
    fields = asdict(topology)
    fields["memory"] = {
        memory.moment: {
            **{name: f"{size / GIB:.2f} GiB" for name, size in memory.items},
            "used": f"{memory.used / GIB:.2f} of {memory.total / GIB:.2f} GiB",
        }
        for memory in topology.memory
    }
    fields["choices"] = [f"{choice.what}: {choice.why}" for choice in topology.choices]
    return fields


@pytest.mark.parametrize("inventory", INVENTORIES)
def test_plans_are_as_reviewed(inventory: str, golden: Callable[[str, str], None]) -> None:
    plans = {name: readable(plan(inventory, shape)) for name, shape in MODELS.items()}
    golden(f"topology-{inventory}.json", json.dumps(plans, indent=2) + "\n")


@given(
    count=st.integers(0, 8),
    gib=st.sampled_from([16, 24, 40, 80, 141]),
    shape=st.sampled_from([*MODELS.values(), TINY]),
    groups=st.integers(1, 40),
    group_size=st.integers(2, 16),
    servers=st.integers(0, 8),
    pass_tokens=st.sampled_from([1024, 5000, 32768]),
)
def test_every_plan_is_consistent(
    count: int,
    gib: int,
    shape: ModelShape,
    groups: int,
    group_size: int,
    servers: int,
    pass_tokens: int,
) -> None:
    hardware = pretend_hardware(f"{count}xH100-{gib}GB" if count else "0")
    batch = BatchShape(groups, group_size, 4096, servers, pass_tokens)
    topology = plan_topology(hardware, shape, batch)
    everything = {*topology.trainer_gpus, *topology.inference_gpus}
    episodes = topology.groups * group_size
    assert topology.groups >= groups
    assert topology.groups % topology.processes == 0
    assert topology.pass_tokens <= pass_tokens
    assert topology.episode_tokens <= shape.context
    assert topology.choices
    if topology.layout == "cpu":
        assert not everything
        return
    assert everything == {gpu.index for gpu in hardware.gpus}
    assert all(memory.fits for memory in topology.memory)
    assert 0 < topology.memory_share <= 0.94
    assert 1 <= topology.live_episodes <= episodes
    if topology.layout == "split":
        assert not set(topology.trainer_gpus) & set(topology.inference_gpus)
    else:
        assert topology.trainer_gpus == topology.inference_gpus


@pytest.mark.parametrize(
    ("inventory", "least", "most"), [("1xH100-80GB", 0.88, 0.90), ("2xH100-80GB", 0.92, 0.94)]
)
def test_more_of_a_shared_gpu_stays_free_without_zero(
    inventory: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam's states come late, and in fragments."""
    monkeypatch.setattr(step_cost, "PUSH_SECONDS", 600.0)  # so that two GPUs are shared as well
    topology = plan(inventory, MODELS["3B"], groups=400, group_size=16, servers=0,
                    episode_tokens=16384)  # fmt: skip
    assert (topology.layout, topology.tuning) == ("colocated", "full")
    rollout = topology.memory[1]
    assert least < rollout.used / rollout.total <= most


def test_one_gpu_is_shared_and_of_several_the_fastest_layout_is_taken() -> None:
    assert plan("1xH100-80GB", MODELS["1.5B"]).layout == "colocated"
    split = plan("8xH100-80GB", MODELS["0.5B"])
    assert (len(split.inference_gpus), len(split.trainer_gpus)) == (3, 5)
    assert (split.zero_stage, split.tuning) == (2, "full")
    shared = plan("8xH100-80GB", MODELS["7B"])
    assert (shared.layout, shared.zero_stage, shared.tuning) == ("colocated", 2, "full")


@pytest.mark.parametrize(
    ("constant", "value", "size", "layout", "trainers"),
    [
        ("WAKE_SECONDS", 60.0, "7B", "split", 5),
        ("PUSH_SECONDS", 60.0, "0.5B", "colocated", 8),
        ("TRAINING_SHARE", 0.05, "0.5B", "split", 6),  # learning is nearly all of a step
        ("PREFILL_SHARE", 0.01, "0.5B", "split", 3),  # and now playing is
    ],
)
def test_what_takes_long_decides_who_gets_the_gpus(
    constant: str,
    value: float,
    size: str,
    layout: str,
    trainers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if layout == "split":
        monkeypatch.setattr(step_cost, "WAKE_SECONDS", 60.0)
    monkeypatch.setattr(step_cost, constant, value)
    topology = plan("8xH100-80GB", MODELS[size])
    assert (topology.layout, topology.processes) == (layout, trainers)
    assert topology.groups % trainers == 0


def test_a_plan_reports_what_the_others_would_have_taken() -> None:
    """One line for each way to divide the GPUs, and none of them is clearly faster."""
    *others, best = [
        (choice.what, float(found[1]))
        for choice in plan("8xH100-80GB", MODELS["3B"]).choices
        if (found := re.search(r"about ([0-9.]+) s for a step of 16 groups", choice.why))
    ]
    assert len(others) == 7
    assert all(what.startswith("not vLLM on") for what, _ in others)
    least = min(seconds for _, seconds in others)
    assert best[1] <= AS_FAST * least * 1.01  # of numbers rounded to three digits


def test_a_step_that_is_larger_to_be_shared_evenly_is_judged_by_equal_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three trainers would share 18 groups, which spread what a step takes however small it is."""
    monkeypatch.setattr(step_cost, "LEARNED_A_SECOND", 1e9)
    found = plan("4xH100-80GB", TINY)
    assert (found.processes, found.groups) == (2, 16)
    [uneven] = [c.why for c in found.choices if c.what.startswith("not vLLM on 1, trainer on 3")]
    assert "s for a step of 16 groups" in uneven


def of_teachers(inventory: str, shape: ModelShape, share: float, **batch: Any) -> Topology:
    """The plan of a job of one game that learns from teachers for this share of its time."""
    work = duels(["leduc_poker"], DUEL_TURNS)
    wanted = {"groups": 64, "group_size": 2, "servers": 0, "episode_tokens": 8192, "work": work}
    taught = {"taught_share": share, "taught_rows": 64}
    return plan(inventory, shape, **{**wanted, **taught, **batch})


@pytest.mark.parametrize(
    ("share", "layout", "trainers"), [(0.0, "split", 1), (0.5, "colocated", 2), (1, "colocated", 2)]
)
def test_where_teachers_teach_all_gpus_learn(share: float, layout: str, trainers: int) -> None:
    """Nothing is played in such steps, so that a GPU of vLLM's alone would stand idle."""
    found = of_teachers("2xH100-80GB", MODELS["0.5B"], share)
    assert (found.layout, found.processes) == (layout, trainers)


def test_the_first_and_the_last_evaluation_take_their_time_from_the_steps() -> None:
    """Fewer engines play them more slowly, which long jobs can afford."""
    games = {"held_out": 600, "least_held_out": 600}
    trainers = [
        of_teachers("8xH100-80GB", UNSHARED, 1.0, seconds=minutes * 60.0, **games).processes
        for minutes in (30, 60, 720)
    ]
    assert trainers == sorted({*trainers})
    without, none_left, hardly_any = (
        of_teachers("8xH100-80GB", UNSHARED, 1.0, **run).processes
        for run in ({}, {"seconds": 60.0, **games}, {"seconds": 960.0, **games})
    )
    assert trainers[-1] == without == none_left == hardly_any


def test_either_kind_of_step_counts_by_its_share_of_the_time() -> None:
    """A step of own games takes fifty times as long, and the others are still not forgotten."""
    trainers = [of_teachers("8xH100-80GB", UNSHARED, share).processes for share in (0, 0.5, 1)]
    assert trainers == sorted({*trainers})


@pytest.mark.parametrize(
    ("share", "steps"), [(0, ["64 groups"]), (0.5, ["64 groups", "64 taught"]), (1, ["64 taught"])]
)
def test_a_plan_names_the_steps_whose_seconds_decided(share: float, steps: list[str]) -> None:
    choices = of_teachers("2xH100-80GB", MODELS["0.5B"], share).choices
    [best] = [choice.why for choice in choices if choice.why.startswith("the most steps")]
    assert re.findall(r"s for a step of (\d+ \w+)", best) == steps


def test_either_layout_and_tuning_is_tried_with_either_stage_of_zero() -> None:
    """A plan names what it refuses, and this one refuses everything."""
    refused = {choice.what for choice in plan("4xT4-16GB", MODELS["14B"]).choices}
    for how in ("full fine-tuning, ZeRO-", "LoRA, ZeRO-"):
        for stage in "23":
            assert f"not vLLM on 2, trainer on 2, {how}{stage}" in refused
            assert f"not vLLM and trainer colocated on 4, {how}{stage}" in refused


def test_full_fine_tuning_is_not_abandoned_for_speed() -> None:
    adapters = plan("2xH100-80GB", MODELS["7B"])
    full = plan("4xH100-80GB", MODELS["7B"])
    assert (adapters.tuning, full.tuning) == ("lora", "full")


def test_model_that_fits_no_gpu_is_left_to_the_cpu() -> None:
    topology = plan("1xT4-16GB", MODELS["14B"])
    assert topology.layout == "cpu"
    assert topology.choices[-2].why == "nothing fits"


def test_tiny_model_on_a_cpu_takes_the_pass_that_is_wanted() -> None:
    topology = plan("0", TINY, pass_tokens=5000)
    assert (topology.layout, topology.pass_tokens, topology.dtype) == ("cpu", 5000, "float32")


def test_rows_of_a_duel_are_turns_unless_conversations_are_learned_too() -> None:
    longest = [
        BatchShape(work=duels(["othello"], 8), mounted=also).longest_row for also in (False, True)
    ]
    assert longest == [DUEL_TURN_TOKENS, BatchShape.episode_tokens]


@pytest.mark.parametrize("inventory", ["1xH100-80GB", "2xH100-80GB", "4xH100-80GB"])
def test_what_vllm_cannot_load_is_generated_by_trainers_that_hold_all_weights(
    inventory: str,
) -> None:
    hardware, batch = pretend_hardware(inventory), BatchShape(servers=0, held_out=2000)
    served = plan_topology(hardware, MODELS["7B"], batch)
    topology = plan_topology(hardware, MODELS["7B"], batch, served=False)
    assert (topology.layout, topology.memory_share) == ("colocated", 0.0)
    assert topology.zero_stage != 3
    assert topology.choices[-1].what == "no vLLM"
    assert step_cost.step_cost(topology, MODELS["7B"], hardware, 8, SERVED).weights == 0
    learning, playing = (dict(moment.items) for moment in topology.memory)
    assert not {"vLLM asleep", "engine weights"} & (learning.keys() | playing.keys())
    assert topology.memory[1].used <= UNSPREAD_SHARE * topology.memory[1].total
    merged = 2 * MODELS["7B"].parameters if topology.tuning == "lora" else 0
    assert playing["merged weights"] == merged  # beside the adapters' base, for held-out games
    if topology.tuning == "full" and served.zero_stage == topology.zero_stage == 2:
        assert topology.live_episodes > served.live_episodes


def test_states_take_the_place_of_recurrent_layers_keys_where_vllm_does_not_serve() -> None:
    """vLLM keeps several of a hybrid's states in blocks as large as attention's."""
    plain = MODELS["7B"]
    hybrid = replace(plain, recurrent_layers=21, state_bytes=50_000_000)
    hardware, batch = pretend_hardware("4xH100-80GB"), BatchShape(servers=0, held_out=4000)
    lives = [
        [plan_topology(hardware, shape, batch, served=served).live_episodes for served in (0, 1)]
        for shape in (plain, hybrid)
    ]
    assert lives[0][1] == lives[1][1]
    assert lives[1][0] > 1.5 * lives[0][0]


@pytest.mark.parametrize(
    ("size", "inventory"), [(8, "4xA100-40GB"), (10, "2xL40S-48GB"), (16, "8xH100-80GB")]
)
def test_an_engine_starts_beside_a_model_that_is_not_spread_yet(size: int, inventory: str) -> None:
    """DeepSpeed spreads it when training begins, and vLLM starts before; and keeps its buffers of
    gradients when vLLM is awake."""
    shape = replace(MODELS["7B"], parameters=size * 10**9)
    topology = plan(inventory, shape)
    held = {"full": size / topology.processes * 2e9 + 1e9, "lora": 1e9}[topology.tuning]
    playing = dict(topology.memory[1].items)
    assert playing.get("gradients' buffers", 0) >= held or "weights, not spread yet" in playing
    assert (topology.layout, topology.zero_stage) == ("colocated", 3), "name another inventory"
    total = topology.memory[0].total
    engine = topology.memory_share * total
    assert 2 * shape.parameters + CONTEXT_BYTES + engine <= total
