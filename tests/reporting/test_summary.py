"""Sentences and numbers that pages share: which model is published, and which is the newest."""

from pathlib import Path

import pytest

from miner.evaluation.statistics import Estimate
from miner.reporting.figures import learning_curve
from miner.reporting.run_folder import RunFolder
from miner.reporting.summary import held_out_curve
from tests.reporting.live_run import live
from tests.reporting.made import evaluation

Evaluated = tuple[int, float, bool]
"""Step, score, published."""

KILLED_AFTER_60 = [(0, 0.3, True), (20, 0.5, True), (40, 0.9, True), (60, 0.8, False)]


def evaluated(folder: Path, *held_out: Evaluated) -> RunFolder:
    """A run whose evaluations were recorded in this order."""
    run = RunFolder(folder)
    for time, (step, score, published) in enumerate(held_out):
        gain = Estimate(score - 0.3, score - 0.4, score - 0.2, 100) if step else None
        run.evaluations.append(
            evaluation("checkpoint", score, step=step, split="held_out", time=time,
                       published=published, difference=gain)
        )  # fmt: skip
    return run


@pytest.mark.parametrize(
    ("resumed", "curve", "published", "newest"),
    [
        ([], [0, 20, 40, 60], (40, 0.9), (60, 0.8)),
        ([(40, 0.6, False)], [0, 20, 40, 40], (40, 0.9), (40, 0.6)),
        ([(10, 0.6, False)], [0, 40, 10], (40, 0.9), (10, 0.6)),
        ([(40, 0.6, False), (60, 0.95, True)], [0, 20, 40, 60], (60, 0.95), (60, 0.95)),
        ([(40, 0.6, False), (30, 0.7, True)], [0, 20, 30], (30, 0.7), (30, 0.7)),
    ],
)
def test_what_a_resumed_run_evaluates_hides_no_published_model(
    tmp_path: Path,
    resumed: list[Evaluated],
    curve: list[int],
    published: tuple[int, float],
    newest: tuple[int, float],
) -> None:
    run = evaluated(tmp_path, *KILLED_AFTER_60, *resumed)
    view = live(tmp_path).view()
    assert [point.x for point in view.charts[0].points] == curve
    facts = {label: (value, detail) for label, value, detail in view.facts}
    shown = {"published model": published, "newest checkpoint": newest}
    for label, (step, score) in shown.items():
        if label == "published model" or newest != published:
            value, detail = facts[f"{label}, score"]
            assert (value, detail.endswith(f" step {step}")) == (f"{score:.3f}", True)
    assert f"published at step {published[0]}" in view.verdict
    [arrow] = learning_curve([], held_out_curve(run.read())).axes[0].texts[:1]
    assert arrow.xy == published  # type: ignore[attr-defined]  # of annotations


GAIN = Estimate(0.573, 0.45, 0.69, 64)


@pytest.mark.parametrize(
    ("gain", "withheld", "verdict"),
    [
        (GAIN, "the gate was undecided in goofspiel",
         "Better than its base: +0.573 [+0.450, +0.690] on the same 64 held-out episodes (95% "
         "interval), but not published at step 10 (the gate was undecided in goofspiel). More "),
        (GAIN, "", "Better than its base: +0.573 [+0.450, +0.690] on the same 64 held-out episodes "
         "(95% interval), but not published at step 10. More than chance"),
        (Estimate(0.1, -0.02, 0.22, 64), "no space left", "Perhaps better than its base: +0.100"),
        (Estimate(0.1, -0.02, 0.22, 64), "", "No better than its base so far: none of 1"),
    ],
)  # fmt: skip
def test_a_better_model_that_was_not_published_is_reported(
    tmp_path: Path, gain: Estimate, withheld: str, verdict: str
) -> None:
    run = evaluated(tmp_path, (0, 0.3, True))
    run.evaluations.append(
        evaluation("checkpoint", 0.8, step=10, split="held_out", difference=gain, withheld=withheld)
    )
    assert live(tmp_path).view().verdict.startswith(verdict)


def test_what_is_published_comes_before_what_was_withheld(tmp_path: Path) -> None:
    evaluated(tmp_path, (0, 0.3, True), (10, 0.5, True), (20, 0.9, False))
    assert "+0.200 [+0.100, +0.300]" in live(tmp_path).view().verdict


def test_of_several_that_were_withheld_the_clearest_is_named(tmp_path: Path) -> None:
    run = evaluated(tmp_path, (0, 0.3, True))
    for step, gain in ((10, GAIN), (20, Estimate(0.1, -0.02, 0.22, 64))):
        found = evaluation("checkpoint", 0.8, step=step, split="held_out", difference=gain)
        run.evaluations.append(found.model_copy(update={"withheld": "undecided"}))
    assert live(tmp_path).view().verdict.startswith("Better than its base: +0.573")


def test_candidates_of_an_abandoned_attempt_were_looked_at_too(tmp_path: Path) -> None:
    evaluated(tmp_path, *KILLED_AFTER_60, (10, 0.3, False))
    assert "best of 4" in live(tmp_path).view().verdict
