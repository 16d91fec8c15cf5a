"""Numbers of episodes that no memory holds."""

import pytest

from miner.config.errors import ConfigurationError
from miner.config.settings import Settings
from miner.training.preparation import check_memory


@pytest.mark.parametrize(
    ("override", "named"),
    [
        (
            "rollout.group_size=1000000",
            "16,000,000 episodes .* GB at least.* lower rollout.group_s",
        ),
        ("rollout.groups_per_step=2000000", "lower rollout.group_size or rollout.groups_per_step"),
        ("evaluation.episodes=10000000", "10,000,000 episodes .* lower evaluation.episodes"),
        ("rollout.max_episode_tokens=1000000000", "128 episodes"),
    ],
)
def test_more_episodes_than_memory_holds_are_refused(override, named):
    with pytest.raises(ConfigurationError, match=named):
        check_memory(Settings.load(None, [override], environ={}), total=64 * 10**9)


def test_the_limit_is_the_memory():
    settings = Settings()
    check_memory(settings, total=10**9)
    with pytest.raises(ConfigurationError, match="this machine has 0"):
        check_memory(settings, total=10**6)
