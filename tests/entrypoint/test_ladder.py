"""The degrade ladder and what follows the end of an attempt."""

from itertools import pairwise
from pathlib import Path

import pytest

from entrypoint.exit_status import ExitStatus
from entrypoint.ladder import LADDER, step_down, without_vllm
from entrypoint.outcome import Outcome
from entrypoint.restart import AttemptEnd, EndKind, NextAttempt, after_attempt, end_of_exit
from miner.config.contract import INTERCODE_DATASET, dataset_folder
from miner.config.overrides import Tree
from miner.config.settings import Settings

COLOCATED = Settings.resolve(
    {
        "model": {"gradient_checkpointing": False},
        "optimizer": {"micro_batch_tokens": 8192},
        "rollout": {
            "engine": "vllm_colocated",
            "memory_share": 0.5,
            "max_episode_tokens": 4096,
        },
    }
)
ON_A_CPU = Settings.resolve(
    {"optimizer": {"micro_batch_tokens": 8192}, "model": {"gradient_checkpointing": True}}
)
LOWEST: Tree = {
    "optimizer": {"micro_batch_tokens": 64},
    "rollout": {"max_episode_tokens": 512},
    "model": {"tuning": "lora", "gradient_checkpointing": True},
}


def walked(settings: Settings, **known: float) -> tuple[list[str], Settings]:
    """What each rung gives up, down to the end, and the settings there."""
    taken, given_up = 0, []
    while (step := step_down(settings, taken, **known)) is not None:  # type: ignore[arg-type]
        settings, taken, what = step
        given_up.append(what)
    return given_up, settings


def mounting(root: Path, name: str = "a/b") -> Tree:
    """Demonstrations beside rows of a data set, which is made."""
    folder = root / dataset_folder(name)
    folder.mkdir()
    (folder / "train.jsonl").touch()
    return {"share": 1.0, "datasets": [folder]}


def test_the_whole_ladder_is_walked_once() -> None:
    assert walked(COLOCATED)[0] == [
        "gradient checkpointing (model.gradient_checkpointing False -> True)",
        "half of a pass (optimizer.micro_batch_tokens 8192 -> 4096)",
        "half of a pass again (optimizer.micro_batch_tokens 4096 -> 2048)",
        "shorter episodes (rollout.max_episode_tokens 4096 -> 3072)",
        "LoRA (model.tuning full -> lora)",
    ]


def test_a_pass_of_turns_is_halved_before_activations_are_recomputed(tmp_path: Path) -> None:
    duels = COLOCATED.having(environment={"channel": "duel"})
    halved = "half of a pass of turns (optimizer.micro_batch_tokens 8192 -> 4096)"
    recomputed = "gradient checkpointing (model.gradient_checkpointing False -> True)"
    assert walked(duels)[0][:2] == [halved, recomputed]
    shortest = duels.having(optimizer={"micro_batch_tokens": 4096})
    assert walked(shortest)[0][0] == recomputed  # half of it would hold no longest turn
    mounted = duels.having(demonstrations=mounting(tmp_path))
    assert walked(mounted)[0][0] == recomputed
    turns = duels.having(demonstrations=mounting(tmp_path, INTERCODE_DATASET))
    assert walked(turns)[0] == walked(duels)[0]


def test_rows_of_recorded_conversations_keep_their_length(tmp_path: Path) -> None:
    """They are as long as they may be: a shorter pass would be one row and its neighbours, which
    are more tokens; and scores of shorter ones are of other tokens."""
    recorded = COLOCATED.having(
        environment={"channel": "recorded"},
        reward={"credit": "episode"},
        optimizer={"micro_batch_tokens": 4096, "zero_stage": 2},
        rollout={"temperature": 1.0},
    )
    assert walked(recorded)[0] == [
        "gradient checkpointing (model.gradient_checkpointing False -> True)",
        "ZeRO-3 (optimizer.zero_stage 2 -> 3)",
        "LoRA (model.tuning full -> lora)",
    ]
    beside_games = COLOCATED.having(
        environment={"channel": "duel"},
        optimizer={"micro_batch_tokens": 4096},
        demonstrations=mounting(tmp_path),
    )
    assert not any("pass" in rung for rung in walked(beside_games)[0])
    wide = recorded.having(optimizer={"micro_batch_tokens": 16384})
    assert "half of a pass (optimizer.micro_batch_tokens 16384 -> 8192)" in walked(wide)[0]


def test_games_of_duels_are_shortened_only_beside_mounted_rows(tmp_path: Path) -> None:
    duels = COLOCATED.having(environment={"channel": "duel"})
    mounted = duels.having(demonstrations=mounting(tmp_path))
    shorter = [any("shorter" in rung for rung in walked(each)[0]) for each in (duels, mounted)]
    assert shorter == [False, True]


def test_on_a_cpu_nothing_is_abandoned_that_only_gpus_have() -> None:
    assert walked(ON_A_CPU)[0] == [
        "half of a pass (optimizer.micro_batch_tokens 8192 -> 4096)",
        "half of a pass again (optimizer.micro_batch_tokens 4096 -> 2048)",
        "LoRA (model.tuning full -> lora)",
    ]


def test_zero_2_spreads_weights_too_while_there_is_no_checkpoint_of_it() -> None:
    spread = COLOCATED.having(optimizer={"zero_stage": 2})
    zero3 = "ZeRO-3 (optimizer.zero_stage 2 -> 3)"
    given_up, lowest = walked(spread)
    assert zero3 in given_up
    assert lowest.optimizer.zero_stage == 3
    assert zero3 not in walked(spread, begun=True)[0]
    alone = spread.having(rollout={"engine": "transformers"})
    assert zero3 not in walked(alone)[0]  # nobody could generate


def test_adapters_do_not_take_over_a_run_that_has_saved_checkpoints() -> None:
    assert walked(COLOCATED, begun=True)[1].model.tuning == "full"


def test_at_the_end_nothing_is_left_to_give_up() -> None:
    assert walked(Settings.resolve(LOWEST)) == ([], Settings.resolve(LOWEST))


def test_each_rung_takes_less_and_the_passes_never_below_the_shortest() -> None:
    small = COLOCATED.having(optimizer={"micro_batch_tokens": 100})
    steps, settings = [small], small
    taken = 0
    while step := step_down(settings, taken):
        settings, taken, _ = step
        steps.append(settings)
    for before, after in pairwise(steps):
        assert after.optimizer.micro_batch_tokens <= before.optimizer.micro_batch_tokens
        assert after.rollout.memory_share <= before.rollout.memory_share
    assert settings.optimizer.micro_batch_tokens == 64


def test_adapters_learn_with_the_rate_that_the_recipe_gives_them() -> None:
    assert walked(COLOCATED, adapter_learning_rate=3e-5)[1].optimizer.learning_rate == 3e-5
    kept = walked(COLOCATED)[1]
    assert kept.optimizer.learning_rate == COLOCATED.optimizer.learning_rate


def test_a_trainer_that_a_signal_ended_was_killed() -> None:
    assert end_of_exit(-1).kind is EndKind.KILLED


@pytest.mark.parametrize(
    ("kinds", "tokens"),
    [
        ([EndKind.CRASHED], 8192),
        ([EndKind.HUNG], 8192),
        ([EndKind.UNREACHABLE], 8192),
        ([EndKind.INFERENCE_LOST], 8192),
        ([EndKind.OUT_OF_MEMORY], 4096),
        ([EndKind.KILLED], 4096),
        ([EndKind.CRASHED, EndKind.CRASHED], 4096),
        ([EndKind.CRASHED, EndKind.HUNG], 8192),
        ([EndKind.UNWRITTEN, EndKind.UNWRITTEN], 8192),
    ],
)
def test_next_attempt(kinds: list[EndKind], tokens: int) -> None:
    ends = [AttemptEnd(kind, "") for kind in kinds]
    decision = after_attempt(ends, ON_A_CPU, 0, max_restarts=3)
    assert isinstance(decision, NextAttempt)
    assert decision.settings.optimizer.micro_batch_tokens == tokens


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        ([EndKind.PUBLISHED], ExitStatus.UNVERIFIED),
        ([EndKind.OUT_OF_TIME], ExitStatus.DEADLINE),
        ([EndKind.REFUSED], ExitStatus.REFUSED),
        ([EndKind.OUT_OF_MEMORY, EndKind.REFUSED], ExitStatus.TRAINER),
        ([EndKind.UNSERVED], ExitStatus.INFERENCE),
        ([EndKind.CRASHED] * 4, ExitStatus.TRAINER),
        ([EndKind.CRASHED] * 3 + [EndKind.HUNG], ExitStatus.STALLED),
        ([EndKind.UNREACHABLE] * 4, ExitStatus.ENVIRONMENT),
        ([EndKind.INFERENCE_LOST] * 4, ExitStatus.INFERENCE),
    ],
)
def test_end_of_the_run(kinds: list[EndKind], status: ExitStatus) -> None:
    ends = [AttemptEnd(kind, "detail") for kind in kinds]
    decision = after_attempt(ends, ON_A_CPU, 0, max_restarts=3)
    assert isinstance(decision, Outcome)
    assert decision.status is status


def test_adapters_whose_vllm_never_comes_up_leave_zero_3_as_long_as_nothing_is_saved() -> None:
    spread = COLOCATED.having(optimizer={"zero_stage": 3}, model={"tuning": "lora"})
    alone = without_vllm(spread, keep_stage=False)
    assert alone is not None
    assert (alone.rollout.engine, alone.optimizer.zero_stage) == ("transformers", 2)
    assert alone.model.gradient_checkpointing
    assert without_vllm(spread.having(model={"tuning": "full"}), keep_stage=False) is None
    for kind, begun, engine in (
        (EndKind.UNSERVED, False, "transformers"),
        (EndKind.CRASHED, False, "transformers"),
        (EndKind.CRASHED, True, "vllm_colocated"),
        (EndKind.HUNG, False, "vllm_colocated"),
    ):
        ends = [AttemptEnd(kind, "")] * 3
        decision = after_attempt(ends, spread, len(LADDER), 9, begun=begun)
        assert isinstance(decision, NextAttempt)
        assert decision.settings.rollout.engine == engine


def test_lost_servers_that_are_waited_for_use_up_no_restart() -> None:
    ends = [AttemptEnd(EndKind.UNREACHABLE, "")] * 9 + [AttemptEnd(EndKind.CRASHED, "")]
    decision = after_attempt(ends, ON_A_CPU, 0, max_restarts=3, waited=9)
    assert isinstance(decision, NextAttempt)
    assert decision.settings == ON_A_CPU


def test_out_of_memory_takes_every_rung_with_any_number_of_restarts() -> None:
    """Six rungs and four restarts; at the ladder's end the restarts count."""
    spread = COLOCATED.having(optimizer={"zero_stage": 2})
    settings, rungs, ends = spread, 0, list[AttemptEnd]()
    while True:
        ends.append(AttemptEnd(EndKind.OUT_OF_MEMORY, ""))
        decision = after_attempt(ends, settings, rungs, 4)
        if isinstance(decision, Outcome):
            break
        settings, rungs = decision.settings, decision.rungs
    assert (settings.optimizer.zero_stage, settings.model.tuning) == (3, "lora")
    assert len(ends) == len(LADDER) + 4 + 1


def test_vllm_that_ran_out_of_memory_has_smaller_shares_before_passes_are_halved() -> None:
    settings, rungs, ends = COLOCATED, 0, list[AttemptEnd]()
    lowered = []
    for kind in (*[EndKind.ENGINE_OUT_OF_MEMORY] * 3, EndKind.OUT_OF_MEMORY):
        ends.append(AttemptEnd(kind, ""))
        decision = after_attempt(ends, settings, rungs, max_restarts=0)
        assert isinstance(decision, NextAttempt)
        lowered.append(decision.reason.partition("checkpoint, ")[2])
        settings, rungs = decision.settings, decision.rungs
    assert lowered == [
        "a smaller share for vLLM (rollout.memory_share 0.5 -> 0.4)",
        "a smaller share for vLLM (rollout.memory_share 0.4 -> 0.32)",
        "gradient checkpointing (model.gradient_checkpointing False -> True)",
        "half of a pass (optimizer.micro_batch_tokens 8192 -> 4096)",
    ]


def test_vllms_share_has_room_for_its_weights_and_an_episode() -> None:
    ends = [AttemptEnd(EndKind.ENGINE_OUT_OF_MEMORY, "")]
    decision = after_attempt(ends, COLOCATED, 0, max_restarts=3, least_share=0.47)
    assert isinstance(decision, NextAttempt)
    assert decision.settings.rollout.memory_share == 0.47


def test_without_a_share_to_lower_the_ladder_is_taken() -> None:
    smallest = COLOCATED.having(rollout={"memory_share": 0.47})
    ends = [AttemptEnd(EndKind.ENGINE_OUT_OF_MEMORY, "")]
    decision = after_attempt(ends, smallest, 0, max_restarts=3, least_share=0.47)
    assert isinstance(decision, NextAttempt)
    assert decision.settings.model.gradient_checkpointing


LOST, HUNG, CRASHED = EndKind.INFERENCE_LOST, EndKind.HUNG, EndKind.CRASHED
SERVER = ON_A_CPU.having(rollout={"engine": "vllm_server", "server": "http://h"})


@pytest.mark.parametrize(
    ("kinds", "engine"),
    [
        ([LOST], "vllm_server"),
        ([HUNG, EndKind.OUT_OF_MEMORY], "vllm_server"),
        ([LOST, LOST], "transformers"),
        ([LOST, EndKind.UNREACHABLE, HUNG], "transformers"),
        ([CRASHED, CRASHED], "vllm_server"),
        ([CRASHED, CRASHED, CRASHED], "transformers"),
        ([EndKind.UNSERVED], "transformers"),
    ],
)
def test_what_becomes_of_vllm(kinds: list[EndKind], engine: str) -> None:
    settings, rungs, ends = SERVER, 0, list[AttemptEnd]()
    for kind in kinds:
        ends.append(AttemptEnd(kind, ""))
        decision = after_attempt(ends, settings, rungs, 4)
        assert isinstance(decision, NextAttempt)
        settings, rungs = decision.settings, decision.rungs
    assert settings.rollout.engine == engine
    memory_trouble = EndKind.OUT_OF_MEMORY in kinds or kinds.count(CRASHED) > 1
    assert (settings != SERVER.having(rollout=settings.rollout.model_dump())) is memory_trouble


def test_at_the_ladders_end_the_attempt_is_repeated_as_it_was() -> None:
    ends = [AttemptEnd(EndKind.OUT_OF_MEMORY, "")]
    decision = after_attempt(ends, Settings.resolve(LOWEST), 0, max_restarts=3)
    assert isinstance(decision, NextAttempt)
    assert "as it was" in decision.reason
