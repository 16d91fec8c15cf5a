"""Agents that write code: it runs in an executor, and its output comes back to the policy."""

from miner.environments.code_agent.arithmetic import Arithmetic
from miner.environments.code_agent.environment import CodeAgent, CodeAgentSource
from miner.environments.code_agent.form import Form, Tags
from miner.environments.code_agent.own import CodeProblems
from miner.environments.code_agent.problems import Problem, Problems

__all__ = [
    "Arithmetic",
    "CodeAgent",
    "CodeAgentSource",
    "CodeProblems",
    "Form",
    "Problem",
    "Problems",
    "Tags",
]
