"""Typed failures of environments: only these leave a channel, and none is ever a reward.

A `ConfigurationError` (`miner.config.errors`) leaves it too: the request cannot work, on any
server.
"""


class EnvironmentFault(Exception):
    """Base of everything that can go wrong with an environment.

    Args:
        message: request, response and next step, in one sentence.
        server: base URL (or channel name) of the environment at fault, for retrying elsewhere.
    """

    def __init__(self, message: str, *, server: str = "") -> None:
        super().__init__(message)
        self.server = server


class InfrastructureError(EnvironmentFault):
    """The environment could not be reached, hung, crashed or lost the episode: a retry may help."""


class ProtocolError(EnvironmentFault):
    """The environment answered, but against the contract: the same server will again."""


def no_episode(server: str) -> ProtocolError:
    """Error of a `step` outside of an episode."""
    return ProtocolError("no episode is open: call reset() before step()", server=server)
