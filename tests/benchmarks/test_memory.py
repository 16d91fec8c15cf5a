"""The memory benchmark on two layers of a large shape: torch's count beside the planner's."""

from dataclasses import replace
from typing import Literal

import pytest

from benchmarks.memory import config_of, main, planned, tracked_peak
from entrypoint.memory import TrainerLoad
from entrypoint.pretended import NAMED

LAYER = 233_057_792  # parameters of one of Qwen2.5-7B


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_the_planner_is_above_the_tracker_and_not_far(
    tuning: Literal["full", "lora"], checkpointing: bool
) -> None:
    shape = NAMED["7B"][2]
    small = replace(shape, layers=2, parameters=shape.parameters - (shape.layers - 2) * LAYER)
    config = config_of("7B")
    config.num_hidden_layers, config.layer_types = 2, config.layer_types[:2]
    load = TrainerLoad(small, tuning, 1, 0, 4096, checkpointing=checkpointing)
    assert 1.0 <= planned(load) / tracked_peak(config, load) <= 1.25


def test_a_size_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--sizes", "70B"])
    assert "invalid choice: '70B'" in capsys.readouterr().err
