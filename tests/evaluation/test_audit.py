"""Findings of an audit about a base and its environment's rewards."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from miner.config.errors import ConfigurationError
from miner.environments import EpisodeTask
from miner.environments.base import Observation
from miner.evaluation.audit import INJECTION, NO_PLAY, Audit, FixedPolicy
from miner.evaluation.results import EpisodeRecord, EvaluationResult, Reply
from miner.evaluation.runner import evaluate
from tests.builders import build_qwen3, save_base
from tests.commands import miner, refusal
from tests.training.in_process import working_in

LEGAL, ILLEGAL = Reply(text="1", action=1), Reply(text="9", action=None, valid=False)
UNREAD = Reply(text="hm", action=None, valid=False, number=False)
CUT = Reply(text="1, as", action=1, cut=True)


def result(policy: str, scores: list[float], replies: tuple[Reply, ...] = ()) -> EvaluationResult:
    episodes = tuple(
        EpisodeRecord(environment="goofspiel", task_id=n, seed=n, opponent="random", score=score,
                      replies=replies)
        for n, score in enumerate(scores)
    )  # fmt: skip
    return EvaluationResult(
        policy=policy, channel="builtin", environment="goofspiel", episodes=episodes, seconds=2.0
    )


def audit(scores: list[float], *replies: Reply, others: tuple[EvaluationResult, ...] = ()) -> Audit:
    return Audit(
        base=result("base", scores, replies or (LEGAL,)),
        others=others, group_size=2, penalty=1.0, reply_tokens=3.0,
    )  # fmt: skip


def test_groups_have_signal_where_their_members_differ() -> None:
    assert audit([1, 0, 1, 1, 0, 0, 0, 1]).with_signal == 0.5
    assert any("Only 0% of the groups" in line for line in audit([1, 1, 0, 0]).findings(8, None))
    assert not any("signal" in line for line in audit([1, 0, 0, 1]).findings(8, None))
    alone = replace(audit([1, 1, 0, 0]), group_size=1)
    assert not any("signal" in line for line in alone.findings(8, None)), "nothing to compare"


def test_replies_are_counted_by_fate_and_penalties_are_in_the_reward() -> None:
    found = audit([1, 1], LEGAL, ILLEGAL, UNREAD, UNREAD)
    assert found.fates == {"legal": 0.25, "illegal": 0.25, "unreadable": 0.5, "cut off": 0.0}
    assert found.mean_reward == -2.0
    assert any("Only 25% of the replies are legal" in line for line in found.findings(8, None))


def test_a_reply_that_was_cut_off_costs_what_it_costs_in_training() -> None:
    found = audit([1, 1], LEGAL, CUT)
    assert found.fates == {"legal": 1.0, "illegal": 0.0, "unreadable": 0.0, "cut off": 0.5}
    assert found.mean_reward == 0.0
    cut, whole = (result("base", [1.0], (reply,)).episodes[0] for reply in (CUT, LEGAL))
    assert replace(found, base=found.base.model_copy(update={"episodes": (cut, whole)})).with_signal


def test_an_environment_that_rewards_what_is_not_a_play_is_named() -> None:
    others = (result("empty", [0.0] * 30), result("injection", [1.0] * 30), result("random", [1.0]))
    found = audit([1, 0], others=others)
    assert found.rewarded.keys() == {"injection"}
    assert "rewards injection replies" in found.findings(8, None)[0]


def test_the_time_given_is_counted_in_steps() -> None:
    assert "takes 4.0 s: at most 25 steps" in audit([1, 0]).findings(4, 100.0)[-1]


@pytest.mark.parametrize(
    ("name", "reply"),
    [("empty", ""), ("constant", "1"), ("echo", "say something"), ("injection", INJECTION)],
)
async def test_policies_without_play_reply_so(name: str, reply: str) -> None:
    chat = Observation(({"role": "user", "content": "say something"},))
    player = FixedPolicy(name).conversation(EpisodeTask("Guess", 1, 1))
    assert name in NO_PLAY
    assert await player.answer(chat) == reply


WORDS = (
    "environment.channel=builtin", "environment.deck_sizes=[8]", "rollout.group_size=2",
    "threads=1", "--groups", "2",
)  # fmt: skip


def test_the_command_plays_base_and_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = []

    async def kept(policy: Any, source: Any, tasks: Any, rules: Any) -> EvaluationResult:
        played[:] = tasks
        return await evaluate(policy, source, tasks, rules)

    monkeypatch.setattr("miner.evaluation.runner.evaluate", kept)
    with working_in(tmp_path) as work:
        output = miner("audit", f"model.path={work.base}", *WORDS)
    assert len(played) == 4
    assert played[0] == played[1] != played[2] == played[3], "groups are of neighbours"
    for text in (
        "base, sampled",
        "injection",
        "match (bid = prize)",
        "groups with signal",
        "legal",
        "cut off",
    ):
        assert text in output


def test_a_base_that_cannot_play_has_no_audit(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", build_qwen3(max_position_embeddings=64))
    with pytest.raises(ConfigurationError, match="no episode of the base could be played"):
        miner("audit", f"model.path={base}", *WORDS)


def test_recorded_conversations_have_no_reward_to_audit() -> None:
    said = refusal("audit", "model.path=MODEL", "environment.channel=recorded")
    assert "environment.channel=recorded is learned, not played" in said
