"""The temperature that fits a base: how it is found, and that sampler and trainer both have it."""

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings
from miner.environments import EpisodeTask, InfrastructureError
from miner.learning.trainer import EpisodeTrainer
from miner.training import run as training
from miner.training.episodes import task_stream
from miner.training.temperature import (
    MOST_EPISODES,
    FittedTemperature,
    SequentialTest,
    TimeForRounds,
    fit_temperature,
    round_size,
)
from tests.training.in_process import Work


def forfeiting(share_at: Callable[[float], float], asked: list[float], size: int = 20):
    """Rounds of this many games, of which a base forfeits the share at each temperature."""

    def play(temperature: float, number: int) -> tuple[int, int]:
        if number == 0:
            asked.append(temperature)
        return size, round(size * share_at(temperature))

    return play


def answering_until(limit: float, asked: list[float]):
    """A base that forfeits half of its games above `limit`, and none below."""
    return forfeiting(lambda temperature: 0.0 if temperature <= limit else 0.5, asked)


@pytest.mark.parametrize(
    ("limit", "chosen"),
    [(2.0, 1.0), (0.85, 0.85), (0.65, 0.6), (0.6, 0.6), (0.45, 0.4), (0.3, 0.3), (0.1, 0.3)],
)
def test_the_highest_temperature_that_fits_is_found_in_four_tries(limit, chosen):
    asked: list[float] = []
    fitted = fit_temperature(1.0, 0.25, answering_until(limit, asked))
    assert fitted.temperature == chosen
    assert len(asked) <= (4 if chosen < 1 else 1)
    assert [each.temperature for each in fitted.tried] == asked


def test_the_ladder_begins_at_the_temperature_that_is_set():
    assert fit_temperature(0.8, 0.25, answering_until(0.7, [])).temperature == 0.68


def test_what_was_found_is_reported_also_where_nothing_fits():
    good = fit_temperature(1.0, 0.25, answering_until(0.6, []))
    assert str(good) == (
        "temperature 0.6 (games that the base ended by an invalid reply: at 1 10 of 20, "
        "at 0.7 10 of 20, at 0.6 0 of 20, at 0.5 0 of 20; at most 25% wanted)"
    )
    assert "none is low enough" in str(fit_temperature(1.0, 0.25, answering_until(0.0, [])))


def test_games_that_cannot_be_played_find_nothing():
    with pytest.raises(InfrastructureError, match=r"not one game .* temperature 1 "):
        fit_temperature(1.0, 0.25, lambda *_: (0, 0))


@pytest.mark.parametrize(("offset", "right"), [("low", True), ("high", False)])
@pytest.mark.parametrize("limit", [0.1, 0.25, 0.6])
def test_decisions_are_as_often_wrong_as_is_stated(limit: float, offset: str, right: bool) -> None:
    test, draw = SequentialTest(limit), random.Random(offset)
    share = getattr(test, offset)
    wrong = 0
    for _ in range(1000):
        played = forfeited = 0
        while (fits := test.fits(played, forfeited)) is None:
            played += 1
            forfeited += draw.random() < share
        wrong += fits is not right
    assert 0 < wrong <= 1000 * test.error


def test_one_forfeit_of_a_few_games_decides_nothing():
    """One in four, of which the rule by replies was sure."""
    rounds: list[int] = []

    def play(temperature: float, number: int) -> tuple[int, int]:
        rounds.append(number)
        return 4, int(number == 0)

    first = fit_temperature(1.0, 0.25, play).tried[0]
    assert first.fits
    assert first.episodes > 4
    assert rounds[:3] == [0, 1, 2]


def test_a_share_at_the_limit_comes_to_an_end():
    tried = fit_temperature(1.0, 0.25, forfeiting(lambda _: 0.25, [])).tried
    assert {each.episodes for each in tried} == {MOST_EPISODES}
    assert all(each.fits for each in tried), "`most_invalid` itself is low enough"


@pytest.mark.parametrize(
    ("share", "chosen", "sentence"),
    [(0.0, 1.0, "wanted)"), (0.5, 0.5, "no time to try it")],
)
def test_without_time_the_first_round_decides(share: float, chosen: float, sentence: str) -> None:
    asked: list[float] = []
    fitted = fit_temperature(1.0, 0.25, forfeiting(lambda _: share, asked), room=lambda: False)
    assert asked == [1.0]
    assert fitted.temperature == chosen
    assert sentence in str(fitted)


def test_rounds_after_the_first_one_take_their_share_of_the_time():
    now = 100.0
    room = TimeForRounds(1000.0, clock=lambda: now)  # 30 seconds
    for took, left in ((8.0, True), (4.0, True), (12.0, True), (3.0, False)):
        now += took
        assert room() is left
    room = TimeForRounds(1000.0, clock=lambda: now)
    now += 31.0
    assert not room()
    assert TimeForRounds(math.inf)()


@pytest.mark.parametrize(("fitting", "later"), [(1.0, 70.0), (0.85, 20.0)])
def test_a_long_first_round_lowers_no_temperature(fitting: float, later: float) -> None:
    """Engines start in it; an hour's share is 108 seconds."""
    now = 0.0
    answering = answering_until(fitting, [])

    def play(temperature: float, number: int) -> tuple[int, int]:
        nonlocal now
        now += later if now else 70.0
        return answering(temperature, number)

    room = TimeForRounds(3600.0, clock=lambda: now)
    assert fit_temperature(1.0, 0.25, play, room).temperature == fitting


def test_rounds_have_every_kind_equally_often() -> None:
    duels = EnvironmentSettings(channel="duel", opponents=("random", "mcts:10"))
    served = EnvironmentSettings(channel="builtin", deck_sizes=(8, 10, 16))
    for settings, kinds in ((duels, 24), (served, 6)):
        stream = task_stream(settings)
        assert stream.kinds == kinds
        size = round_size(stream.kinds)
        tasks = [stream.training(index, 5) for index in range(size, 2 * size)]
        seen = Counter(
            (task.environment, task.opponent, task.seed % 2, deck_of(task)) for task in tasks
        )
        assert set(seen.values()) == {size // kinds}
        assert len(seen) == kinds


def deck_of(task: EpisodeTask) -> int:
    return 0 if task.environment.startswith("duel:") else task.task_id % 5


FITTING = ("rollout.most_invalid=0.3", "optimizer.max_steps=1", "rollout.max_reply_tokens=3")


def test_the_fitted_temperature_is_that_of_sampler_and_trainer_and_stays(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps: list[tuple[float, float]] = []
    generate = EpisodeTrainer._generate_and_score_completions

    def compared(trainer, inputs):
        """Importance ratios of the first step, and what they were at temperature 1."""
        batch = generate(trainer, inputs)
        ids, there = batch["completion_ids"], batch["completion_mask"]
        fitted, found = trainer.temperature, []
        for temperature in (1.0, fitted):
            trainer.sample_at(temperature)
            with torch.no_grad():
                logprobs, _, _ = trainer._get_per_token_logps_and_entropies(
                    trainer.model, ids, there, ids.shape[1], batch_size=len(ids)
                )
            ratios = (logprobs - batch["sampling_per_token_logps"])[there.bool()].exp()
            found.append(float((ratios - 1).abs().max()))
        gaps.append((found[1], found[0]))
        return batch

    monkeypatch.setattr(EpisodeTrainer, "_generate_and_score_completions", compared)
    work.train(*FITTING)
    kept = FittedTemperature.read(work.run_dir)
    assert kept is not None
    assert kept.temperature < 1.0
    assert work.trainers[0].temperature == kept.temperature
    assert f"sampling at temperature {kept.temperature:g} (games that" in work.said.getvalue()
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


def test_trls_head_scores_at_the_temperature(work: Work) -> None:
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
