"""The in-process channel plays graded episodes by the rules of the `Environment` protocol."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from miner.config.contract import GAMES
from miner.environments import playing
from miner.environments.base import EpisodeTask
from miner.environments.builtin import BuiltinEnvironment, BuiltinSource
from miner.environments.errors import ProtocolError
from miner.environments.games import PromptFormat
from miner.evaluation.policies import BaselinePolicy
from miner.games import game_named

TASK = EpisodeTask("goofspiel", task_id=2, seed=7)


@pytest.fixture
def environment() -> BuiltinEnvironment:
    return BuiltinSource().open()


def grader_tasks(count: int) -> Iterator[EpisodeTask]:
    """The grader's own episodes of Goofspiel, base seed 42."""
    rng = random.Random(42)
    first, last = game_named("goofspiel").task_ids
    for _ in range(count):
        seed = rng.randint(1, 1_000_000)
        yield EpisodeTask("goofspiel", random.Random(seed).randint(first + 1, last), seed)


async def play(environment: BuiltinEnvironment, task: EpisodeTask, policy: str) -> float:
    return await playing.play(environment, task, BaselinePolicy(policy).conversation(task))


@pytest.mark.parametrize("policy", ["random", "lowest", "highest"])
async def test_blind_policies_play_at_chance(environment: BuiltinEnvironment, policy: str) -> None:
    scores = [await play(environment, task, policy) for task in grader_tasks(600)]
    assert sum(scores) / len(scores) == pytest.approx(0.5, abs=0.07)


async def test_an_episode_from_opening_to_score(environment: BuiltinEnvironment) -> None:
    observation = await environment.reset(TASK)
    assert [message["role"] for message in observation.messages] == ["system", "user"]
    for bid in range(10):
        transition = await environment.step(f"<think>0</think>{bid}")
        assert not transition.done
        assert (transition.action, transition.reward, transition.score) == (bid, 0.0, None)
        assert [message["role"] for message in transition.messages] == ["user"]
    end = await environment.step("10")
    assert end.done
    assert end.messages == ()
    assert end.score == end.reward
    assert end.score in (0.0, 0.5, 1.0)


async def test_retries_and_the_third_failure(environment: BuiltinEnvironment) -> None:
    await environment.reset(TASK)
    await environment.step("0")
    for attempt in (1, 2):
        transition = await environment.step("0")
        assert not transition.valid
        assert transition.action is None
        assert f"ttempt {attempt} of 3" in transition.messages[0]["content"]
    end = await environment.step("what?")
    assert (end.done, end.score, end.reward, end.valid) == (True, 0.0, 0.0, False)
    assert end.messages == ()


async def test_equal_tasks_show_equal_messages(environment: BuiltinEnvironment) -> None:
    other = BuiltinSource().open()
    assert await environment.reset(TASK) == await other.reset(TASK)
    assert await environment.step("3") == await other.step("3")
    assert await environment.reset(TASK) == await other.reset(TASK)


async def test_a_learned_format_is_used() -> None:
    own = PromptFormat.own("goofspiel")
    learned = replace(own, system_text="Play!", retry_parts=("Again.",))
    environment = BuiltinSource({"goofspiel": learned}).open()
    observation = await environment.reset(TASK)
    assert observation.messages[0]["content"] == "Play!"
    assert (await environment.step("?")).messages[0]["content"] == "Again."
    dice = await environment.reset(EpisodeTask("liars_dice", 100_000_000, 1))
    assert dice.messages[0]["content"] == PromptFormat.own("liars_dice").system_text


@pytest.mark.parametrize("name", GAMES)
async def test_every_game_is_played_to_its_end(environment: BuiltinEnvironment, name: str) -> None:
    observation = await environment.reset(EpisodeTask(name, game_named(name).task_ids[0] + 1, 11))
    messages = observation.messages
    while messages:
        listed = messages[-1]["content"].rpartition("Legal Actions:\n")[2]
        transition = await environment.step(listed.split(" -> ")[0])
        assert transition.valid
        messages = transition.messages
    assert transition.score is not None
    assert 0.0 <= transition.score <= 1.0


async def test_the_searching_opponent_plays(environment: BuiltinEnvironment) -> None:
    task = EpisodeTask("leduc_poker", 200_000_000, 3, opponent="mcts")
    await environment.reset(task)
    transition = await environment.step("1")
    assert transition.valid


async def test_steps_outside_an_episode_are_refused(environment: BuiltinEnvironment) -> None:
    with pytest.raises(ProtocolError, match="no episode is open"):
        await environment.step("0")
    await environment.reset(TASK)
    await environment.close()
    await environment.close()
    with pytest.raises(ProtocolError, match="no episode is open"):
        await environment.step("0")
