"""How it is played: samplers, token-exact trajectories and the scheduler of episodes."""

from miner.rollout.episode import EpisodeParams, EpisodeTooLong, play_episode
from miner.rollout.groups import Group, GroupResult, LostEpisode, Outcome
from miner.rollout.loop import BackgroundLoop
from miner.rollout.renderer import ChatRenderer, DriftKind, TokenizerError
from miner.rollout.sampler import EngineLostError, Sample, Sampler, SamplerError, SamplingParams
from miner.rollout.scheduler import RetryParams, Scheduler
from miner.rollout.stats import RolloutStats
from miner.rollout.trajectory import RolloutRow, Trajectory, TurnRecord

__all__ = [
    "BackgroundLoop",
    "ChatRenderer",
    "DriftKind",
    "EngineLostError",
    "EpisodeParams",
    "EpisodeTooLong",
    "Group",
    "GroupResult",
    "LostEpisode",
    "Outcome",
    "RetryParams",
    "RolloutRow",
    "RolloutStats",
    "Sample",
    "Sampler",
    "SamplerError",
    "SamplingParams",
    "Scheduler",
    "TokenizerError",
    "Trajectory",
    "TurnRecord",
    "play_episode",
]
