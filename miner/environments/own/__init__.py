"""A custom environment: a class with `reset` and `step`, named by `environment.entry`."""

from miner.environments.own.text_environment import Step, TextEnvironment

__all__ = ["Step", "TextEnvironment"]
