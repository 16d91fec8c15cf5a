"""TRL's proposed agents interface (`Environment`, `CodeAgentEnvironment`, ...), as it was written.

For scripts that were written against it; the project's own way is `miner.environments.code_agent`.
"""

from miner.agents.client import VLLMClient, VLLMClientGenerationConfig
from miner.agents.completions import Completions
from miner.agents.environment import CodeAgentEnvironment, Environment
from miner.agents.executers import E2BExecuter, LocalExecuter
from miner.agents.legacy import generate_rollout_completions, legacy_rollout
from miner.agents.trainer import GRPOTrainer

__all__ = [
    "CodeAgentEnvironment",
    "Completions",
    "E2BExecuter",
    "Environment",
    "GRPOTrainer",
    "LocalExecuter",
    "VLLMClient",
    "VLLMClientGenerationConfig",
    "generate_rollout_completions",
    "legacy_rollout",
]
