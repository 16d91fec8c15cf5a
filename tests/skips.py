"""Skips that a run reports at its end: each by its reason, those of whole modules too.

`--expected-skips FILE` names the reasons that a machine may have, one regular expression a line
(`#` begins a comment). A run with a skip for any other reason fails. pytest-xdist loses the skips
of whole modules on their way from its workers: here they travel in the worker's output.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_OUTPUT = "skipped_modules"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expected-skips",
        type=Path,
        metavar="FILE",
        help="fail on a skip whose reason matches none of this file's regular expressions",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Skips(config))


class Skips:
    """Collects the skips of a run, in one process or as xdist's controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tests: dict[str, set[str]] = defaultdict(set)
        file = config.getoption("--expected-skips")
        self._expected = None if file is None else list(_patterns(file))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._add(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.skipped:
            return
        self._add(report.nodeid, report.longrepr)
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = {reason: sorted(ids) for reason, ids in self._tests.items()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist ended: its modules' skips are in its output, if it came to give one."""
        output = getattr(node, "workeroutput", {})
        for reason, ids in output.get(_OUTPUT, {}).items():
            self._tests[reason].update(ids)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._unexpected() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._tests:
            return
        unexpected = self._unexpected()
        terminalreporter.section("not proven here", yellow=not unexpected, red=bool(unexpected))
        for reason, ids in sorted(self._tests.items()):
            mark = " (unexpected: the run fails)" if reason in unexpected else ""
            files = ", ".join(sorted({name.partition("::")[0] for name in ids}))
            terminalreporter.line(f"{len(ids)} skipped{mark}: {reason} [{files}]")

    def _add(self, nodeid: str, longrepr: Any) -> None:
        _, _, reason = longrepr  # file, line, reason, as pytest reports skips
        self._tests[reason.removeprefix("Skipped: ")].add(nodeid)

    def _unexpected(self) -> set[str]:
        if self._expected is None:
            return set()
        return {
            reason
            for reason in self._tests
            if not any(pattern.search(reason) for pattern in self._expected)
        }


def _patterns(file: Path) -> Iterator[re.Pattern[str]]:
    for line in file.read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text:
            yield re.compile(text)
