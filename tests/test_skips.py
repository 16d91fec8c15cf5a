"""A run says what it did not prove, and fails where that is more than was expected."""

from pathlib import Path

import pytest

WHOLE_MODULE = "import pytest\npytest.skip('no engine here', allow_module_level=True)\n"
MIXED = """
import pytest
def test_passes(): pass
@pytest.mark.skip(reason="no GPU: 1 test")
def test_skipped(): pass
@pytest.mark.parametrize("row", [])
def test_of_nothing(row): pass
@pytest.mark.xfail(reason="known")
def test_known(): assert False
"""
MODULE_SKIP = "1 skipped*: no engine here [[]test_module.py[]]"


@pytest.fixture(params=[0, 2], ids=["one process", "xdist"])
def run(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Runs pytest on the two modules above, with some expectations or none."""
    pytester.makepyfile(test_module=WHOLE_MODULE, test_mixed=MIXED)
    pytester.syspathinsert(Path(__file__).resolve().parents[1])
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # seconds of imports

    def run(*expected: str) -> pytest.RunResult:
        words = ["-p", "tests.skips", "-p", "xdist.plugin", "-n", str(request.param)]
        if expected:
            (pytester.path / "expected").write_text("\n".join(expected))
            words += ["--expected-skips", "expected"]
        return pytester.runpytest_inprocess(*words)

    return run


def test_every_skip_is_named_at_the_end(run) -> None:
    result = run()
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["*not proven here*", "1 skipped: got empty parameter set*", "1 skipped: no GPU: 1 test*"]
    )
    result.stdout.fnmatch_lines([MODULE_SKIP])
    result.stdout.no_fnmatch_line("*skipped*known*")


def test_a_skip_that_was_not_expected_fails_the_run(run) -> None:
    result = run("# of this machine", "^no GPU", "empty parameter set  # for the test")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["1 skipped (unexpected: the run fails): no engine here*"])
    result.stdout.no_fnmatch_line("*unexpected*no GPU*")


def test_expected_skips_are_no_failure(run) -> None:
    result = run("^no GPU", "empty parameter set", "no engine")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines([MODULE_SKIP])
