"""Environments: one `Environment` protocol, several sources of episodes behind it."""

from miner.environments.base import (
    Environment,
    EnvironmentSource,
    EpisodeTask,
    Message,
    Observation,
    TaskStream,
    Tool,
    Transition,
)
from miner.environments.errors import EnvironmentFault, InfrastructureError, ProtocolError

__all__ = [
    "Environment",
    "EnvironmentFault",
    "EnvironmentSource",
    "EpisodeTask",
    "InfrastructureError",
    "Message",
    "Observation",
    "ProtocolError",
    "TaskStream",
    "Tool",
    "Transition",
]
