"""Work of a step and of a run as a plan needs it, the same on any layout."""

import math
from dataclasses import dataclass

from entrypoint.workload import SERVED, Workload
from miner.config.contract import GRADED_EPISODES_PER_SERVER


@dataclass(frozen=True)
class BatchShape:
    """Work of one optimizer step, and of a run of such steps.

    Attributes:
        episode_tokens: of the longest episode.
        servers: that play the episodes; 0: they are played in the trainer's processes.
        pass_tokens: of a forward and backward pass, if there is room for it.
        work: parts of an episode.
        mounted: conversations of data sets are learned too, each as long as an episode may be.
        held_out: episodes of an evaluation that are to be played at once.
        least_held_out: the same at least, where an engine plays them too slowly.
        every_steps: between two evaluations at most.
        most_steps: of the run.
        taught_share: of the run's time, in which steps learn from teachers and nothing is played.
        taught_rows: decisions of such a step, over all processes.
        seconds: from the container's start to the trainer's end.
    """

    groups: int = 16
    group_size: int = 8
    episode_tokens: int = 4096
    servers: int = 1
    pass_tokens: int = 32768
    lora_rank: int = 16
    work: Workload = SERVED
    mounted: bool = False
    held_out: int = 0
    least_held_out: int = 0
    every_steps: int = 20
    most_steps: int = 50_000
    taught_share: float = 0.0
    taught_rows: int = 0
    seconds: float = math.inf

    @property
    def longest_row(self) -> int:
        """Tokens of the longest row to learn from: an episode, or a turn of a duel."""
        return self.episode_tokens if self.mounted else self.held

    @property
    def held(self) -> int:
        """Tokens that a live episode has in an engine's cache at most."""
        return self.work.held or self.episode_tokens

    @property
    def wanted_live(self) -> int:
        """Episodes to be played at once, of a step or an evaluation: as many as servers have room
        for, if there are any."""
        episodes = max(self.groups * self.group_size, self.held_out)
        places = GRADED_EPISODES_PER_SERVER * self.servers
        return min(episodes, places) if self.servers else episodes
