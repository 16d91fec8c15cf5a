"""The step microscope: the record explains the loss that was logged."""

import errno
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch

from miner.cli.explain import explanation
from miner.config.errors import ConfigurationError
from miner.learning.token_log import learned_lines
from miner.reporting.run_folder import RunFolder
from miner.reporting.token_records import (
    RowTokens,
    StepTokens,
    TokenRecords,
    step_loss,
)
from miner.rewards.advantages import EPSILON
from tests.commands import miner
from tests.learning.test_trainer import make_trainer
from tests.training.in_process import working_in
from tests.training.test_weighted_rows import rollout as with_legal_replies


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps with credit by turn, of which the last two are recorded."""
    with working_in(tmp_path_factory.mktemp("explained")) as work:
        work.train(
            "optimizer.max_steps=3", "token_records=2", "reward.credit=turn",
        )  # fmt: skip
    return work.run_dir


def test_the_loss_from_the_record_is_the_one_that_was_logged(run_dir: Path) -> None:
    records = TokenRecords(run_dir)
    assert records.steps() == [2, 3], "the newest two"
    logged = {step.step: step.metrics["loss"] for step in RunFolder(run_dir).read().steps}
    for step in records.steps():
        parts = records.of(step)
        assert any(part.loss for part in parts)
        assert step_loss(parts) == pytest.approx(logged[step], rel=1e-3, abs=1e-6)


def test_every_advantage_follows_from_the_turns_parts(run_dir: Path) -> None:
    (part,) = TokenRecords(run_dir).of(3)
    said = explanation(run_dir, 3, 1)
    values = {f"{float(a):+.4f}" for row in part.rows if row.episode == 1 for a in row.advantages}
    assert values
    for value in values:
        assert f"advantage {value} = (return" in said
    assert all(word in said for word in ("masked, prompt", "masked, environment", "tree"))
    replies = [
        part.texts[int(token)]
        for row in part.rows
        if row.episode == 1
        for token in row.ids[row.prompt :][row.at]
    ]
    assert all(repr(text)[:19] in said for text in replies)


def test_credit_by_episode_is_explained_for_the_second_group_too(tmp_path: Path) -> None:
    with working_in(tmp_path) as work:
        work.train("optimizer.max_steps=1", "token_records=1")
    (part,) = TokenRecords(work.run_dir).of(1)
    assert part.rules["credit"] == "episode"
    size = part.rules["group_size"]
    for number in (0, size):
        said = explanation(work.run_dir, 1, number)
        values = {float(a) for row in part.rows if row.episode == number for a in row.advantages}
        assert all(f"  advantage {value:+.4f} = (reward" in said for value in values)
        group = [
            sum(sum(turn[1:]) for turn in each["parts"]) for each in part.episodes[number:][:size]
        ]
        assert "rewards of its group: " + " ".join(f"{each:.2f}" for each in group) in said


def test_all_episodes_are_in_a_line_each_and_absent_ones_are_named(run_dir: Path) -> None:
    said = miner("explain", run_dir)
    assert said.startswith("step 3: 8 episodes")
    assert "own" not in said.splitlines()[1], "both losses are equal"
    assert len(said.splitlines()) == 3 + 8
    for step, episode, sentence in ((1, None, "there are 2 to 3"), (3, 8, "episodes 0 to 7")):
        with pytest.raises(ConfigurationError, match=sentence):
            explanation(run_dir, step, episode)
    with pytest.raises(ConfigurationError, match="is not a folder"):
        explanation(run_dir / "mistyped", None, None)
    (part,) = TokenRecords(run_dir).of(3)
    file = run_dir / "tokens" / "000009.0.npz"
    part.write(file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ConfigurationError, match="not a record of tokens"):
        explanation(run_dir, 9, None)
    file.unlink()


@pytest.mark.parametrize(
    ("credit", "corrected", "by_policy"),
    [("episode", True, False), ("all_moves", False, False), ("all_moves", False, True)],
)
def test_rows_that_were_not_sampled_and_corrected_ratios_are_in_the_loss(
    tmp_path: Path, credit: str, corrected: bool, by_policy: bool
) -> None:
    def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        return with_legal_replies(prompts, trainer) | {"by_policy": [by_policy] * len(prompts)}

    records = TokenRecords(tmp_path)
    trainer = make_trainer(tmp_path, rollout, credit=credit, tokens=records, corrected=corrected)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    output = trainer._generate_and_score_completions([{"prompt": p} for p in "aabb"])
    loss = trainer.compute_loss(trainer.model, output)
    (part,) = records.of(1)
    assert part.loss == pytest.approx(loss.item(), rel=1e-5)
    assert abs(part.loss) > (1e-9 if by_policy else 1e-3)  # the base hardly gives these replies
    factors = np.concatenate([part.factor(row) for row in part.rows if row.weight is None])
    assert (np.abs(factors - 1) > 0.1).any() == corrected
    assert {row.weight for row in part.rows} == {None, 0.75, 0.25}
    if credit == "episode":
        first = next(row for row in part.rows if row.weight is None)
        deviation = math.sqrt(0.5)  # rewards of the group are 0 and 1
        assert first.advantages[0] == pytest.approx(-0.5 / (deviation + EPSILON), rel=1e-5)


def test_rows_that_another_process_has_learned_are_found_there() -> None:
    """Two processes with two lines each, which learn lines of each other."""

    def tree(*lines: int) -> SimpleNamespace:
        return SimpleNamespace(rows=list(lines))

    def values(*logprobs: float) -> torch.Tensor:
        return torch.tensor(logprobs)[:, None]

    passes = [
        [([tree(3), tree(0)], values(-0.5, -0.25))],
        [([tree(1, 2)], values(-0.125, -1.0))],
    ]
    parts: list[Any] = []
    for rank in (0, 1):
        learned_lines(passes[rank], 2, rank, lambda part: parts.append(part) or [part])
    found = [learned_lines(passes[rank], 2, rank, lambda _: parts) for rank in (0, 1)]
    shown = [{line: (at, v.item()) for line, (at, v) in of.items()} for of in found]
    assert shown == [{0: (1, -0.25), 1: (2, -0.125)}, {1: (0, -0.5), 0: (2, -1.0)}]


def test_a_decisions_prompt_is_written_once_and_read_for_each_reply(tmp_path: Path) -> None:
    prompt = np.random.default_rng(0).integers(0, 50_000, 4000).astype(np.int32)
    one, none = np.ones(1, np.float32), np.zeros(0, np.float32)

    def step(*prompts: np.ndarray) -> StepTokens:
        rows = [
            RowTokens(0, 4000, np.r_[ids, [reply]], one, one, one, one, none, one, 0, 0.5)
            for reply, ids in enumerate(prompts)
        ]
        return StepTokens(len(prompts), {}, [], rows, {})

    records = TokenRecords(tmp_path)
    records.add(step(prompt))
    records.add(step(*[prompt] * 9, prompt[::-1]))
    [found] = records.of(10)
    for reply, row in enumerate(found.rows):
        assert row.ids.tolist() == [*prompt[:: -1 if reply == 9 else 1], reply]
    alone, many = (path.stat().st_size for path in sorted((tmp_path / "tokens").iterdir()))
    assert many < 3 * alone


def learned(step: int, rank: int = 0) -> StepTokens:
    """A step of two groups of two lost episodes, by a process that is known by its divisor."""
    one = np.zeros(1, np.float32)
    row = RowTokens(0, 1, one, one, one, one, one, one, one, 0, None)
    rules = {"divisor": 1.0 + rank, "beta": 0.0, "clip": None, "group_size": 2}
    return StepTokens(step, rules, [None] * 4, [row], {})


@pytest.mark.parametrize(
    ("ranks", "keep", "kept"), [(1, 3, [11, 12, 13]), (2, -1, [*range(5, 14)]), (4, 1, [13])]
)
def test_a_resumed_run_replaces_the_steps_that_were_abandoned(
    tmp_path: Path, ranks: int, keep: int, kept: list[int]
) -> None:
    """A run of three processes, which was killed at step 20 and continues from step 11."""
    for step in range(5, 21):
        for rank in range(3):
            TokenRecords(tmp_path, rank=(rank, 3)).add(learned(step, rank))
    for step in (12, 13):
        for rank in range(ranks):
            TokenRecords(tmp_path, keep, (rank, ranks)).add(learned(step, rank))
    records = TokenRecords(tmp_path)
    assert records.steps() == kept
    there = {step: [part.rules["divisor"] - 1 for part in records.of(step)] for step in kept}
    assert there == {step: [*range(3 if step < 12 else ranks)] for step in kept}


def test_groups_of_all_processes_are_numbered_as_their_episodes(tmp_path: Path) -> None:
    for rank in (0, 1):
        TokenRecords(tmp_path, rank=(rank, 2)).add(learned(1, rank))
    overview = explanation(tmp_path, 1, None).splitlines()[3:]
    assert [line[-len("(group 0)") :] for line in overview] == [
        f"(group {number // 2})" for number in range(8)
    ]
    assert explanation(tmp_path, 1, 5).splitlines()[0].endswith("(group 2)")


def test_a_disk_that_refuses_ends_the_records_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("in the way")
    records = TokenRecords(tmp_path, keep=5)
    records.add(learned(1))
    assert records.keep == 0


def test_a_record_that_fills_the_disk_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: BinaryIO, **_: object) -> None:
        file.write(b"the last byte")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    TokenRecords(tmp_path, keep=5).add(learned(1))
    assert list((tmp_path / "tokens").iterdir()) == []


def test_with_a_kl_term_the_loss_is_recomputed_too(tmp_path: Path) -> None:
    with working_in(tmp_path) as work:
        work.train("optimizer.max_steps=2", "optimizer.beta=0.2", "token_records=-1")
    logged = [step.metrics["loss"] for step in RunFolder(work.run_dir).read().steps]
    records = TokenRecords(work.run_dir)
    for step, loss in zip(records.steps(), logged, strict=True):
        assert step_loss(records.of(step)) == pytest.approx(loss, rel=1e-3, abs=1e-6)
    assert torch.tensor(logged).abs().max() > 1e-4
