"""The tournament's arguments and environment."""

from collections.abc import Callable

import pytest

from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.job import parse_dataset_type, parse_invocation, plan_hours
from miner.config.contract import split_server_urls

Arguments = Callable[..., list[str]]


def test_every_argument_of_the_tournament_reaches_the_job(arguments: Arguments) -> None:
    invocation = parse_invocation(
        arguments(model="acme/big", hours_to_complete="1.5"),
        {"ENVIRONMENT_SERVER_URLS": "http://10.0.0.2:8000/, http://10.0.0.3:8000"},
    )
    job = invocation.job
    assert (job.task_id, job.model, job.repo_name) == ("task-1", "acme/big", "repo-1")
    assert job.environments == ("goofspiel",)
    assert job.servers == ("http://10.0.0.2:8000", "http://10.0.0.3:8000")
    assert job.seconds == 5400
    assert invocation.warnings == ()


@pytest.mark.parametrize(
    ("text", "names", "duels"),
    [
        ('{"environment_name": "goofspiel"}', ("goofspiel",), False),
        ('{"environment_names": ["gin_rummy", "goofspiel"]}', ("gin_rummy", "goofspiel"), True),
        ('{"environment_names": ["goofspiel", "goofspiel"]}', ("goofspiel",), True),
        ('{"environment_names": ["othello"], "environment_name": null}', ("othello",), True),
        ('{"environment_names": [], "environment_name": "othello"}', ("othello",), False),
        ('{"environment_name": " goofspiel ", "unknown": {"a": 1}}', ("goofspiel",), False),
    ],
)
def test_both_forms_of_the_dataset_type(text: str, names: tuple[str, ...], duels: bool) -> None:
    assert parse_dataset_type(text) == (names, duels)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "goofspiel",
        "[]",
        "{}",
        '{"environment_names": []}',
        '{"environment_name": 3}',
        '{"environment_names": ["goofspiel", ""]}',
        '{"environment_names": "goofspiel"}',
    ],
)
def test_dataset_type_without_games_is_explained(text: str) -> None:
    with pytest.raises(Failure, match=r"--dataset-type is .*environment_name") as caught:
        parse_dataset_type(text)
    assert caught.value.status == ExitStatus.ARGUMENTS


@pytest.mark.parametrize(
    ("given", "seconds", "words"),
    [
        ("0", 1800, "under one hour: planned for 30 minutes"),
        ("0.0", 1800, "under one hour"),
        ("0.25", 900, "planned for 0.25 h"),
        ("1", 5400, "may be truncated: planned for 1.5 h"),  # no task is shorter
        ("2", 9000, "may be truncated: planned for 2.5 h"),
        ("4", 14400, "may be truncated: planned for 4 h"),
        ("1.0", 3600, "1 h given: planned for 1 h"),
        ("1.5", 5400, "1.5 h given: planned for 1.5 h"),
    ],
)
def test_hours_are_planned_for_the_shortest_task_that_they_may_be(
    given: str, seconds: float, words: str
) -> None:
    planned, note = plan_hours(given)
    assert planned == seconds
    assert words in note
    assert "\n" not in note


@pytest.mark.parametrize("given", ["-1", "nan", "inf", "soon", "", "1e9"])
def test_hours_that_are_none_are_refused(given: str) -> None:
    with pytest.raises(Failure, match="--hours-to-complete"):
        plan_hours(given)


def test_missing_hours_count_as_zero(arguments: Arguments) -> None:
    invocation = parse_invocation(arguments(hours_to_complete=None), {})
    assert invocation.job.seconds == 1800
    assert any("--hours-to-complete is missing" in line for line in invocation.warnings)


def test_unknown_arguments_are_named_and_their_values_kept_out(arguments: Arguments) -> None:
    extra = ("--hf-token", "hf_verysecret", "--mode=fast")
    invocation = parse_invocation(arguments(*extra), {})
    assert invocation.warnings == ("unknown arguments are ignored: --hf-token, --mode",)


def test_other_task_types_and_formats_are_warned_about(arguments: Arguments) -> None:
    warnings = parse_invocation(arguments(task_type="GrpoTask", file_format="csv"), {}).warnings
    assert len(warnings) == 2
    assert "GrpoTask" in warnings[0]
    assert "csv" in warnings[1]


@pytest.mark.parametrize("option", ["task_id", "model", "dataset_type", "expected_repo_name"])
def test_missing_arguments_are_named(arguments: Arguments, option: str) -> None:
    with pytest.raises(Failure, match=f"--{option.replace('_', '-')}"):
        parse_invocation(arguments(**{option: None}), {})


@pytest.mark.parametrize("value", ["", ".", "..", ".run", "a/b", "a b", "a\nb", "a\\b"])
@pytest.mark.parametrize("option", ["task_id", "expected_repo_name"])
def test_path_parts_cannot_leave_the_output_volume(
    arguments: Arguments, option: str, value: str
) -> None:
    with pytest.raises(Failure, match=f"--{option.replace('_', '-')} is") as caught:
        parse_invocation(arguments(**{option: value}), {})
    assert caught.value.status == ExitStatus.ARGUMENTS


@pytest.mark.parametrize("value", ["", "/", "../../etc", "a b"])
def test_model_names_are_checked(arguments: Arguments, value: str) -> None:
    with pytest.raises(Failure, match="--model is"):
        parse_invocation(arguments(model=value), {})


@pytest.mark.parametrize(
    "text",
    [
        " http://a:1/ ,,http://[::1],http://a:1",
        "http://a:1;http://[::1]",
        '["http://a:1", "http://[::1]"]',
        "'http://a:1 http://[::1]'",
    ],
)
def test_servers_are_listed_once_in_any_form(text: str) -> None:
    assert split_server_urls(text) == ["http://a:1", "http://[::1]"]


@pytest.mark.parametrize("bad", ["ftp://user:hunter2@host", "None", "10.0.0.5:8000", "http://b:x"])
def test_a_bad_server_url_is_left_out_and_named_without_its_password(
    arguments: Arguments, bad: str
) -> None:
    invocation = parse_invocation(
        arguments(), {"ENVIRONMENT_SERVER_URLS": f"{bad},http://a:80000,http://a:1"}
    )
    assert invocation.job.servers == ("http://a:1",)
    assert len(invocation.warnings) == 2
    assert all(line.startswith("ENVIRONMENT_SERVER_URLS: ") for line in invocation.warnings)
    assert "hunter2" not in str(invocation.warnings)


def test_user_options(arguments: Arguments) -> None:
    extra = ("--dry-run", "--gpus", "0", "--set", "a.b=1", "--set", "c=x")
    invocation = parse_invocation(arguments(*extra), {})
    assert (invocation.dry_run, invocation.gpus) == (True, "0")
    assert invocation.overrides == ("a.b=1", "c=x")


@pytest.mark.parametrize("pretended", [("--gpus", "4xH100-80GB"), ("--model-config", "7B")])
def test_only_a_dry_run_may_pretend(arguments: Arguments, pretended: tuple[str, str]) -> None:
    assert parse_invocation(arguments("--dry-run", *pretended), {}).dry_run
    with pytest.raises(Failure, match=f"{pretended[0]} pretends: only with --dry-run") as caught:
        parse_invocation(arguments(*pretended), {})
    assert caught.value.status == ExitStatus.ARGUMENTS
