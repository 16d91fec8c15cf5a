"""Findings of the conformance probe, and the channel that follows from them.

Invariant: the recommendation is a pure function of the findings, so a stored report explains it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from miner.environments.findings import Findings
from miner.environments.games import PromptFormat
from miner.http_replies import printable

Channel = Literal["step", "graded", "builtin"]


@dataclass(slots=True)
class ServerFindings:
    """Findings about one server.

    Attributes:
        url: base URL.
        problem: reason why the server could not be asked; empty if it answered.
        latency_ms: time of the first answer in milliseconds.
        api_title, api_version: of its API, as it reports them; empty if it reports none.
        step_asked, step_applied: actions sent over /step whose effect showed, and how many of
            them were the actions that the game made.
        step_problem: error on /step; empty if there was no error.
        graded_episodes: graded episodes played to their end.
        graded_seconds: duration of all of them side by side, failed tries included.
        graded_problem: error of /evaluate; empty if there was no error.
        prompt_format: the wording learned from the graded episodes.
        builtin_matches: true if the builtin channel repeats them byte for byte; None if unknown.
        builtin_difference: the first difference.
    """

    url: str
    problem: str = ""
    latency_ms: float | None = None
    api_title: str = ""
    api_version: str = ""
    step_asked: int = 0
    step_applied: int = 0
    step_problem: str = ""
    graded_episodes: int = 0
    graded_seconds: float | None = None
    graded_problem: str = ""
    prompt_format: PromptFormat | None = None
    builtin_matches: bool | None = None
    builtin_difference: str = ""

    @property
    def action_applied_rate(self) -> float | None:
        """Share of /step actions that the game made as asked; None if none was observed."""
        return self.step_applied / self.step_asked if self.step_asked else None

    @property
    def step_usable(self) -> bool:
        """Return whether /step works and plays the actions it is asked for."""
        return not self.problem and not self.step_problem and self.action_applied_rate == 1.0

    @property
    def graded_usable(self) -> bool:
        """Return whether /evaluate plays whole episodes with us."""
        return not self.problem and not self.graded_problem and self.graded_episodes > 0


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """Findings about all servers, for one game."""

    environment: str
    servers: tuple[ServerFindings, ...]
    notes: tuple[str, ...] = field(default=())

    @classmethod
    def of_earlier(cls, stored: Mapping[str, Any], environment: str) -> "ProbeReport | None":
        """The servers' words as a stored `probe.json` has them, of servers that are gone now; None
        where it has none for this game."""
        for server in stored.get("servers", ()):
            known = server.get("prompt_format")
            if known and known["game_name"] == environment:
                words = TypeAdapter(PromptFormat).validate_python(known)
                gone = "not asked again: its prompts were learned by an earlier probe of this run"
                findings = ServerFindings(server["url"], problem=gone, prompt_format=words)
                return cls(environment, (findings,))
        return None

    @property
    def prompt_format(self) -> PromptFormat | None:
        """The grader's wording as the first server that showed it has it; None if none did."""
        return next((s.prompt_format for s in self.servers if s.prompt_format), None)

    @property
    def channel(self) -> Channel:
        """The recommended channel."""
        return self._choice()[0]

    @property
    def reason(self) -> str:
        """Reason for the recommended channel, in a sentence."""
        return self._choice()[1]

    @property
    def warning(self) -> str:
        """Warning about the recommended channel; empty if there is none."""
        if self.channel == "step" and self.prompt_format is None:
            return (
                "/evaluate of no server shows its prompts, so that the policy is asked in our own "
                "words on /step, which may not be the grader's: fix /evaluate, or see that this "
                "machine can be reached from the servers"
            )
        if not self.servers or self.channel != "builtin":
            return ""
        return (
            f"the {len(self.servers)} environment server(s) can be trained on by neither /step nor "
            "/evaluate, so episodes are played by the builtin game, which is not what is graded "
            f"({self._builtin_standing()}): fix the servers, or force environment.channel=step or "
            "graded"
        )

    def usable(self, channel: Channel) -> tuple[str, ...]:
        """Servers on which a channel can be played (none is needed for the builtin one)."""
        if channel == "step":
            return tuple(s.url for s in self.servers if s.step_usable)
        if channel == "graded":
            return tuple(s.url for s in self.servers if s.graded_usable)
        return ()

    def _choice(self) -> tuple[Channel, str]:
        step, graded = self.usable("step"), self.usable("graded")
        count = len(self.servers)
        rates = [s.step_applied / s.step_asked for s in self.servers if s.step_asked]
        rate = f"{min(rates):.0%} of actions applied as asked" if rates else ""
        if step and len(step) >= len(graded):
            return "step", f"/step plays every action as asked on {len(step)} of {count} servers"
        if graded:
            fault = f"is not true to the game ({rate})" if rate else "was not confirmed"
            if any(s.action_applied_rate == 1.0 and s.step_problem for s in self.servers):
                fault = f"plays no game to its end ({rate})"
            where = f"{len(graded)} of {count} servers"
            return "graded", f"/step {fault}; /evaluate plays the grader's own game on {where}"
        return "builtin", f"{self._why_no_server(rate)}; {self._builtin_standing()}"

    def _why_no_server(self, rate: str) -> str:
        if not self.servers:
            return "no server was asked"
        problems = [s.problem or s.graded_problem for s in self.servers]
        named = next((problem for problem in problems if problem), rate)
        return f"none of {len(self.servers)} servers can be trained on ({named})"

    def _builtin_standing(self) -> str:
        if any(s.builtin_matches is False for s in self.servers):
            return "the builtin game differs from the server's, see builtin_difference"
        if self.prompt_format is not None:
            return "the builtin channel speaks with the prompts learned from the server"
        return "the builtin channel's prompts are our own words, not the grader's"

    def findings(self, wanted: str = "auto") -> Findings:
        """For terminal and `probe.json`: a row a server, then whole sentences, which no cell cuts.

        Args:
            wanted: the channel that the settings name; one that the user has chosen has no warning.
        """
        forced = wanted != "auto"
        title = f"Environment servers: {self.environment}"
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("server", "answers", "/step as asked", "/evaluate", "= builtin"):
            table.add_column(heading, no_wrap=heading == "server")
        for server in self.servers:
            table.add_row(server.url, *_cells(server))
        problems = [problem for server in self.servers for problem in _problems(server)]
        sentences = [*_versions(self.servers), *problems] if self.servers else []
        servers = [
            asdict(server) | {"action_applied_rate": server.action_applied_rate}
            for server in self.servers
        ]
        return Findings(
            channel=wanted if forced else self.channel,
            environment=self.environment,
            reason=f"by environment.channel; auto: {self.channel}, as {self.reason}"
            if forced
            else self.reason,
            warning="" if forced else self.warning,
            notes=self.notes,
            picture=Group(*([table] if self.servers else []), *map(Text, sentences)),
            details={"servers": servers},
            for_opening=self,
        )


def _cells(server: ServerFindings) -> Sequence[str]:
    if server.problem:
        return ("no", "-", "-", "-")
    rate = server.action_applied_rate
    step = "" if rate is None else f"{rate:.0%} of {server.step_asked}"
    graded = f"{server.graded_episodes} in {server.graded_seconds or 0.0:.1f} s"
    return (
        f"{server.latency_ms or 0.0:.0f} ms",
        ", ".join(filter(None, [step, "failed" if server.step_problem else ""])) or "-",
        "failed" if server.graded_problem else graded,
        {None: "-", True: "yes", False: "no"}[server.builtin_matches],
    )


def _versions(servers: Sequence[ServerFindings]) -> list[str]:
    """The APIs that the servers claim to be, a sentence each."""
    counts = Counter((s.api_title, s.api_version) for s in servers if s.api_version)
    return [
        f"API of {count} of {len(servers)} servers: {printable(f'{title}, version {version}')}"
        for (title, version), count in counts.items()
    ]


def _problems(server: ServerFindings) -> list[str]:
    """Problems of a server, a sentence each; faults name the server themselves."""
    difference = server.builtin_difference
    found = [
        server.problem,
        server.step_problem,
        server.graded_problem,
        f"{server.url} differs from the builtin game: {difference}" if difference else "",
    ]
    return [problem for problem in found if problem]
