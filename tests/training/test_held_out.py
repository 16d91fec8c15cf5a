"""Held-out evaluation: what is published, what is not, and what a restart remembers."""

import json
from types import SimpleNamespace

import pytest

from miner.config.errors import ConfigurationError
from miner.distributed.ranks import Ranks
from miner.environments import InfrastructureError
from miner.evaluation.statistics import paired_difference
from miner.learning.schedule import SAFETY
from miner.publishing.errors import PublishingError
from miner.publishing.gate import undecided_pairs
from miner.reporting.run_folder import RunFolder
from miner.reporting.run_warnings import run_warnings
from miner.reporting.summary import verdict
from miner.training import run
from tests.training.scripted_evaluations import World

BASE, BETTER, WORSE = [0.0, 1.0] * 20, [1.0] * 40, [0.0] * 40


def test_a_better_model_is_published_and_a_worse_one_is_not(tmp_path):
    world = World(tmp_path, BASE, BETTER, WORSE)
    world.held_out.start()
    world.held_out.consider(10)
    world.held_out.consider(20)
    assert world.publisher.steps == [(10, 1.0, 40)]
    assert world.held_out.best.step == 10
    published = [(record.step, record.published) for record in world.records()]
    assert published == [(0, True), (10, True), (20, False)]


def fallen(tmp_path, *, games, lost, pairs):
    """All games won at step 10, and the first ones lost at step 20; as duels, if in pairs."""
    world = World(tmp_path, [0.0] * games, [1.0] * games, [0.0] * lost + [1.0] * (games - lost))
    if pairs:
        world.evaluations = [two_games(each) for each in world.evaluations]
    world.held_out.start()
    for step in (10, 20):
        world.held_out.consider(step)
    return world


@pytest.mark.parametrize("pairs", [True, False])
def test_seats_of_a_duel_are_compared_as_one(tmp_path, pairs):
    """Seven lost pairs of twelve are a fall as 14 games of 24, and not yet as copies."""
    world = fallen(tmp_path, games=24, lost=14, pairs=pairs)
    assert (world.held_out.fall(20) is None) == pairs
    better = world.records()[1].difference
    once = paired_difference(dict.fromkeys(range(12), 1.0), dict.fromkeys(range(12), 0.0))
    assert (better.n, better.low < 0.7) == (24, pairs)
    assert not pairs or better.low == once.low


def test_likelihoods_are_recorded_with_intervals_as_narrow_as_they_are(tmp_path):
    base = [0.3 + 0.002 * i for i in range(100)]
    world = World(tmp_path, base, [score + 0.015 for score in base], base)
    likely = {"likelihoods": True}
    world.evaluations = [each.model_copy(update=likely) for each in world.evaluations]
    world.held_out.start()
    for step in (10, 20):
        world.held_out.consider(step)
    assert world.held_out.fall(20) is None, "the noise of updates is no fall"
    better = world.records()[1]
    assert better.difference.low == pytest.approx(0.015)
    assert better.score.high - better.score.low < 0.03
    assert verdict(RunFolder(world.run_dir).read()).startswith("Better than its base: +0.015")
    assert "step 10: held-out score 0.414 [0.402, 0.426], published" in world.notes


def test_a_disk_that_refuses_a_model_costs_no_training(tmp_path):
    world = World(tmp_path, BASE, BETTER, BETTER)
    world.held_out.start()
    world.publisher.failures = iter(["no space left"])
    world.held_out.consider(10)
    assert (world.held_out.best.step, world.publisher.steps) == (0, [])
    assert world.notes[-1].endswith("kept the published one: no space left")
    world.held_out.consider(20)
    assert world.publisher.steps == [(20, 1.0, 40)]
    published = [(each.step, each.published, each.withheld) for each in world.records()]
    assert published == [(0, True, ""), (10, False, "no space left"), (20, True, "")]


def test_last_weights_that_no_disk_takes_end_the_run(tmp_path):
    world = World(tmp_path, BASE, BETTER)
    world.held_out.start()
    world.publisher.failures = iter(["no space left"])
    with pytest.raises(PublishingError, match="no space left"):
        world.held_out.consider(10, last=True)


@pytest.mark.parametrize(
    ("last", "failing", "outcome", "tries"),
    [
        (False, 1, "no space left", 1),
        (True, 1, "", 2),
        (True, 2, PublishingError, 2),
        (False, 0, "", 1),
    ],
)
def test_the_last_weights_are_written_twice_before_that_is_a_failure(
    monkeypatch, last, failing, outcome, tries
):
    tried = []

    def publish(save, score):
        tried.append(score)
        if len(tried) <= failing:
            raise PublishingError("no space left")

    monkeypatch.setattr(run, "weights_on_cpu", lambda model, keep: {})
    open_run = SimpleNamespace(
        learner=SimpleNamespace(model=None),
        ranks=Ranks(),
        publisher=SimpleNamespace(publish=publish),
    )
    if isinstance(outcome, str):
        assert run._publish(open_run, "score", last) == outcome
    else:
        with pytest.raises(outcome):
            run._publish(open_run, "score", last)
    assert len(tried) == tries


def steps_of(world, seconds, *steps):
    """Let training reach these steps, each `seconds` after the one before."""
    for step in steps:
        world.now += seconds
        world.held_out.on_step_end(None, SimpleNamespace(global_step=step, max_steps=100), None)


@pytest.mark.parametrize(("took", "evaluated"), [(10.0, [0, 10, 20]), (25.0, [0, 30])])
def test_evaluations_take_their_share_of_the_time_as_measured(tmp_path, took, evaluated):
    """Steps of a warm start take seconds; an evaluation takes a minute."""
    world = World(tmp_path, BASE, BETTER, WORSE, time_share=0.2, took=took)
    world.held_out.start()
    steps_of(world, 45.0, *evaluated[1:] if took == 10.0 else range(10, 60, 10))
    assert [record.step for record in world.records()] == evaluated


def test_what_follows_from_an_evaluation_takes_of_its_share(tmp_path):
    world = World(tmp_path, BASE, BETTER, WORSE, time_share=0.2, took=10.0)
    world.held_out.start()
    steps_of(world, 45.0, 10)
    world.held_out.lengthen(20.0)  # best weights are kept
    steps_of(world, 45.0, 20, 30, 40)
    assert [record.step for record in world.records()] == [0, 10, 40]


def test_a_restart_remembers_how_long_an_evaluation_takes(tmp_path):
    World(tmp_path, BASE, took=25.0).held_out.start()
    again = World(tmp_path, BETTER, time_share=0.2, kill=3600.0)
    assert again.schedule.expected("evaluation") == SAFETY * 25.0
    again.held_out.start()
    steps_of(again, 45.0, 10, 20, 30)
    assert [record.step for record in again.records()] == [0, 30]


def test_a_first_candidate_does_not_wait_for_the_distance_of_a_slow_base(tmp_path):
    """At a fifth of the time 800 s would lie between; a quarter of what is left comes before."""
    world = World(tmp_path, BASE, BETTER, WORSE, time_share=0.2, took=200.0, kill=1900.0)
    world.held_out.start()
    world.took = 20.0
    steps_of(world, 100.0, *range(10, 50, 10))
    assert [record.step for record in world.records()] == [0, 30, 40]


@pytest.mark.parametrize(("more", "evaluated"), [(-1.0, [0, 10]), (1.0, [0, 10, 20])])
def test_the_last_evaluation_has_its_distance_too(tmp_path, more, evaluated):
    """At a fifth of the time and 25 s each, 100 s lie between two, and half of that here."""
    kill = 250.0 + 2 * SAFETY * 25.0 + 50.0 + more
    world = World(tmp_path, BASE, BETTER, WORSE, time_share=0.2, took=25.0, kill=kill)
    world.held_out.start()
    steps_of(world, 100.0, 10, 20)
    assert [record.step for record in world.records()] == evaluated


def test_the_last_weights_are_evaluated_once_and_at_the_end(tmp_path):
    world = World(tmp_path, BASE, BETTER)
    world.held_out.start()
    steps_of(world, 1.0, 100)
    assert world.evaluations
    world.held_out.consider(100, last=True)
    assert world.held_out.best.step == 100


def test_lost_episodes_are_left_out_of_the_published_score(tmp_path):
    world = World(tmp_path, BASE, [None, *BETTER[1:]])
    world.held_out.start()
    world.held_out.consider(10)
    assert world.publisher.steps == [(10, 1.0, 39)]


def test_a_base_that_could_not_be_evaluated_is_not_a_yardstick(tmp_path):
    world = World(tmp_path, [None] * 25 + [1.0] * 15)
    with pytest.raises(InfrastructureError, match=r"25 of the base model's 40 .* server 0 is gone"):
        world.held_out.start()
    assert not (tmp_path / "best.json").exists()


def without_room(evaluation, count, failure="too_long"):
    """The same, of which the first ones were too long."""
    lost = {"score": None, "failure": failure, "message": "a prompt of 900 tokens"}
    episodes = [each.model_copy(update=lost) for each in evaluation.episodes[:count]]
    return evaluation.model_copy(update={"episodes": (*episodes, *evaluation.episodes[count:])})


@pytest.mark.parametrize(
    ("failure", "setting"),
    [("too_long", "evaluation.max_reply_tokens"), ("too_slow", "rollout.episode_seconds")],
)
def test_a_base_whose_games_are_too_long_is_no_servers_fault(tmp_path, failure, setting):
    """Else the orchestrator would wait for them, and have the same games played again."""
    world = World(tmp_path, BASE)
    [evaluation] = world.evaluations
    world.evaluations = [without_room(evaluation, 25, failure)]
    with pytest.raises(ConfigurationError, match=f"25 .* a prompt of 900 .*{setting}"):
        world.held_out.start()


def test_the_same_step_is_evaluated_once(tmp_path):
    world = World(tmp_path, BASE, BETTER)
    world.held_out.start()
    world.held_out.consider(10)
    world.held_out.consider(10)
    assert world.evaluations == []


def test_a_restart_remembers_the_best_and_does_not_evaluate_the_base_again(tmp_path):
    first = World(tmp_path, BASE, BETTER)
    first.held_out.start()
    first.held_out.consider(10)
    again = World(tmp_path, [*BETTER[4:], *[0.0] * 4])
    again.held_out.start()
    assert again.held_out.best.step == 10
    again.held_out.consider(20)
    assert again.publisher.steps == []


def test_best_is_stored_only_after_publishing(tmp_path):
    world = World(tmp_path, BASE, BETTER)

    def fail(score, last):
        raise OSError("disk full")

    world.publisher.publish = fail
    world.held_out.start()
    with pytest.raises(OSError, match="disk full"):
        world.held_out.consider(10)
    assert json.loads((tmp_path / "best.json").read_text())["best"]["step"] == 0


def test_games_that_had_no_room_are_named_and_not_counted(tmp_path):
    world = World(tmp_path, BASE, BETTER)
    [evaluation] = world.evaluations[1:]
    world.evaluations[1] = without_room(evaluation, 3)
    world.held_out.start()
    world.held_out.consider(10)
    assert "3 held-out games not counted: a prompt of 900 tokens" in world.notes
    assert world.publisher.steps == [(10, 1.0, 37)]
    [warning] = [line for line in run_warnings(RunFolder(tmp_path).read()) if "max_episode" in line]
    assert "3" in warning


def mixed(first, second):
    """Scores of two games, whose episodes take turns in pairs."""
    return [score for pair in zip(first, second, strict=True) for score in pair for _ in range(2)]


def two_games(evaluation):
    """The same episodes as duels, two of each seed, each other pair of another game."""
    episodes = [
        episode.model_copy(
            update={
                "environment": f"duel:{('othello', 'liars_dice')[i // 2 % 2]}",
                "task_id": i // 2,
            }
        )
        for i, episode in enumerate(evaluation.episodes)
    ]
    return evaluation.model_copy(update={"episodes": tuple(episodes)})


@pytest.mark.parametrize("pairs", [False, True])
def test_copies_of_a_lost_deal_do_not_withhold_a_model(tmp_path, pairs):
    world = fallen(tmp_path, games=20, lost=6, pairs=pairs)
    assert world.held_out.best.step == (20 if pairs else 10)


@pytest.mark.parametrize(
    ("second", "withheld"),
    [
        ([1.0] * 30, ""),
        ([0.0] * 10 + [0.0, 1.0] * 10, "the gate was undecided in liars dice"),
    ],
)
def test_the_gate_wants_every_game_and_reports_which_it_has_not_seen(tmp_path, second, withheld):
    half = [0.0, 1.0] * 15
    world = World(
        tmp_path,
        mixed(half, half),
        mixed([1.0] * 30, second),
        gate=undecided_pairs,
    )
    world.evaluations = [two_games(each) for each in world.evaluations]
    world.held_out.start()
    world.held_out.consider(10)
    assert bool(world.publisher.steps) != bool(withheld)
    assert bool(world.held_out.warning) == bool(withheld)
    assert [record.withheld for record in world.records()] == ["", withheld]
    assert world.notes[-1].endswith(withheld)


def test_a_restarted_run_asks_the_gate_at_a_higher_price(tmp_path):
    gains = [[1.0] * 11 + [0.0] * 9, [1.0] * 12 + [0.0] * 8]
    worlds = [World(tmp_path, [0.0] * 20, gains[0], gate=undecided_pairs)]
    worlds[0].held_out.start()
    worlds[0].held_out.consider(10)
    worlds.append(World(tmp_path, gains[1], gate=undecided_pairs))
    worlds[1].held_out.consider(20)
    state = json.loads((tmp_path / "best.json").read_text())
    assert (state["candidates"], state["last_candidates"]) == (2, 0)


def test_the_last_weights_do_not_pay_for_earlier_candidates(tmp_path):
    asked = []

    def gate(games, candidate, start, error):
        asked.append(error)
        return games[:1]

    world = World(tmp_path, BASE, *[BETTER] * 4, gate=gate)
    world.held_out.start()
    for step, last in [(10, False), (20, False), (30, True), (40, True)]:
        world.held_out.consider(step, last=last)
    assert asked == [1 / 160, 1 / 640, 1 / 23, 1 / 92]


@pytest.mark.parametrize(("allowed", "published"), [(1 / 23, [10]), (1 / 2, [])])
def test_last_weights_that_were_just_judged_are_asked_about_as_the_last(
    tmp_path, allowed, published
):
    """By the same games: time ended the run right after an evaluation."""

    def gate(games, candidate, start, error):
        return games[:1] if error < allowed else []

    world = World(tmp_path, BASE, BETTER, gate=gate, took=25.0)
    world.held_out.start()
    for last in (False, True):
        world.held_out.consider(10, last=last)
    assert json.loads((tmp_path / "best.json").read_text())["evaluation_seconds"] == 25.0
    assert [step for step, *_ in world.publisher.steps] == published
    assert bool(world.held_out.warning) != bool(published)


@pytest.mark.parametrize(
    ("low", "falls"),
    [
        (WORSE, True),
        ([0.0] * 14 + [1.0] * 26, True),
        ([0.0] * 8 + [1.0] * 32, False),  # chance, where the highest is one of many
        ([0.0] * 2 + [1.0] * 38, False),  # chance
        ([None] * 21 + [0.0] * 19, False),  # too few of them
    ],
)
def test_a_fall_is_one_that_chance_does_not_explain(low, falls, tmp_path):
    world = World(tmp_path, BASE, BETTER, low)
    world.held_out.start()
    world.held_out.consider(10)
    assert world.held_out.fall(10) is None
    world.held_out.consider(20)
    assert (world.held_out.fall(20) is not None) == falls
    assert world.held_out.fall(30) is None  # nobody has evaluated these


def test_a_fall_is_measured_from_the_highest_score(tmp_path):
    """Three games of forty are chance, so they are published; eleven more are not."""
    lower, lowest = [0.0] * 3 + [1.0] * 37, [0.0] * 14 + [1.0] * 26
    world = World(tmp_path, BASE, BETTER, lower, lowest)
    world.held_out.start()
    for step in (10, 20, 30):
        world.held_out.consider(step)
        assert world.held_out.rose(step) == (step == 10)
        assert (world.held_out.fall(step) is not None) == (step == 30)
    assert (world.held_out.best.step, world.held_out.highest.step) == (20, 10)
