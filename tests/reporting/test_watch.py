"""The page on a running job: what it shows and what it survives."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from miner.cli.watch import plain_text
from miner.config.heartbeat import Heartbeat
from miner.config.run_files import EPISODES_FILE
from miner.evaluation.results import EpisodeRecord
from miner.evaluation.statistics import Estimate
from miner.reporting import episode_log
from miner.reporting.episode_log import EpisodeLog
from miner.reporting.records import (
    COMPUTED_TOKENS,
    LEFT_OUT,
    ROW_TOKENS,
    ROWS,
    TARGET_KL,
    RecordFile,
    RecordTail,
    StepRecord,
    TrainedEpisode,
)
from miner.reporting.run_folder import RunFolder
from miner.reporting.templates import render
from miner.rollout.groups import LostEpisode
from tests.builders import build_trajectory
from tests.reporting.live_run import NOW, SETTINGS, live, run_of
from tests.reporting.made import evaluation, interval, step


@pytest.mark.parametrize(
    ("every", "plan"),
    [(3, "next held-out evaluation at step 42"), (500, "next held-out evaluation when training")],
)
def test_an_evaluation_is_announced_for_a_step_that_will_come(
    tmp_path: Path, every: int, plan: str
) -> None:
    run_of(tmp_path / "run")
    (tmp_path / "run/settings.toml").write_text(f"{SETTINGS}[evaluation]\nevery_steps = {every}\n")
    assert live(tmp_path / "run").view().plan[0].startswith(plan)


@pytest.mark.parametrize(
    ("at", "state", "alarm"),
    [(NOW, "sign of life just now", None), (NOW + 3600, "just now", "1:00:00 in the future")],
)
def test_a_clock_that_is_ahead_is_not_a_sign_of_life(
    tmp_path: Path, at: float, state: str, alarm: str | None
) -> None:
    run_of(tmp_path / "run")
    Heartbeat(time=at, phase="rollout", step=40).write(tmp_path / "run/heartbeat.json")
    view = live(tmp_path / "run").view()
    assert view.state.endswith(state)
    assert [alarm in found for found in view.alarms] == ([True] if alarm else [])


def test_a_run_is_shown_with_what_is_learned_and_how_certain_that_is(tmp_path: Path) -> None:
    run_of(tmp_path / "run")
    view = live(tmp_path / "run").view()
    assert view.alarms == []
    assert view.subject == (
        "Goofspiel with 8 cards against the random opponent, through the environment servers' own "
        "grading"
    )
    assert view.state == "playing episodes, step 40, last sign of life 0:00:03 ago"
    facts = {label: (value, detail) for label, value, detail in view.facts}
    scores = {label: facts[f"{label}, score"][0] for label in ("base", "published model")}
    assert scores == {"base": "0.300", "published model": "0.500"}, "the published, not the last"
    assert facts["newest checkpoint, score"][0] == "0.700"
    assert view.verdict.startswith("Better than its base: +0.200 [+0.100, +0.300]")
    assert facts["time left"][0] == "0:01:30"
    assert dict(view.phases) == {"playing": 0.75, "learning": 0.25}
    assert view.episodes[0].replay.scenes, "a game is drawn"
    page = render("watch.html.j2", view=view)
    assert "No alarms." in page
    assert page.count('class="marked"') == 2, "one published model, in two widths"
    text = plain_text(view)
    assert all(word in text for word in ("no alarms", "0.500", "playing 75%", "tokens/s"))


@pytest.mark.parametrize(
    ("kind", "alarm"), [("flat", "87.5% of the groups"), ("gap", "Engine and trainer disagree")]
)
def test_a_run_in_trouble_is_reported_first(tmp_path: Path, kind: str, alarm: str) -> None:
    run_of(tmp_path, kind)
    view = live(tmp_path).view()
    assert alarm in view.alarms[0]
    page = render("watch_body.j2", view=view)
    assert page.index(alarm) < page.index("Better than its base") < page.index("base, score")


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([], "Not known yet whether it learns"),
        ([None, None], "No better than its base so far: none of 2 checkpoint(s)"),
        ([0.106], "Better than its base: +0.106"),
        ([0.106] * 3, "Perhaps better than its base: +0.106"),
    ],
)
def test_a_gain_is_more_than_chance_for_the_best_of_as_many(
    tmp_path: Path, gains: list[float | None], verdict: str
) -> None:
    run = RunFolder(tmp_path)
    for number, gain in enumerate([None, *gains]):
        about = gain and Estimate(mean=gain, low=gain - 0.1, high=gain + 0.1, n=100)
        run.evaluations.append(
            evaluation("checkpoint", 0.5, step=number, split="held_out",
                       published=number == 0 or bool(gain), difference=about)
        )  # fmt: skip
    assert live(tmp_path).view().verdict.startswith(verdict)


def test_silence_disk_deadline_and_servers_are_alarms(tmp_path: Path) -> None:
    run_of(tmp_path)
    (tmp_path / "settings.toml").write_text(f"[deadline]\nends_at = {NOW + 920.5}\n")
    Heartbeat(time=NOW, phase="waiting for environment servers", step=9).write(
        tmp_path / "heartbeat.json"
    )
    assert "No sign of life" not in "".join(live(tmp_path, NOW + 800).view().alarms)
    alarms = "\n".join(live(tmp_path, NOW + 920, free=10**9).view().alarms)
    for text in (
        "No sign of life for 0:15:20", "waiting for environment servers", "Deadline at risk",
        "Only 1.0 GB are free",
    ):  # fmt: skip
        assert text in alarms
    Heartbeat(time=NOW, phase="done", step=40).write(tmp_path / "heartbeat.json")
    ended = live(tmp_path, NOW + 200).view()
    assert (ended.alarms, ended.state) == ([], "done after step 40")


def titles(folder: Path) -> set[str]:
    return {chart.title for chart in live(folder).view().charts}


def test_groups_of_one_episode_have_no_chart_of_their_signal(tmp_path: Path) -> None:
    for number, (groups, episodes) in enumerate(((0, 8), (8, 8), (8, 8)), 1):
        RunFolder(tmp_path).steps.append(
            step(number, groups=groups, flat_groups=groups, episodes=episodes)
        )
    assert "Groups with signal" not in titles(tmp_path)
    RunFolder(tmp_path).steps.append(step(4, groups=2, flat_groups=1, episodes=8))
    assert "Groups with signal" in titles(tmp_path)


def test_shares_are_of_what_teaches_and_of_what_is_saved(tmp_path: Path) -> None:
    work = {ROWS: 4, LEFT_OUT: 1, ROW_TOKENS: 100, COMPUTED_TOKENS: 25}
    RunFolder(tmp_path).steps.append(step(1, groups=4, flat_groups=1, episodes=8, metrics=work))
    view = live(tmp_path).view()
    [chart] = (chart for chart in view.charts if chart.title == "Groups with signal")
    assert chart.line == [(1, 0.75)]
    assert any("Tokens saved in learning: 75%" in note for note in view.notes)


def falling(number: int) -> StepRecord:
    return step(number, score=0.4, metrics={"entropy": 2 / number**2})


def test_entropy_that_fell_is_an_alarm_unless_the_game_is_learned(tmp_path: Path) -> None:
    for number in range(1, 31):
        RunFolder(tmp_path).steps.append(falling(number))
    assert any("Entropy fell" in alarm for alarm in live(tmp_path).view().alarms)
    for number in range(31, 41):
        RunFolder(tmp_path).steps.append(step(number, score=0.95, metrics={"entropy": 0.001}))
    assert not any("Entropy fell" in alarm for alarm in live(tmp_path).view().alarms)


def test_a_run_that_begins_again_under_the_page_is_read_from_its_start(tmp_path: Path) -> None:
    run_of(tmp_path / "run")
    page = live(tmp_path / "run")
    assert "step 40" in str(page.view().facts)
    shutil.move(tmp_path / "run", tmp_path / "aside")
    assert page.view().facts == []
    run_of(tmp_path / "run", steps=7)
    facts = page.view().facts
    assert "step 7" in str(facts)
    assert "step 40" not in str([fact for fact in facts if fact[0] == "progress"])


def test_a_longer_run_in_the_place_of_another_is_another(tmp_path: Path) -> None:
    """File systems give a new file the number of the one that was deleted."""
    metrics = RunFolder(tmp_path).steps
    tail = RecordTail(metrics.path, StepRecord)
    for number in (1, 2):
        metrics.append(step(number))
    tail.refresh()
    metrics.path.write_bytes(b"")
    for number in (1, 2, 3):
        metrics.append(step(number, time=2_000_000_000.0 + number))
    assert tail.refresh()
    assert [record.time for record in tail.records] == [2e9 + 1, 2e9 + 2, 2e9 + 3]


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    tail = RecordTail(tmp_path / "metrics.jsonl", StepRecord)
    whole = step(1).model_dump_json() + "\n"
    assert not tail.refresh()
    (tmp_path / "metrics.jsonl").write_text(whole + whole[:20])
    assert tail.refresh()
    assert (len(tail.records), tail.torn) == (1, 0)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(whole[20:])
    assert tail.refresh()
    assert (len(tail.records), tail.torn) == (2, 0)
    assert not tail.refresh()


def test_only_the_end_of_a_very_long_record_is_read_with_a_note(tmp_path: Path) -> None:
    run_of(tmp_path, steps=60)
    page = live(tmp_path)
    page._steps.MOST_BYTES = 5000
    view = page.view()
    assert "only the last steps are shown" in view.alarms[0]
    assert "step 60" in str(view.facts)
    assert len(page._steps.records) < 20


def test_records_of_another_version_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    run_of(tmp_path)
    (tmp_path / "evaluations.jsonl").write_text('{"version": 9}\n')
    view = live(tmp_path).view()
    assert "Another version of the miner" in view.alarms[0]
    assert "evaluations.jsonl line 1" in view.alarms[0]
    assert "step 40" in str(view.facts)


def test_a_run_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    view = live(tmp_path / "later").view()
    assert view.state == f"nothing is recorded yet at {tmp_path / 'later'}"
    assert view.subject == "something whose settings are not recorded yet"
    assert "nothing is recorded yet" in render("watch.html.j2", view=view)


def test_a_run_of_another_environment_is_no_game_before_its_base_has_played(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(SETTINGS.replace("graded", "own"))
    (tmp_path / "probe.json").write_text('{"channel": "own", "environment": "Guess"}')
    assert live(tmp_path).view().subject == "Guess (channel own)"


def test_the_log_of_episodes_is_bounded_and_a_full_disk_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    log = EpisodeLog(tmp_path, clock=lambda: now[0])
    trajectory = build_trajectory()
    log.add(trajectory)
    log.add(trajectory)  # within the same second
    log.add(LostEpisode(trajectory.task, RuntimeError("lost"), 3))
    now[0] += 1.0
    picked = tuple(replace(turn, sampled_tokens=0) for turn in trajectory.turns)
    log.add(replace(trajectory, turns=picked))  # a critic's moves, which are not the model's
    file = tmp_path / EPISODES_FILE
    assert len(file.read_text().splitlines()) == 1
    monkeypatch.setattr(episode_log, "MOST_BYTES", 3 * file.stat().st_size)
    for _ in range(20):
        now[0] += 1.0
        log.add(trajectory)
    assert file.stat().st_size <= episode_log.MOST_BYTES
    assert RecordFile(file, TrainedEpisode).read()[1] == 0, "whole lines alone are kept"
    file.unlink()
    file.mkdir()
    now[0] += 1.0
    log.add(trajectory)


def test_the_log_of_episodes_has_which_replies_were_cut_off(tmp_path: Path) -> None:
    whole, cut = build_trajectory().turns
    turns = (whole, replace(cut, finish_reason="length"))
    EpisodeLog(tmp_path).add(replace(build_trajectory(), turns=turns))
    [record], _ = RecordFile(tmp_path / EPISODES_FILE, TrainedEpisode).read()
    assert [reply.cut for reply in record.episode.replies] == [False, True]


def test_games_and_opponents_are_distinguished(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    assert live(tmp_path).view().played == []
    episodes = RecordFile(tmp_path / EPISODES_FILE, TrainedEpisode)
    for number, opponent in enumerate(("bid", "bid", "mcts:50")):
        episode = EpisodeRecord(
            environment="duel:othello", task_id=1, seed=2, opponent=opponent, score=number / 2
        )
        episodes.append(TrainedEpisode(time=NOW, episode=episode))
    held_out = {"duel:othello": Estimate(mean=0.4, low=0.3, high=0.5, n=50)}
    met = {"duel:othello": {"random": interval(0.7), "rival": interval(0.1)}}
    run.evaluations.append(
        evaluation("checkpoint", 0.6, step=41, split="held_out", environment="duel:othello")
    )  # of one game, against several opponents
    assert live(tmp_path).view().played[0][2] == str(interval(0.6))
    run.evaluations.append(
        evaluation("checkpoint", 0.4, step=42, split="held_out", by_game=held_out, by_opponent=met)
    )
    othello, goofspiel = live(tmp_path).view().played
    trained = "0.25 bid (2), 1.00 mcts:50 (1)"
    newest = str(held_out["duel:othello"])
    assert othello == ("othello", "-", newest, "0.70 random, 0.10 rival", trained)
    assert goofspiel[0] == "goofspiel"
    assert goofspiel[2:4] == ("-", "-")
    assert "mcts:50" in render("watch_body.j2", view=live(tmp_path).view())


def test_a_job_that_learns_from_teachers_alone_shows_its_games(tmp_path: Path) -> None:
    """It plays no training episodes."""
    run = RunFolder(tmp_path)
    games = ("duel:clobber", "duel:othello")
    for at, score in ((0, 0.0), (40, 0.6)):
        run.evaluations.append(
            evaluation(
                "checkpoint" if at else "base",
                score,
                step=at,
                split="held_out",
                by_game=dict.fromkeys(games, interval(score)),
                by_opponent={game: {"random": interval(score)} for game in games},
            )
        )
    clobber, othello = live(tmp_path).view().played
    assert clobber[:4] == ("clobber", str(interval(0.0)), str(interval(0.6)), "0.60 random")
    assert othello[0] == "othello"


def test_the_distance_to_the_targets_has_a_chart_where_it_is_known(tmp_path: Path) -> None:
    run = run_of(tmp_path, steps=3)
    assert "Distance to the targets" not in {chart.title for chart in live(tmp_path).view().charts}
    run.steps.append(step(4, score=None, episodes=0, metrics={TARGET_KL: 0.5}))
    [chart] = (c for c in live(tmp_path).view().charts if c.title == "Distance to the targets")
    assert chart.line == [(4, 0.5)]
