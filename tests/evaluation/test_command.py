"""`python -m miner evaluate` from end to end."""

import csv
import json
import os
import signal
from functools import partial
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from miner.cli.evaluation_session import _slug
from miner.config.statuses import TrainerStatus
from miner.evaluation.results import EpisodeRecord, EvaluationResult
from miner.reporting.progress import EvaluationProgress
from miner.reporting.run_folder import RunFolder
from miner.reporting.tables import score_rows
from tests.builders import build_qwen3, save_base
from tests.commands import miner, refusal
from tests.evaluation.chat_server import served_chat
from tests.reporting.made import evaluation
from tests.served import serve_in_thread


@pytest.fixture(autouse=True)
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENVIRONMENT_SERVER_URLS", raising=False)


run, refused = partial(miner, "evaluate"), partial(refusal, "evaluate")


def test_a_baseline_is_played_printed_and_written(tmp_path: Path) -> None:
    output = run("policy=match", "episodes=30", f"out={tmp_path}")
    result = EvaluationResult.model_validate_json((tmp_path / "match-bid-prize.json").read_bytes())
    assert result.score is not None
    assert f"match (bid = prize) {result.score.mean:.3f}" in output
    assert "0 parse failures, 0 illegal" in output
    assert len(result.episodes) == 30
    by_seed = list(csv.DictReader((tmp_path / "match-bid-prize.csv").open()))
    assert [int(row["seed"]) for row in by_seed] == sorted(e.seed for e in result.episodes)
    assert {(int(row["seed"]), int(row["task_id"])): float(row["score"]) for row in by_seed} == {
        (episode.seed, episode.task_id): episode.score for episode in result.episodes
    }
    assert (tmp_path / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    run_folder = RunFolder(tmp_path).read()
    assert [record.name for record in run_folder.evaluations] == ["match (bid = prize)"]
    assert set(run_folder.replays) == {"match-bid-prize-1", "match-bid-prize-2"}
    assert (tmp_path / "replays" / "match-bid-prize-1.html").is_file()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_the_episodes_that_were_over(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, seen = EvaluationProgress.update, []
    before = signal.getsignal(signal.SIGTERM)

    def interrupted(self: EvaluationProgress, record: EpisodeRecord) -> None:
        update(self, record)
        seen.append(record.seed)
        if len(seen) == 5:
            os.kill(os.getpid(), number)

    whole = tmp_path / "match-bid-prize.json"
    run("policy=match", "episodes=4", f"out={tmp_path}")
    before_it = whole.read_bytes()
    monkeypatch.setattr(EvaluationProgress, "update", interrupted)
    output = run(
        *("policy=match", "episodes=200", "concurrency=2", f"out={tmp_path}"),
        status=TrainerStatus.INTERRUPTED,
    )
    assert f"interrupted: {len(seen)} of 200 episodes were over" in output
    assert whole.read_bytes() == before_it  # a part replaces no whole evaluation
    [part] = tmp_path.glob(f"match-bid-prize*-{len(seen)}-of-200.json")
    result = EvaluationResult.model_validate_json(part.read_bytes())
    assert sorted(episode.seed for episode in result.episodes) == sorted(seen)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("folder", ["file", "file/below", "small"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_played(
    folder: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if folder == "small":
        out = request.getfixturevalue("small_disk") / "out"
    else:
        (tmp_path / "file").write_text("notes")
        out = tmp_path / folder
    monkeypatch.setattr("miner.cli.evaluation_session._play", None)
    monkeypatch.setattr("miner.duel.session.make_player", None)
    duel = ("duel", "random", "random", "--games", "clobber", "--out", str(out))
    assert f"{out} cannot be written" in refused("policy=match", f"out={out}")
    assert f"{out} cannot be written" in refusal(*duel)


def test_records_that_cannot_be_read_are_refused_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miner.cli.evaluation_session._play", None)
    (tmp_path / "evaluations.jsonl").write_text('{"of": "another version"}\n')
    assert "is no EvaluationRecord" in refused("policy=match", f"out={tmp_path}")


def test_evaluations_that_share_a_folder_are_compared_with_the_base(tmp_path: Path) -> None:
    common = ("episodes=40", f"out={tmp_path}", "replays=0")
    run("policy=random", "name=base", *common)
    output = run("policy=match", "name=trained", *common)
    base, trained = RunFolder(tmp_path).read().evaluations
    assert trained.difference is not None
    assert trained.score is not None
    assert base.score is not None
    assert trained.difference.mean == pytest.approx(trained.score.mean - base.score.mean)
    assert trained.difference.low > 0
    assert "against base" in output
    for name in ("base", "trained"):
        assert name in (tmp_path / "evaluation.svg").read_text()


@pytest.mark.parametrize("left", [None, "{}"])
def test_a_base_that_cannot_be_read_costs_the_comparison_alone(
    left: str | None, tmp_path: Path
) -> None:
    common = ("episodes=10", f"out={tmp_path}", "replays=0")
    run("policy=random", "name=base", *common)
    file = tmp_path / "base.json"
    file.unlink() if left is None else file.write_text(left)
    output = run("policy=match", "name=trained", *common)
    assert f"not compared with the base: {file}" in output
    assert RunFolder(tmp_path).read().evaluations[-1].difference is None
    assert (tmp_path / "trained.json").is_file()


def test_a_base_that_was_interrupted_is_compared_with_where_there_is_no_whole_one(
    tmp_path: Path,
) -> None:
    common = (f"out={tmp_path}", "replays=0", "environment.deck_sizes=8")
    for name, episodes in (("base", 12), ("base, 3 of 12", 3), ("trained", 12)):
        run("policy=match", f"name={name}", f"episodes={episodes}", *common)
    compared = RunFolder(tmp_path).read().evaluations[-1].difference
    assert compared is not None
    assert compared.n == 12


def test_folders_of_the_same_letters_have_files_of_their_own() -> None:
    paths = ["runs/a/model", "/runs/a/model", "../runs/a/model", "a" * 300 + "/model", "b/" * 200]
    slugs = [_slug(path) for path in paths]
    assert len(set(slugs)) == len(paths)
    assert max(map(len, slugs)) < 120
    assert _slug("base, sampled") == "base-sampled"


def test_names_of_the_same_letters_have_files_of_their_own(tmp_path: Path) -> None:
    """The first one keeps the plain name, also when it is evaluated again."""
    names = ["base_1", "base-1", "base_1", "lr=1e-3", "lr 1e 3"]
    for name in names:
        run("policy=random", f"name={name}", "episodes=4", "replays=1", f"out={tmp_path}")
    played = {
        EvaluationResult.model_validate_json(file.read_bytes()).policy: file.stem
        for file in tmp_path.glob("*.json")
    }
    assert played.keys() == set(names)
    assert (played["base_1"], played["lr=1e-3"]) == ("base-1", "lr-1e-3")
    assert RunFolder(tmp_path).read().replays.keys() == {f"{stem}-1" for stem in played.values()}


def test_a_base_whose_file_has_the_letters_of_another_is_compared_with(tmp_path: Path) -> None:
    common = ("episodes=12", f"out={tmp_path}", "replays=0", "environment.deck_sizes=8")
    run("policy=random", "name=base, a_b", *common)
    run("policy=random", "name=base, a-b", *common)  # the newest of two alike
    run("policy=match", "name=trained", *common)
    assert RunFolder(tmp_path).read().evaluations[-1].difference is not None
    [hashed] = tmp_path.glob("base-a-b-*.json")
    plain = tmp_path / "base-a-b.json"
    of_first = plain.read_bytes()
    hashed.rename(plain)  # as earlier versions wrote it
    assert "against base" in run("policy=match", "name=again", *common)
    plain.write_bytes(of_first)
    output = run("policy=match", "name=last", *common)
    assert f"{plain} is no evaluation of it (but of base, a_b); evaluate the base again" in output


def test_a_policy_is_compared_with_the_base_played_as_it_was(tmp_path: Path) -> None:
    """And a run's own evaluation of its base, on other games, changes no name."""
    RunFolder(tmp_path).evaluations.append(evaluation("base", 0.1, step=0, split="held_out"))
    common = ("episodes=20", f"out={tmp_path}", "replays=0")
    with serve_in_thread() as url:
        for policy, name, place in [
            ("random", "base", ()),
            ("match", "base", (f"environment.servers={url}",)),
            ("match", "trained", (f"environment.servers={url}",)),
            ("match", "trained", ()),
        ]:
            run(f"policy={policy}", f"name={name}", *common, *place)
    found = RunFolder(tmp_path).read().evaluations[1:]
    names = ["base", "base, over graded", "trained", "trained, over builtin"]
    assert [record.name for record in found] == names
    gains = [record.difference.mean if record.difference else None for record in found]
    assert gains[:3] == [None, None, 0.0]
    assert gains[3] > 0.2


def test_each_game_of_one_name_keeps_its_files_and_is_compared_with_the_same_game(
    tmp_path: Path,
) -> None:
    common = ("policy=random", "environment.channel=duel", "episodes=10", f"out={tmp_path}")
    for name, game, opponent in [
        ("base", "leduc_poker", "random"),
        ("base", "liars_dice", "random"),
        ("Base", "liars_dice", "random"),
        ("trained", "leduc_poker", "random"),
        ("trained", "leduc_poker", "teacher"),
    ]:
        opponents = f"environment.opponents={opponent}"
        run(*common, f"name={name}", f"environment.games={game}", opponents)
    found = RunFolder(tmp_path).read().evaluations
    assert [record.name for record in found] == [
        "base",
        "base, liars_dice",
        "Base",
        "trained",
        "trained, against teacher",
    ]
    assert len(list(tmp_path.glob("*.csv"))) == len(found)
    compared = [record.difference is not None for record in found]
    assert compared == [False, False, True, True, False]


def test_of_several_bases_the_one_that_was_played_alike_is_compared_with(tmp_path: Path) -> None:
    """And an evaluation done again replaces a record of an earlier version, without opponents."""
    common = ("policy=random", "environment.channel=duel", "episodes=12", f"out={tmp_path}")
    two, one = ("environment.games=leduc_poker,liars_dice",), ("environment.games=leduc_poker",)
    for name, games in [("base", two), ("base", one), ("trained", two), ("trained", two)]:
        run(*common, f"name={name}", *games)
        lines = (tmp_path / "evaluations.jsonl").read_text()
        (tmp_path / "evaluations.jsonl").write_text(
            lines.replace('"opponents":["random"]', '"opponents":[]')
        )
    found = RunFolder(tmp_path).read().evaluations
    assert [record.name for record in found] == ["base", "base, leduc_poker", "trained", "trained"]
    assert [record.difference and record.difference.n for record in found] == [None, None, 12, 12]


def test_other_cards_are_another_evaluation(tmp_path: Path) -> None:
    common = ("policy=random", "environment.channel=duel", "environment.games=goofspiel")
    for cards in (5, 8, 5):
        run(*common, f"environment.cards={cards}", "episodes=10", f"out={tmp_path}", "name=x")
    names = [record.name for record in RunFolder(tmp_path).read().evaluations]
    assert names == ["x", "x, sizes 8", "x"]


@pytest.mark.parametrize("word", ["rollout.temperature=1", "model.dtype=bfloat16", "seed=1"])
def test_settings_of_training_are_refused(word: str) -> None:
    key = word.partition("=")[0].removesuffix(".temperature")
    assert f"no evaluation reads {key}, which training does" in refused("policy=match", word)
    assert "'model' is a section: write model.NAME=VALUE" in refused("model=runs/x")


def test_two_temperatures_in_a_custom_environment_are_two_rows(tmp_path: Path) -> None:
    model = save_base(tmp_path / "model", build_qwen3(max_position_embeddings=1024))
    common = (
        f"model.path={model}",
        "environment.channel=own",
        "environment.entry=examples/guess.py:Guess",
    )
    for temperature in (0, 1):
        run(*common, "episodes=2", f"temperature={temperature}", f"out={tmp_path / 'out'}")
    found = RunFolder(tmp_path / "out").read().evaluations
    assert [record.name for record in found] == [f"{model}", f"{model}, temperature 1"]
    assert {record.split for record in found} == {"held_out"}


def test_a_server_is_played_through_its_graded_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_in_thread() as url:
        monkeypatch.setenv("ENVIRONMENT_SERVER_URLS", f"{url},")
        output = run("policy=match", "episodes=8", f"out={tmp_path}")
    assert "8 episodes over graded" in output


def test_a_policy_played_in_two_ways_is_shown_twice(tmp_path: Path) -> None:
    common = ("policy=match", "episodes=8", f"out={tmp_path}", "replays=1")
    run(*common)
    with serve_in_thread() as url:
        output = run(*common, f"environment.servers={url}")
        run(*common, f"environment.servers={url}")
    run(*common, "environment.deck_sizes=8")
    names = [
        "match (bid = prize)",
        "match (bid = prize), over graded",
        "match (bid = prize), over graded",
        "match (bid = prize), 8 cards",
    ]
    found = RunFolder(tmp_path).read()
    assert [record.name for record in found.evaluations] == names
    assert [row.name for row in score_rows(found.evaluations) if not row.known] == [
        names[0], names[1], names[3]
    ]  # fmt: skip
    for name in names[:2]:
        assert f"{name} " in output
        assert name in (tmp_path / "evaluation.svg").read_text()
    for slug in ("match-bid-prize", "match-bid-prize-over-graded", "match-bid-prize-8-cards"):
        assert (tmp_path / f"{slug}.json").is_file()
        assert f"{slug}-1" in found.replays
    only_eight = json.loads((tmp_path / "match-bid-prize-8-cards.json").read_text())
    assert {episode["deck_size"] for episode in only_eight["episodes"]} == {8}


def test_a_server_that_plays_other_cards_is_reported(tmp_path: Path) -> None:
    with serve_in_thread() as url:
        arguments = (f"environment.servers={url}", "environment.channel=step", f"out={tmp_path}")
        output = run("policy=match", "episodes=20", *arguments)
    assert "this is not the grader's score" in output


def test_a_model_behind_an_endpoint_plays_as_the_same_model_in_a_folder(tmp_path: Path) -> None:
    model = save_base(tmp_path / "model", build_qwen3(max_position_embeddings=8192))
    common = ("episodes=3", "environment.deck_sizes=8", f"out={tmp_path / 'out'}")
    assert "model 0." in run(f"model.path={model}", "name=model", "max_reply_tokens=6", *common)
    with served_chat(model, max_reply_tokens=6) as url, serve_in_thread() as server:
        run(f"llm_url={url}", *common)
        output = run(f"llm_url={url}", "name=graded", f"environment.servers={server}", *common)
    assert "3 episodes over graded" in output
    folder, endpoint, graded = (
        EvaluationResult.model_validate_json((tmp_path / "out" / f"{name}.json").read_bytes())
        for name in ("model", "tiny-model-behind-HTTP", "graded")
    )
    said = [[reply.text for reply in episode.replies] for episode in folder.episodes]
    assert all(len(replies) >= 3 for replies in said)
    assert folder.temperature == 0.0
    assert [[reply.text for reply in e.replies] for e in endpoint.episodes] == said
    assert [e.score for e in endpoint.episodes] == [e.score for e in folder.episodes]
    assert all(episode.failure != "policy" for episode in graded.episodes)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "set model.path, policy (policy=match) or llm_url"),
        (("policy=match", "llm_url=http://x/v1"), "policy and llm_url are both set"),
        (("policy=match", "environment.channel=recorded"), "is learned, not played: its scores"),
        (("policy=match", "environment.deck_sizes=9"), "'environment.deck_sizes.0' cannot be 9"),
        (("policy=match", "environment.name=chess"), "'chess'"),
        (("policy=match", "environment.servers=somewhere"), "'somewhere'"),
        (("policy=match", "environment.channel=graded"), "no environment server is given"),
        (("model.path=no/such/folder",), "no/such/folder holds no model"),
        (("llm_url=nowhere",), "'nowhere' is not a URL"),
    ],
)
def test_bad_input_is_one_sentence_that_names_it(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refused(*arguments, f"out={tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_without_its_base_is_explained(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "merge it first" in refused(f"model.path={tmp_path}")


def test_a_score_that_means_nothing_is_not_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    model = save_base(tmp_path / "model", build_qwen3(max_position_embeddings=64))
    output = run(f"model.path={model}", "episodes=3", f"out={out}", status=1)
    assert "all 3 episodes failed" in output
    assert "leaves no room" in output
    assert not out.exists()


def test_a_time_out_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miner.evaluation.runner.play", AsyncMock(side_effect=TimeoutError))
    output = run("policy=match", "episodes=2", f"out={tmp_path}")
    assert "2 episodes scored 0: timeout, such as: timed out (with a lower concurrency" in output
