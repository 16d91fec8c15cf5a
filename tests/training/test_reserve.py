"""How long the last evaluation and publication are planned with."""

import math

from miner.config.run_files import PUBLICATION_FILE
from miner.learning.schedule import SAFETY
from tests.training.scripted_evaluations import World, result

BASE, BETTER = [0.0, 1.0] * 20, [1.0] * 40


def forfeited(scores, share):
    """An evaluation of which a share of the games was lost by the first replies."""
    found = result(scores)
    count = round(share * len(scores))
    lost = [each.model_copy(update={"failure": "invalid_replies"}) for each in found.episodes]
    return found.model_copy(update={"episodes": (*lost[:count], *found.episodes[count:])})


def test_games_that_are_forfeited_tell_nothing_of_how_long_others_take(tmp_path):
    """The plan knows what they take whole."""
    world = World(tmp_path, BETTER, took=10.0, whole=60.0)
    world.evaluations.insert(0, forfeited(BASE, 0.5))
    world.held_out.start()
    assert world.schedule.expected("evaluation") == SAFETY * (10 + 30)
    again = World(tmp_path, took=10.0, whole=60.0)  # a restart
    assert again.schedule.expected("evaluation") == SAFETY * (10 + 30)
    world.held_out.consider(10)
    assert world.schedule.expected("evaluation") == SAFETY * 10


def test_a_plan_without_room_for_a_step_is_not_kept_to(tmp_path):
    """It may be wrong, and what is learned and not published is no worse than nothing."""
    world = World(tmp_path, took=10.0, whole=60.0, kill=80.0)
    world.evaluations.append(forfeited(BASE, 1.0))
    world.held_out.start()
    assert world.schedule.expected("evaluation") == SAFETY * 10


def test_the_bases_publication_is_the_first_that_is_measured(tmp_path):
    (tmp_path / PUBLICATION_FILE).write_text("4.0")
    assert World(tmp_path, BASE).schedule.expected("publication") == SAFETY * 4.0


def test_what_another_engine_took_tells_nothing(tmp_path):
    """Without vLLM the games take longer than they took, and less again with it."""
    World(tmp_path, BASE, took=10.0, whole=60.0, engine="vllm").held_out.start()
    same = World(tmp_path, whole=70.0, engine="vllm")
    assert same.schedule.expected("evaluation") == SAFETY * 10
    slow = World(tmp_path, BETTER, took=500.0, whole=600.0, engine="transformers")
    assert slow.schedule.expected("evaluation") == SAFETY * 600
    assert slow.held_out._detour == 600, "of which the time between evaluations is a multiple"
    slow.held_out.consider(10)
    again = World(tmp_path, whole=60.0, engine="vllm")
    assert again.schedule.expected("evaluation") == SAFETY * 60


def test_an_evaluation_ends_where_the_last_publication_begins(tmp_path):
    world = World(tmp_path, kill=100.0)
    world.schedule.observe("publication", 8.0)
    assert world.schedule.for_evaluation() == 100 - SAFETY * 8
    world.now = 95.0
    assert world.schedule.for_evaluation() == 0.0
    assert World(tmp_path).schedule.for_evaluation() == math.inf
