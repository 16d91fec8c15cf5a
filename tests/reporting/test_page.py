"""The report of a run folder, complete, partial and broken."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from miner.config.errors import ConfigurationError
from miner.config.heartbeat import Heartbeat
from miner.config.settings import Settings, to_toml
from miner.environments import EpisodeTask
from miner.evaluation.results import Reply
from miner.evaluation.statistics import Estimate
from miner.reporting.page import best_first, write_report
from miner.reporting.records import LOGPROB_GAP, EvaluationRecord
from miner.reporting.run_folder import RunFolder
from miner.reporting.run_warnings import run_warnings
from miner.reporting.tables import print_scores, score_rows, score_table
from tests.commands import miner, refusal
from tests.reporting.live_run import live
from tests.reporting.made import build_replay, evaluation, interval, replay, step


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A finished run without trouble."""
    folder = RunFolder(tmp_path / "run-a")
    for number in range(1, 21):
        folder.steps.append(step(number))
    for number in (0, 10, 20):
        folder.evaluations.append(
            evaluation("base" if number == 0 else "checkpoint", 0.4 + number / 50,
                       step=number, split="held_out", published=number != 10)
        )  # fmt: skip
    folder.add_replay("first", replay())
    folder.write_probe(
        {
            "channel": "graded",
            "reason": "/step is not true to the game",
            "picture": "server <a>  25% of 40",
        }
    )  # fmt: skip
    (folder.path / "settings.toml").write_text(
        'seed = 3\n[environment]\nname = "goofspiel"\ndeck_sizes = [8]\n[output]\n'
    )
    return folder


def test_a_report_shows_all_there_is_and_links_only_to_what_it_wrote(folder: RunFolder) -> None:
    page = write_report(folder.path).read_text()
    for text in (
        "run-a", "20 of 100 steps", "match (bid = prize) 0.924", "checkpoint 20", "Grey rows",
        "Channel graded: /step is not true to the game.", "deck_sizes",
        "server &lt;a&gt;  25% of 40",
    ):  # fmt: skip
        assert text in page
    linked = re.findall(r'(?:href|src)="([^"#][^"]*)"', page)
    assert linked == ["replays/first.html"]
    assert all((folder.path / target).is_file() for target in linked)
    assert "Worth knowing" not in page
    for name in ("learning_curve.png", "learning_curve.svg", "evaluation.png"):
        assert (folder.path / name).stat().st_size > 1000


def test_a_report_speaks_of_wins_cards_and_servers_only_where_there_are_some(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path / "run-b")
    folder.steps.append(step(1, replies=100, invalid_replies=9))
    for number in (0, 10):
        folder.evaluations.append(
            evaluation("base" if number == 0 else "checkpoint", 0.4, step=number, split="held_out",
                       channel="own", environment="Guess", by_deck_size={}, by_seat={})
        )  # fmt: skip
    task = EpisodeTask("Guess", 7, 7, opponent="none")
    said = Reply(text="4", action=None, shown=("guess",))
    folder.add_replay("first", build_replay(task, [said], policy="base", channel="own", score=0.25))
    folder.write_probe(
        {"channel": "own", "reason": "Guess: 96 episodes", "scoring": "Scores are those of Guess.",
         "notes": ["an odd thing"]}
    )  # fmt: skip
    words = ("environment.channel=own", "environment.entry=guess.py:Guess")
    (folder.path / "settings.toml").write_text(to_toml(Settings.load(None, words, {})))
    page = write_report(folder.path).read_text()
    for text in (
        "environment Guess · channel own", "Scores are those of Guess.", "Episodes to look at",
        "base in Guess (seed 7)", "Score 0.25", "an odd thing", "9.0% of the replies",
        "guess.py:Guess", "were not valid",
    ):  # fmt: skip
        assert text in page
    for text in ("A win", "Games", "card", "legal action", "servers", "goofspiel", "sessions"):
        assert text not in re.sub("<style>.*?</style>|<svg.*?</svg>", "", page, flags=re.S)


def demo_evaluations(folder: RunFolder) -> None:
    """Addition of `make demo` at its end."""
    for name, mean in (("base", 0.3), ("trained", 0.9), ("trained, sampled", 0.8), ("random", 0.5)):
        folder.evaluations.append(evaluation(name, mean, by_deck_size={8: interval(mean)}))


def tiles_of(folder: RunFolder) -> list[tuple[str, str, str]]:
    """Label, value and detail of the report's first numbers."""
    tile = r'class="tile"><span>([^<]*)</span><b>([^<]*)</b><span>([^<]*)<'
    return re.findall(tile, write_report(folder.path).read_text())


def test_the_first_numbers_are_those_of_base_and_trained_model(folder: RunFolder) -> None:
    demo_evaluations(folder)
    tiles = tiles_of(folder)
    assert [tile[:2] for tile in tiles[:3]] == [
        ("base, score", "0.300"), ("trained, score", "0.900"), ("trained, sampled, score", "0.800")
    ]  # fmt: skip
    assert tiles[3][0] == "time in steps"
    page = (folder.path / "report.html").read_text()
    assert '<th class="num">8 cards</th>' not in page, "one size is the overall score"


def test_a_run_that_plays_no_episodes_has_no_rate_of_their_tokens(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.steps.append(step(1, score=None, episodes=0))
    assert tiles_of(folder) == [("time in steps", "0:00:02", "without evaluations")]
    assert "tokens/s" not in [label for label, *_ in live(tmp_path).view().facts]
    folder.steps.append(step(2))
    assert tiles_of(folder) == [
        ("time in steps", "0:00:04", "without evaluations, 64 episodes"),
        ("tokens/s", "1,000", "of whole episodes, prompts included"),
    ]
    assert "tokens/s" in [label for label, *_ in live(tmp_path).view().facts]


def test_the_first_numbers_of_a_plain_training_run_are_those_of_its_evaluations(
    folder: RunFolder,
) -> None:
    tiles = [tile[:2] for tile in tiles_of(folder)[:2]]
    assert tiles == [("base, score", "0.400"), ("trained, step 20, score", "0.800")]


@pytest.mark.parametrize(
    ("phase", "shown"), [("done", "20 steps in the time given (at most 100)"),
                         ("stopped", "20 of 100 steps"), ("rollout", "20 of 100 steps")]
)  # fmt: skip
def test_a_time_limit_is_not_an_abort(folder: RunFolder, phase: str, shown: str) -> None:
    (folder.path / "settings.toml").write_text("[deadline]\nseconds = 225.0\n")
    Heartbeat(time=1.0, phase=phase, step=20).write(folder.path / "heartbeat.json")
    assert shown in write_report(folder.path).read_text()


def test_the_first_replay_is_the_best_one() -> None:
    scores = {"a": 0.0, "b": None, "c": 1.0}
    replays = {name: replay().model_copy(update={"score": s}) for name, s in scores.items()}
    assert [name for name, _ in best_first(replays)] == ["c", "a", "b"]


def test_a_run_that_has_just_begun_can_be_reported(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.steps.append(step(1, score=None, total_steps=None))
    assert "1 steps" in write_report(tmp_path).read_text()


def test_an_empty_report_has_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no records of a run"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("name", "contents"),
    [("settings.toml", "a = "), ("probe.json", "[]"), ("replays/x.json", "{}")],
)
def test_a_broken_file_is_named(folder: RunFolder, name: str, contents: str) -> None:
    (folder.path / name).write_text(contents)
    with pytest.raises(ConfigurationError, match=re.escape(name)):
        write_report(folder.path)


@pytest.mark.parametrize(("credit", "told"), [("episode", True), ("turn", False), ("own", False)])
def test_equal_totals_teach_nothing_only_where_turns_have_no_credit_of_their_own(
    folder: RunFolder, credit: str, told: bool
) -> None:
    (folder.path / "settings.toml").write_text(f'[reward]\ncredit = "{credit}"\n')
    folder.steps.append(step(21, groups=999, flat_groups=999))
    said = "nothing was learned from them" in "\n".join(run_warnings(folder.read()))
    assert said == told


def test_trouble_is_reported(folder: RunFolder) -> None:
    folder.steps.append(
        step(21, lost_episodes=7, too_long_episodes=2, invalid_replies=500, cut_replies=600,
             groups=16, flat_groups=16,
             drift={"clean": 90, "fork": 10}, action_applied_rate=0.28,
             metrics={"loss": float("nan"), LOGPROB_GAP: 0.3})
    )  # fmt: skip
    folder.steps.append(step(22, groups=2, flat_groups=2, metrics={LOGPROB_GAP: 0.02}))
    folder.evaluations.append(evaluation("trained", 0.8, failures={"timeout": 3}))
    folder.evaluations.append(evaluation("base", 0.4, failures={"timeout": 2}))
    folder.evaluations.append(evaluation("base", 0.4, failures={"timeout": 2}))  # played again
    with folder.steps.path.open("a") as sink:
        sink.write('{"step": 23, "ti')
    told = "\n".join(run_warnings(folder.read()))
    for text in (
        "Not a number in the metrics, first at step 21", "5 episodes were lost",
        "2 episodes did not fit into rollout.max_episode_tokens",
        "of the replies in the last 10 steps were cut off",
        "logprob gap was 0.300 at first and 0.300 at step 21, too wide in 1 of 22 steps",
        "only 28.0% of the actions", "10.0% of the turn boundaries: 10 where the chat template",
        "8.3% of the replies in the last 10 steps", "100.0% of the groups",
        "In evaluations 5 episodes ran out of time (trained 3, base 2)", "1 line(s)",
    ):  # fmt: skip
        assert text in told
    assert told.index("Flat groups") < told.index("Token drift"), "alarms are before notes"
    assert "Worth knowing" in write_report(folder.path).read_text()


@pytest.mark.parametrize(("channel", "told"), [("auto", True), ("builtin", False)])
def test_a_game_that_is_neither_chosen_nor_graded_is_reported(
    folder: RunFolder, channel: str, told: bool
) -> None:
    (folder.path / "settings.toml").write_text(f'[environment]\nchannel = "{channel}"\n')
    folder.write_probe({"channel": "builtin", "warning": "neither /step nor /evaluate"})
    warnings = run_warnings(folder.read())
    sentence = "Not trained on what is graded: neither /step nor /evaluate."
    assert warnings == ([sentence] if told else [])
    assert (sentence in write_report(folder.path).read_text()) is told


def test_what_a_channel_of_ones_choice_warned_of_comes_first(folder: RunFolder) -> None:
    (folder.path / "settings.toml").write_text('[environment]\nchannel = "openenv"\n')
    folder.write_probe({"channel": "openenv", "reason": "", "warning": "seeds are ignored"})
    assert run_warnings(folder.read())[0] == "Channel openenv: seeds are ignored."


def test_a_run_without_trouble_has_no_warnings(folder: RunFolder) -> None:
    assert run_warnings(folder.read()) == []


def names(records: list[EvaluationRecord]) -> list[tuple[str, bool]]:
    return [(row.name, row.known) for row in score_rows(records)]


def test_measured_baselines_replace_known_ones_and_are_in_reading_order() -> None:
    records = [
        evaluation("trained", 0.9),
        evaluation("match (bid = prize)", 0.95),
        evaluation("base", 0.3),
    ]
    assert names(records) == [
        ("random", True),
        ("base", False),
        ("trained", False),
        ("match (bid = prize)", False),
        ("best response", True),
    ]


def test_of_evaluations_done_again_the_last_one_counts() -> None:
    rows = score_rows([evaluation("base", 0.3), evaluation("base", 0.35)])
    assert [row.score for row in rows if row.name == "base"] == ["0.350 [0.250, 0.450]"]


def test_another_game_is_compared_with_nothing_known() -> None:
    assert names([evaluation("base", 0.4, environment="othello")]) == [("base", False)]


def test_an_evaluation_in_which_nothing_counted_reports_it() -> None:
    (row,) = score_rows(
        [evaluation("base", 0.4, score=None, environment="othello", failures={"infrastructure": 9})]
    )
    assert (row.score, row.excluded) == ("none counted", "9")


@pytest.mark.parametrize(("failures", "shown"), [({"timeout": 7}, ["7"]), ({}, None)])
def test_games_that_the_clock_ended_are_distinguished_from_lost_ones(
    failures: dict[str, int], shown: list[str] | None
) -> None:
    table = score_table([evaluation("base", 0.4, environment="othello", failures=failures)], 80)
    columns = {column.header: list(column.cells) for column in table.columns}
    assert columns.get("timed out") == shown


@pytest.mark.parametrize(("shared", "of"), [(100, ""), (40, " of 40")])
def test_a_difference_of_fewer_games_says_so(shared: int, of: str) -> None:
    record = evaluation("trained", 0.4, difference=interval(0.1, shared))
    [row] = [row for row in score_rows([record]) if row.name == "trained"]
    assert row.difference == f"{interval(0.1).signed}{of}"


@pytest.mark.parametrize("width", [50, 80, 81, 110, 130, 160])
@pytest.mark.parametrize("name", ["trained", "a policy with a long name, over builtin"])
def test_a_terminal_cuts_no_number_off(width: int, name: str) -> None:
    shown = io.StringIO()
    failures = {"timeout": 7, "infrastructure": 12}
    gain = Estimate(mean=0.15, low=0.101, high=0.199, n=250)
    records = [
        evaluation(name, 0.4, difference=gain, failures=failures, parse_failures=100),
        evaluation("match (bid = prize)", 0.954),
    ]
    print_scores(Console(file=shown, width=width, force_terminal=True, color_system=None), records)
    lines = shown.getvalue().splitlines()
    words = set(shown.getvalue().split())
    assert words.issuperset(("0.400", "+0.150", "0.954", "100", "10.0%", "7", "12"))
    for bounds in ("[0.300, 0.500]", "[+0.101, +0.199]", "[0.854, 1.000]"):
        assert bounds in shown.getvalue()
    assert "\u2026" not in shown.getvalue()
    assert width < 80 or max(map(len, lines)) <= width


def test_a_log_of_a_narrow_terminal_has_every_number() -> None:
    shown = io.StringIO()
    sizes = {size: interval(0.4) for size in (8, 10, 12, 14, 16)}
    name = "a policy with a long name, over builtin, temperature 1"
    records = [evaluation(name, 0.4, by_deck_size=sizes, difference=interval(0.1))]
    print_scores(Console(file=shown, width=80), records)
    assert "\u2026" not in shown.getvalue()
    assert "16 cards" in shown.getvalue()


def test_the_command_prints_scores_and_where_the_page_lies(folder: RunFolder) -> None:
    output = miner("report", folder.path)
    assert "checkpoint 20" in output
    assert f"written to {folder.path / 'report.html'}" in output


def test_the_command_prints_names_as_they_are(folder: RunFolder) -> None:
    name = "m[/x] [y=1]"  # rich would read markup
    folder.evaluations.append(evaluation(name, 0.4, failures={"timeout": 1}))
    assert f"ran out of time ({name} 1)" in miner("report", folder.path).replace("\n", " ")


@pytest.mark.parametrize(("name", "sentence"), [("absent", "is not a folder"), ("", "no records")])
def test_the_command_refuses_what_is_not_a_run(tmp_path: Path, name: str, sentence: str) -> None:
    assert sentence in refusal("report", tmp_path / name)


def test_invalid_replies_are_a_share_of_all_replies() -> None:
    record = evaluation("base", 0.4, environment="othello", parse_failures=20, illegal_replies=5)
    assert [row.invalid for row in score_rows([record])] == ["2.5%"]
