"""The dry run's estimate of a step: what it grows and shrinks with, and its order of magnitude."""

from __future__ import annotations

import pytest

from entrypoint.pretended import pretend_hardware
from entrypoint.step_cost import StepCost, step_cost
from entrypoint.topology import BatchShape, plan_topology
from entrypoint.workload import SERVED
from tests.entrypoint.test_topology import MODELS


def cost(size: str, inventory: str) -> StepCost:
    hardware = pretend_hardware(inventory)
    batch = BatchShape(episode_tokens=4653, servers=max(1, len(hardware.gpus)))  # 2,792 on average
    topology = plan_topology(hardware, MODELS[size], batch)
    return step_cost(topology, MODELS[size], hardware, batch.group_size, SERVED)


def test_larger_models_take_longer_and_more_gpus_less() -> None:
    by_size = [cost(size, "8xH100-80GB").seconds for size in ("0.5B", "3B", "7B")]
    assert by_size == sorted(by_size)
    by_gpus = [cost("0.5B", f"{count}xH100-80GB").seconds for count in (1, 4, 8)]
    assert by_gpus == sorted(by_gpus, reverse=True)
    assert cost("0.5B", "1xA100-80GB").seconds > cost("0.5B", "1xH100-80GB").seconds
    assert cost("0.5B", "0").seconds > 10 * cost("0.5B", "1xH100-80GB").seconds


@pytest.mark.parametrize(
    ("size", "inventory", "by_hand"),
    [("3B", "1xH100-80GB", 34), ("7B", "1xH100-80GB", 64), ("7B", "8xH100-80GB", 13)],
)
def test_estimates_agree_with_those_by_hand_within_a_factor_of_two(
    size: str, inventory: str, by_hand: float
) -> None:
    assert by_hand / 2 < cost(size, inventory).seconds < 2 * by_hand
