"""Settings of a server."""

from dataclasses import dataclass
from typing import Literal

from mock_env_server.faults import NO_FAULTS, FaultPlan
from mock_env_server.quirks import Quirk

Mode = Literal["faithful", "correct"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything about one server but its address.

    Attributes:
        mode: "faithful" repeats the real /step, which plays other cards than asked in Goofspiel;
            "correct" plays the card asked for. /evaluate is correct in both.
        quirks: weaknesses of the real server that are switched on.
        faults: faults that are active from the start.
        admin: true if /admin/faults changes the faults of the running server.
    """

    mode: Mode = "faithful"
    quirks: frozenset[Quirk] = frozenset()
    faults: FaultPlan = NO_FAULTS
    admin: bool = False
