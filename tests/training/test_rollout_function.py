"""The rollout function: what TRL gets for played, invalid, forked and lost episodes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from types import SimpleNamespace

import pytest

from miner.config.errors import ConfigurationError
from miner.config.settings import RewardSettings
from miner.distributed.ranks import Ranks
from miner.environments import EnvironmentFault, EpisodeTask, InfrastructureError
from miner.rewards.all_moves import AllMoves
from miner.rewards.goofspiel_critic import GoofspielCritic
from miner.rollout.episode import EpisodeTooLong
from miner.rollout.groups import Group, GroupResult, LostEpisode
from miner.training.episodes import encode_task
from miner.training.rollout_function import (
    RolloutFailedError,
    RolloutFunction,
    StepLostError,
    episode_reward,
)
from tests.builders import build_task, build_trajectory
from tests.rewards.positions import shown

EOS = 1
TASKS = [EpisodeTask("goofspiel", task_id, 2_001_001 + task_id) for task_id in (0, 5)]


class Player:
    """Plays groups by handing out prepared outcomes."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.groups: list[Group] = []

    def __call__(self, groups):
        self.groups = list(groups)
        results = []
        for group in groups:
            mine = tuple(self.outcomes.pop(0) for _ in range(group.size))
            results.append(GroupResult(group, mine))
        return results


def rolled(player, reward=None):
    """Columns for TRL, and the statistics."""
    prompts = [encode_task(TASKS[0])] * 2 + [encode_task(TASKS[1])] * 2
    function = RolloutFunction(player, reward or RewardSettings(), EOS, ranks=Ranks())
    return function(prompts, None), function.latest


def roll(player, reward=None):
    return rolled(player, reward)[0]


def lost(error=None):
    return LostEpisode(TASKS[0], error or InfrastructureError("server gone"), 3)


def test_equal_prompts_in_a_row_are_one_group():
    player = Player(*[build_trajectory() for _ in range(4)])
    roll(player)
    assert player.groups == [Group(TASKS[0], 2), Group(TASKS[1], 2)]


def test_a_row_is_the_episodes_own_ids_and_mask():
    trajectory = build_trajectory()
    columns = roll(Player(*[trajectory] * 4))
    (row,) = trajectory.rows
    assert columns["prompt_ids"][0] == row.prompt_ids
    assert columns["completion_ids"][0] == list(row.completion_ids)
    assert columns["env_mask"][0] == list(row.loss_mask)
    assert columns["logprobs"][0] == list(row.logprobs)
    assert sum(columns["env_mask"][0]) == trajectory.sampled_tokens


def test_a_lost_episode_has_no_reward_and_no_trained_token():
    columns = roll(Player(build_trajectory(), lost(), build_trajectory(0.0), build_trajectory()))
    assert columns["episode_reward"] == [1.0, None, 0.0, 1.0]
    assert columns["turn_rewards"][1] is None
    assert columns["env_mask"][1] == [0]
    assert columns["completion_ids"][1] == [EOS]
    rewards = episode_reward([], [], episode_reward=columns["episode_reward"])
    assert rewards == [1.0, None, 0.0, 1.0]


def test_a_step_in_which_everything_was_lost_is_an_error_that_gives_the_reason():
    with pytest.raises(RolloutFailedError, match=r"all 4 episodes.*server gone"):
        roll(Player(lost(), lost(), lost(), lost()))


def test_a_step_of_too_long_episodes_does_not_blame_the_servers():
    """Else the orchestrator would wait for them, find them there, and begin again without end."""
    with pytest.raises(StepLostError, match=r"raise the episode's limit$") as caught:
        roll(Player(*[lost(EpisodeTooLong("raise the episode's limit"))] * 4))
    assert not isinstance(caught.value, EnvironmentFault)


class OneOfTwo(Ranks):
    """A rank that agrees with another one, on another thread."""

    def __init__(self, rank, values, together):
        super().__init__()
        self.rank, self.count = rank, 2
        self._values, self._together = values, together

    def gather(self, value):
        self._values[self.rank] = value
        self._together.wait()
        both = list(self._values)
        self._together.wait()
        return both


def test_an_episode_lost_to_a_setting_ends_the_run_on_all_ranks():
    """Training on the rest of the group would leave out just the episodes that met the setting."""
    values, together, played = [None, None], Barrier(2), [build_trajectory() for _ in range(4)]
    refused = [build_trajectory(), lost(), lost(ConfigurationError("return_range")), lost()]

    def ended(rank, outcomes):
        ranks = OneOfTwo(rank, values, together)
        function = RolloutFunction(Player(*outcomes), RewardSettings(), EOS, ranks)
        with pytest.raises(ConfigurationError, match="return_range"):
            function([encode_task(TASKS[0])] * 4, None)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(ended, (0, 1), (played, refused))) == [None, None]


def trained_turns(episode, settings):
    (row,), columns = episode.rows, roll(Player(*[episode] * 4), settings)
    assert columns["completion_ids"][0] == list(row.completion_ids)
    masks = {tuple(mask) for mask in columns["env_mask"]}
    assert len(masks) == 1, "equal episodes are trained on the same turns"
    return {turn for turn, on in zip(row.turn_ids, masks.pop(), strict=True) if on}


def test_turns_of_a_long_episode_are_drawn_and_the_same_for_equal_episodes():
    settings = RewardSettings(most_turns=2)
    drawn = set()
    for first in "12345678":
        episode = build_trajectory(1.0, replies=(first, *"2345"))
        turns = trained_turns(episode, settings)
        assert len(turns) == 2
        assert turns == trained_turns(episode, settings)
        drawn |= turns
    assert drawn == set(range(5))


def test_a_turn_that_forfeits_a_long_episode_is_always_trained():
    for first in "12345678":
        replies, valid = (first, *"234x"), (True,) * 4 + (False,)
        episode = build_trajectory(0.0, replies=replies, valid=valid)
        turns = trained_turns(episode, RewardSettings(most_turns=2))
        assert len(turns) == 2
        assert 4 in turns
        assert trained_turns(episode, RewardSettings(most_turns=1)) == {4}


def columns_by_all_moves(episode, reward, *, takes_trees=True, step=0, distance=0.5):
    """Columns of four such episodes in a run of 100 steps, so far from the targets."""
    credit = AllMoves(GoofspielCritic(0.05), lambda reply: (100 + int(reply), EOS), reward)
    player = Player(*[episode] * 4)
    function = RolloutFunction(player, reward, EOS, Ranks(), credit, lambda step: step / 100)
    said = ({"target_kl": 9.0}, {"target_kl": distance}, {"target_kl": None}, {"loss": 0.1})
    logged = [{"step": n, **one} for n, one in enumerate(said, 1)]
    state = SimpleNamespace(global_step=step, log_history=logged)  # a resume keeps it
    trainer = SimpleNamespace(takes_trees=takes_trees, state=state)
    return function([encode_task(TASKS[0])] * 4, trainer)


@pytest.mark.parametrize("step", [0, 49, 50, 99])
def test_after_their_share_of_the_run_targets_become_advantages(step):
    texts = (shown(4, "12356", ("1 2 3 4 5 6", "1 2 3 4 5 6")),)
    episode = build_trajectory(1.0, task=build_task(seed=2), replies=("1",), shown=texts)
    reward = RewardSettings(credit="all_moves", targets=0.5)
    columns = columns_by_all_moves(episode, reward, step=step)
    assert columns["by_policy"] == [step >= 50] * 4
    weights = [weight for weight in columns["weights"][0] if weight is not None]
    assert (sum(weights) == pytest.approx(1)) == (step < 50)
    far = columns_by_all_moves(episode, reward, step=step, distance=5.0)
    assert far["by_policy"] == [False] * 4


@pytest.mark.parametrize(("takes_trees", "decisions", "replies"), [(True, 5, 30), (False, 2, 2)])
def test_without_trees_few_turns_are_learned_and_one_reply_of_each(takes_trees, decisions, replies):
    """A flat critic gives each of six cards the same share."""
    texts = (shown(4, "12356", ("1 2 3 4 5 6", "1 2 3 4 5 6")),) * 5
    episode = build_trajectory(1.0, task=build_task(seed=2), replies=tuple("12345"), shown=texts)
    reward = RewardSettings(credit="all_moves", tau=1e6)
    columns = columns_by_all_moves(episode, reward, takes_trees=takes_trees)
    weights = [weight for weight in columns["weights"][0] if weight is not None]
    assert len(weights) == replies
    assert sum(weights) == pytest.approx(decisions)
    sampled = {turn for turns in columns["turn_ids"][0] for turn in turns if turn >= 0}
    assert len(sampled) == 5
    trained = sum(columns["env_mask"][0])
    assert trained == sum(turn.sampled_tokens for turn in episode.turns) * decisions / 5


def test_invalid_replies_cost_where_they_happened():
    trajectory = build_trajectory(1.0, replies=("x", "1", "2"), valid=(False, True, True))
    player = Player(trajectory, build_trajectory(), trajectory, trajectory)
    columns, stats = rolled(player, RewardSettings(invalid_reply_penalty=0.25))
    assert columns["episode_reward"] == pytest.approx([0.75, 1.0, 0.75, 0.75])
    assert columns["turn_rewards"][0] == [(0, -0.25), (0, 0.0), (1, 1.0)]
    assert stats.flat_groups == 1  # the second: by what is trained, not by scores
    assert (stats.reward, stats.score) == (0.8125, 1.0)


def test_all_rows_of_an_episode_come_out_next_to_each_other():
    trajectory = build_trajectory(0.5)
    second = replace(trajectory.rows[0], prompt_ids=(9, 9))
    forked = replace(trajectory, rows=(trajectory.rows[0], second))
    columns = roll(Player(trajectory, forked, lost(), trajectory))
    mine, placeholder = trajectory.rows[0].prompt_ids, (EOS,)
    assert [tuple(ids) for ids in columns["prompt_ids"]] == [mine, mine, (9, 9), placeholder, mine]
    assert [len(rows) for rows in columns["turn_ids"]] == [1, 2, 1, 1]
    assert columns["episode_reward"] == [0.5, 0.5, None, 0.5]


def test_rows_without_a_token_to_train_are_left_out():
    trajectory = build_trajectory(replies=("1", "2"))
    (row,) = trajectory.rows
    later = replace(row, turn_ids=tuple(turn + 2 if turn >= 0 else turn for turn in row.turn_ids))
    forked = replace(trajectory, rows=(row, later))
    columns = roll(Player(*[forked] * 4))
    assert [len(rows) for rows in columns["turn_ids"]] == [1, 1, 1, 1]
    assert all(map(any, columns["env_mask"]))
