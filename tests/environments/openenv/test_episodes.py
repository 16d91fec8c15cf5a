"""Episodes of a policy on an OpenEnv server: the way they begin, and the rewards of their turns."""

from pathlib import Path
from typing import Any

import pytest

from miner.config.channel_settings import OpenEnvSettings
from miner.config.errors import ConfigurationError
from miner.config.run_files import EPISODES_FILE
from miner.environments import EpisodeTask
from miner.environments.openenv.environment import OpenEnvSource
from miner.evaluation.policies import SamplerPolicy
from miner.evaluation.runner import evaluate
from miner.inference.sampler import SamplingParams
from miner.reporting.episode_log import EpisodeLog
from miner.reporting.records import RecordFile, TrainedEpisode
from miner.reporting.replay import replay_of
from miner.reporting.replay_page import replay_html
from miner.rewards.episode import EpisodeReward
from miner.rollout.episode import EpisodeParams, play_episode
from miner.rollout.renderer import ChatRenderer
from miner.rollout.trajectory import Trajectory
from tests.builders import ScriptedSampler, build_sample, build_tokenizer
from tests.environments.openenv.server_double import Double, error, observation, serving, source_of
from tests.environments.openenv.test_environment import game

TASK = EpisodeTask("openenv", 7, 7)
TOKENIZER = build_tokenizer()
RENDERER = ChatRenderer(TOKENIZER)
SAMPLER = ScriptedSampler(lambda _: build_sample([*RENDERER.encode("0"), RENDERER.eos_token_id]))
SAMPLING = SamplingParams(max_tokens=8)
ASK, SAY = {"message": "ask"}, {"message": "0"}


async def played(source: OpenEnvSource) -> Trajectory:
    environment = source.open()
    try:
        params = EpisodeParams(SAMPLING, max_tokens=4000)
        return await play_episode(environment, TASK, SAMPLER, RENDERER, params)
    finally:
        await environment.close()


async def test_a_turn_is_credited_with_the_reward_that_came_with_it() -> None:
    double = Double(game(0.0, 1.0, -0.5, 0.5))
    async with serving(double), source_of(double, return_range=(-1, 3)) as source:
        episode = await played(source)
    assert [turn.reward for turn in episode.turns] == [0.0, 1.0, -0.5, 0.5]
    assert episode.score == 0.5
    by_turn = EpisodeReward(0.0, span=4.0).by_turn(episode)
    assert by_turn == [(0, 0.0), (1, 0.25), (2, -0.125), (3, 0.375)]


async def test_of_an_episode_without_end_that_scores_0_the_last_turn_pays() -> None:
    double = Double(game(0.25, 0.5, 0.25, done=False))
    settings = {"max_turns": 3, "unfinished": "zero"}
    async with serving(double), source_of(double, **settings) as source:
        episode = await played(source)
    assert EpisodeReward(0.0).by_turn(episode) == [(0, 0.25), (1, 0.5), (2, -0.75)]


async def test_transcripts_show_the_reward_of_each_turn(tmp_path: Path) -> None:
    double = Double(game(0.125, 0.5))
    async with serving(double), source_of(double) as source:
        EpisodeLog(tmp_path).add(await played(source))
        result = await evaluate(SamplerPolicy("m", SAMPLER, RENDERER, SAMPLING), source, [TASK])
    [trained], _ = RecordFile(tmp_path / EPISODES_FILE, TrainedEpisode).read()
    [evaluated] = result.episodes
    for episode in (trained.episode, evaluated):
        assert [reply.reward for reply in episode.replies] == [0.125, 0.5]
    assert "reward 0.125<" in replay_html(replay_of(result, evaluated))


async def test_reset_gets_the_arguments_that_are_set_and_the_tasks_seed() -> None:
    double = Double(game(0.5))
    async with serving(double), source_of(double, reset={"level": "hard"}) as source:
        await played(source)
    assert double.asked[0] == ("reset", {"level": "hard", "seed": 7})
    with pytest.raises(ValueError, match="leave it out"):
        OpenEnvSettings(reset={"seed": 5})


async def test_the_answer_to_an_opening_action_is_shown_first_and_has_no_reward() -> None:
    def answer(kind: str, data: dict[str, Any], turn: int) -> dict[str, Any]:
        text = "what?" if data == ASK else ""
        return observation(text, reward=1.0 if turn else None, done=turn == 2)

    double = Double(answer)
    async with serving(double), source_of(double, opening=ASK, max_turns=1) as source:
        episode = await played(source)
    assert double.asked == [("reset", {"seed": 7}), ("step", ASK), ("step", SAY)]
    assert [turn.messages[0]["content"] for turn in episode.turns] == ["what?"]
    assert episode.score == 1.0


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (error("VALIDATION_ERROR"), r"refuses environment\.openenv\.opening"),
        (observation(done=True), r"environment\.openenv\.opening=.* ends the episode"),
    ],
)
async def test_an_opening_action_that_cannot_begin_an_episode_ends_the_source(
    answer: dict[str, Any], says: str
) -> None:
    double = Double(lambda kind, *_: answer if kind == "step" else observation())
    async with serving(double), source_of(double, opening=ASK) as source:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=says):
                await played(source)
    assert double.connections == 1
