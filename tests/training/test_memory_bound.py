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
def test_more_episodes_than_memory_holds_are_refused(override, named, tmp_path):
    with pytest.raises(ConfigurationError, match=named):
        check_memory(Settings.load(None, [override], environ={}), machine(tmp_path, 64 * 10**9))


def test_the_limit_is_the_memory(tmp_path):
    settings = Settings()
    check_memory(settings, machine(tmp_path, 10**9))
    with pytest.raises(ConfigurationError, match="there are 0"):
        check_memory(settings, machine(tmp_path, 10**6))


@pytest.mark.parametrize(
    ("group", "file"),
    [("0::/\n", "memory.max"), ("4:memory:/\n", "memory/memory.limit_in_bytes")],
    ids=["v2", "v1"],
)
def test_a_container_has_less_than_its_machine(group, file, tmp_path):
    root = machine(tmp_path, 64 * 10**9)
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text(group)
    limit = root / "sys/fs/cgroup" / file
    limit.parent.mkdir(parents=True)
    limit.write_text(f"{10**6}\n")
    with pytest.raises(ConfigurationError, match="there are 0"):
        check_memory(Settings(), root)


def machine(root, memory):
    """A root folder that shows this much memory, in bytes."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {memory // 1000} kB\n")
    return root
