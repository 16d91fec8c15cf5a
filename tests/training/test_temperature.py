"""The temperature that fits a base: how it is found, and that sampler and trainer both have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from miner.config.errors import ConfigurationError
from miner.environments import InfrastructureError
from miner.training import run as training
from miner.training.temperature import FittedTemperature, Tried, fit_temperature
from miner.training.trainer import EpisodeTrainer
from tests.training.in_process import Work, working_in


def answering_until(limit: float, asked: list[float]):
    """A base half of whose replies are invalid above `limit`, and one in ten below."""

    def try_at(temperature: float) -> Tried:
        asked.append(temperature)
        return Tried(temperature=temperature, replies=50, invalid=5 if temperature <= limit else 25)

    return try_at


@pytest.mark.parametrize(
    ("limit", "chosen"),
    [(2.0, 1.0), (0.85, 0.85), (0.65, 0.6), (0.6, 0.6), (0.45, 0.4), (0.3, 0.3), (0.1, 0.3)],
)
def test_the_highest_temperature_that_fits_is_found_in_three_tries(limit, chosen):
    asked: list[float] = []
    fitted = fit_temperature(1.0, 0.2, answering_until(limit, asked))
    assert fitted.temperature == chosen
    assert len(asked) <= 3
    assert [each.temperature for each in fitted.tried] == asked


def test_the_ladder_begins_at_the_temperature_that_is_set():
    assert fit_temperature(0.8, 0.2, answering_until(0.7, [])).temperature == 0.68


def test_what_was_found_is_said_also_where_nothing_fits():
    good = fit_temperature(1.0, 0.2, answering_until(0.6, []))
    assert str(good) == (
        "temperature 0.6 (invalid replies of the base: at 0.85 25 of 50, at 0.7 25 of 50, "
        "at 0.6 5 of 50; at most 20% wanted)"
    )
    assert "none is low enough" in str(fit_temperature(1.0, 0.2, answering_until(0.0, [])))


def test_games_that_cannot_be_played_find_nothing():
    with pytest.raises(InfrastructureError, match=r"none of 4 games .* temperature 0\.6"):
        fit_temperature(1.0, 0.2, lambda t: Tried(temperature=t, replies=0, invalid=0))


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    with working_in(tmp_path) as work:
        yield work


FITTING = ("rollout.most_invalid=0.3", "optimizer.max_steps=1", "rollout.max_reply_tokens=3")


def test_the_fitted_temperature_is_that_of_sampler_and_trainer_and_stays(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps: list[tuple[float, float]] = []
    compute = EpisodeTrainer._compute_loss

    def compared(trainer, model, inputs):
        """Importance ratios of the first step, and what they were at temperature 1."""
        found = []
        for temperature in (trainer.temperature, 1.0):
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            fitted, trainer.temperature = trainer.temperature, temperature
            with torch.no_grad():
                logprobs, _, _ = trainer._get_per_token_logps_and_entropies(
                    model, ids, attended, inputs["completion_ids"].shape[1]
                )
            trainer.temperature = fitted
            mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
            ratios = (logprobs - inputs["sampling_per_token_logps"])[mask].exp()
            found.append(float((ratios - 1).abs().max()))
        gaps.append((found[0], found[1]))
        return compute(trainer, model, inputs)

    monkeypatch.setattr(EpisodeTrainer, "_compute_loss", compared)
    work.train(*FITTING)
    kept = FittedTemperature.read(work.run_dir)
    assert kept is not None
    assert kept.temperature < 1.0
    assert work.trainers[0].temperature == kept.temperature
    assert f"sampling at temperature {kept.temperature:g} (invalid" in work.said.getvalue()
    assert max(fitted for fitted, _ in gaps) < 1e-3
    assert max(at_one for _, at_one in gaps) > 0.1

    def never(*_: object) -> FittedTemperature:
        raise AssertionError("a run has one temperature")

    monkeypatch.setattr(training, "fit_temperature", never)
    work.train(*FITTING)
    assert work.trainers[1].temperature == kept.temperature


def test_a_run_without_a_checkpoint_looks_again(work: Work) -> None:
    work.run_dir.mkdir()
    FittedTemperature(temperature=0.123, most_invalid=0.3, tried=()).write(work.run_dir)
    work.train(*FITTING)
    assert work.trainers[0].temperature != 0.123


def test_a_kl_term_would_be_scored_at_another_temperature(work: Work) -> None:
    with pytest.raises(ConfigurationError, match=r"rollout\.most_invalid .* optimizer\.beta=0"):
        work.settings("rollout.most_invalid=0.3", "optimizer.beta=0.1")


def test_trls_own_head_scores_at_the_temperature_as_well(work: Work) -> None:
    """On GPUs it scores, not ours."""
    work.train("optimizer.max_steps=1")
    trainer = work.trainers[0]
    ids = torch.randint(4, 300, (2, 12))
    model = trainer.model.eval()
    with torch.no_grad():
        scores = model(input_ids=ids).logits[:, :-1].float()
        for temperature in (1.0, 0.4):
            trainer.sample_at(temperature)
            output = model(input_ids=ids, labels=ids, fused_lm_head=True)
            wanted = (scores / temperature).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
            torch.testing.assert_close(output.log_probs, wanted, atol=1e-4, rtol=1e-4)
