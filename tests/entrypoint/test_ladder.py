"""The degrade ladder and what follows the end of an attempt."""

from __future__ import annotations

import pytest

from entrypoint.exit_status import ExitStatus
from entrypoint.ladder import LADDER, Settings, step_down, weights_by_file, without_vllm
from entrypoint.outcome import Outcome
from entrypoint.presets import PRESETS
from entrypoint.restart import AttemptEnd, EndKind, NextAttempt, after_attempt, end_of_exit

FULL: Settings = {
    "optimizer": {"micro_batch_tokens": 8192},
    "rollout": {"memory_share": 0.5, "max_episode_tokens": 4096},
    "model": {"tuning": "full"},
}
MICRO_BATCH_ONLY: Settings = {"optimizer": {"micro_batch_tokens": 32768}}


def test_the_whole_ladder_is_walked_once() -> None:
    settings, taken, given_up = FULL, 0, []
    while (step := step_down(settings, taken)) is not None:
        settings, taken, what = step
        given_up.append(what)
    assert given_up == [
        "half the micro-batch (optimizer.micro_batch_tokens 8192 -> 4096)",
        "a smaller share for vLLM (rollout.memory_share 0.5 -> 0.4)",
        "half the micro-batch again (optimizer.micro_batch_tokens 4096 -> 2048)",
        "shorter episodes (rollout.max_episode_tokens 4096 -> 3072)",
        "LoRA (model.tuning full -> lora)",
    ]
    assert FULL["optimizer"]["micro_batch_tokens"] == 8192


@pytest.mark.parametrize(
    ("settings", "rung"),
    [
        ({}, None),
        ({"optimizer": {"micro_batch_tokens": 64}}, None),
        ({"optimizer": {"micro_batch_tokens": 64}, "model": {"tuning": "full"}}, "LoRA"),
        ({"model": {"tuning": "lora"}}, None),
        ({"rollout": {"max_episode_tokens": 512}}, None),
    ],
)
def test_rungs_that_change_nothing_are_skipped(settings: Settings, rung: str | None) -> None:
    step = step_down(settings, 0)
    assert (step[2].partition(" (")[0] if step else None) == rung


def test_adapters_get_the_learning_rate_that_the_presets_give_them() -> None:
    for preset in PRESETS:
        step = step_down(
            {"model": {"tuning": "full"}, "optimizer": {"learning_rate": preset.full}}, 0
        )
        assert step is not None
        assert step[0]["optimizer"]["learning_rate"] == pytest.approx(preset.lora)
    untouched = {"model": {"tuning": "lora"}, "optimizer": {"learning_rate": 1e-5}}
    assert step_down(untouched, 0) is None


def test_every_rung_has_a_name_of_its_own() -> None:
    assert len({rung.name for rung in LADDER}) == len(LADDER)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (0, EndKind.PUBLISHED),
        (1, EndKind.CRASHED),
        (2, EndKind.REFUSED),
        (69, EndKind.UNREACHABLE),
        (76, EndKind.INFERENCE_LOST),
        (75, EndKind.OUT_OF_MEMORY),
        (-1, EndKind.KILLED),
    ],
)
def test_what_an_exit_status_means(status: int, kind: EndKind) -> None:
    assert end_of_exit(status).kind is kind


@pytest.mark.parametrize(
    ("kinds", "tokens"),
    [
        ([EndKind.CRASHED], 32768),
        ([EndKind.HUNG], 32768),
        ([EndKind.UNREACHABLE], 32768),
        ([EndKind.INFERENCE_LOST], 32768),
        ([EndKind.OUT_OF_MEMORY], 16384),
        ([EndKind.KILLED], 16384),
        ([EndKind.CRASHED, EndKind.CRASHED], 16384),
        ([EndKind.CRASHED, EndKind.HUNG], 32768),
    ],
)
def test_next_attempt(kinds: list[EndKind], tokens: int) -> None:
    ends = [AttemptEnd(kind, "") for kind in kinds]
    decision = after_attempt(ends, MICRO_BATCH_ONLY, 0, max_restarts=3)
    assert isinstance(decision, NextAttempt)
    assert decision.settings["optimizer"]["micro_batch_tokens"] == tokens


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
    decision = after_attempt(ends, MICRO_BATCH_ONLY, 0, max_restarts=3)
    assert isinstance(decision, Outcome)
    assert decision.status is status


LOST, HUNG, CRASHED = EndKind.INFERENCE_LOST, EndKind.HUNG, EndKind.CRASHED
SERVER: Settings = {"rollout": {"engine": "vllm_server", "server": "http://h"}, **MICRO_BATCH_ONLY}


@pytest.mark.parametrize(
    ("kinds", "engine", "weights"),
    [
        ([LOST], "vllm_server", None),
        ([LOST, LOST], "vllm_server", "file"),
        ([LOST, HUNG], "vllm_server", "file"),
        ([LOST, LOST, HUNG], "transformers", None),
        ([LOST, LOST, EndKind.OUT_OF_MEMORY], "vllm_server", "file"),
        ([LOST, LOST, EndKind.UNREACHABLE, LOST], "transformers", None),
        ([CRASHED, CRASHED, LOST, LOST], "transformers", None),  # the last restart
        ([CRASHED, CRASHED, CRASHED], "transformers", None),
        ([EndKind.UNSERVED], "transformers", None),
    ],
)
def test_what_becomes_of_vllm(kinds: list[EndKind], engine: str, weights: str | None) -> None:
    settings, rungs, ends = SERVER, 0, []
    for kind in kinds:
        ends.append(AttemptEnd(kind, ""))
        decision = after_attempt(
            ends,
            settings,
            rungs,
            4,
            by_file=weights_by_file(settings),
            alone=without_vllm(settings),
        )
        assert isinstance(decision, NextAttempt)
        settings, rungs = decision.settings, decision.rungs
    assert settings["rollout"]["engine"] == engine
    assert settings["rollout"].get("weights") == weights
    memory_trouble = EndKind.OUT_OF_MEMORY in kinds or kinds.count(CRASHED) > 1
    assert (settings["optimizer"]["micro_batch_tokens"] < 32768) is memory_trouble


def test_at_the_ladders_end_the_attempt_is_repeated_as_it_was() -> None:
    ends = [AttemptEnd(EndKind.OUT_OF_MEMORY, "")]
    decision = after_attempt(ends, {"optimizer": {"micro_batch_tokens": 64}}, 0, max_restarts=3)
    assert isinstance(decision, NextAttempt)
    assert "as it was" in decision.reason


def test_adapters_do_not_take_over_a_run_under_deepspeed() -> None:
    settings = {"optimizer": {"micro_batch_tokens": 64}, "model": {"tuning": "full"}}
    assert step_down(settings, 0) is not None
    settings["optimizer"]["deepspeed"] = "deepspeed.json"  # type: ignore[assignment]
    assert step_down(settings, 0) is None
