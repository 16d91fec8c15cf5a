"""What was lost with the engine is played again, and belongs to its group as if never lost."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from miner.inference.engines import Stray
from miner.inference.sampler import EngineLostError
from miner.rollout.groups import Group, GroupResult, LostEpisode
from miner.training.recovery import play_through
from tests.builders import build_task, build_trajectory


class OnceLost:
    """An engine that strays once."""

    def __init__(self) -> None:
        self._strays = iter([Stray("it was gone", noticed=True)])
        self.recovered = 0

    def playing(self) -> Any:
        return nullcontext()

    def strayed(self) -> Stray | None:
        return next(self._strays, None)

    def recover(self) -> None:
        self.recovered += 1


def test_a_group_varies_by_what_its_members_are_worth_not_by_their_scores() -> None:
    """Equal scores, of which one took a penalised try: the member that was played again counts."""
    lost = LostEpisode(build_task(), EngineLostError("gone"), attempts=1)
    kept, again = build_trajectory(), build_trajectory()
    assert kept.score == again.score
    plays = iter([GroupResult(Group(build_task(), 2), (lost, kept), (1.0,)),
                  GroupResult(Group(build_task(), 1), (again,), (0.5,))])  # fmt: skip
    engine: Any = OnceLost()
    [result] = play_through(engine, lambda groups: [next(plays)], [Group(build_task(), 2)])
    assert engine.recovered == 1
    assert result.outcomes == (again, kept)
    assert result.varied
    assert not result.flat
