"""Any OpenEnv environment server, spoken to over its own WebSocket protocol."""

from miner.environments.openenv.check import check
from miner.environments.openenv.environment import NAME, OpenEnvSource
from miner.environments.openenv.opening import open_openenv

__all__ = ["NAME", "OpenEnvSource", "check", "open_openenv"]
