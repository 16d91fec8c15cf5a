"""Training on a game that nobody chose and that is not graded cannot be overlooked."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from miner.background_loop import BackgroundLoop
from miner.channels import duel
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.duel.wording import own_wording
from miner.environments import EpisodeTask
from miner.reporting.run_folder import RunFolder
from miner.reporting.run_warnings import run_warnings
from miner.training.episodes import training_source
from miner.training.run_dir import prepare_run_dir
from mock_env_server.running import running_server
from tests.builders import build_qwen3, build_tokenizer, save_base, trl_template
from tests.environments.raw_server import http, raw_server


@pytest.mark.parametrize(("channel", "times"), [("auto", 2), ("builtin", 0)])
def test_servers_that_can_play_no_channel_are_warned_about_at_both_ends(tmp_path, channel, times):
    said = io.StringIO()
    served = raw_server(lambda path, body: http({}, 404))
    with BackgroundLoop() as loop:
        url = loop.run(served.__aenter__()).url
        settings = Settings.load(
            None,
            [
                f"run_dir={tmp_path}",
                f'environment.servers=["{url}"]',
                f"environment.channel={channel}",
            ],
            environ={},
        )
        prepare_run_dir(settings)
        console = Console(file=said, width=80)
        with training_source(settings, loop, console, Ranks()) as source:
            assert source.name == "builtin"
            assert said.getvalue().count("\nWARNING: ") == min(times, 1)
        loop.run(served.__aexit__(None, None, None))
    lines = [line for line in said.getvalue().splitlines() if line.startswith("WARNING: ")]
    assert len(lines) == times
    for line in lines:
        assert "not what is graded" in line
        assert "force environment.channel=step or graded" in line
    told = "\n".join(run_warnings(RunFolder(tmp_path).read()))
    assert ("Not trained on what is graded" in told) is bool(times)


def test_a_game_that_moves_into_the_process_keeps_the_words_of_its_servers(tmp_path):
    def opening(*more: str) -> str:
        """The first message that the policy gets."""
        settings = Settings.load(None, [f"run_dir={tmp_path}", *more], environ={})
        console, ranks = Console(file=io.StringIO(), width=80), Ranks()
        with (
            BackgroundLoop() as loop,
            training_source(settings, loop, console, ranks) as source,
        ):
            task = EpisodeTask("goofspiel", 0, 1)
            return loop.run(source.open().reset(task)).messages[0]["content"]

    prepare_run_dir(Settings.load(None, [f"run_dir={tmp_path}"], environ={}))
    with running_server("correct") as server:
        own = opening(f'environment.servers=["{server.base_url}"]')
    found = tmp_path / "probe.json"
    found.write_text(found.read_text().replace(json.dumps(own), '"In other words."'))
    for _ in range(2):  # the second attempt reads what the first has written
        assert opening("environment.channel=builtin") == "In other words."
    assert (
        opening("environment.channel=builtin", "environment.name=leduc_poker") != "In other words."
    )


@pytest.mark.parametrize(
    ("copied", "tools", "times"),
    [(False, True, 1), (False, False, 2), (True, True, 0), (True, False, 2)],
)
def test_duels_without_a_copy_of_the_tournaments_prompts_are_warned_about_once(
    tmp_path, monkeypatch, copied, tools, times
):
    """What forfeits games is printed at both ends."""
    wording = replace(own_wording(), source="a copy") if copied else own_wording()
    monkeypatch.setattr(duel, "wording_of", lambda folder: wording)
    tokenizer = build_tokenizer(trl_template("qwen3")) if tools else build_tokenizer()
    model = build_qwen3(len(tokenizer), max_position_embeddings=32768)
    said = io.StringIO()
    with BackgroundLoop() as loop:
        places = [f"run_dir={tmp_path / 'run'}", f"model.path={tmp_path}"]
        game = ["environment.channel=duel", 'environment.games=["leduc_poker"]']
        settings = Settings.load(None, [*places, *game, "environment.tool_parser=qwen25"])
        save_base(tmp_path, model, tokenizer)
        prepare_run_dir(settings)
        console = Console(file=said, width=80)
        with training_source(settings, loop, console, Ranks()) as source:
            assert source.name == "duel"
    lines = [line for line in said.getvalue().splitlines() if line.startswith("WARNING: ")]
    assert len(lines) == times
    told = "\n".join(run_warnings(RunFolder(tmp_path / "run").read()))
    for text in (*lines[:1], told):
        assert ("python -m miner prompts --from CLONE" in text) is not copied
        assert ("shows no tools" in text) is not tools
    for text in lines[1:]:
        assert "prompts" not in text
        assert "shows no tools" in text
