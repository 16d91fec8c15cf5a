"""Training on a game that nobody chose and that is not graded cannot be overlooked."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from miner.background_loop import BackgroundLoop
from miner.channels import duel
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.duel.wording import own_wording
from miner.reporting.run_folder import RunFolder
from miner.reporting.run_warnings import run_warnings
from miner.training.episodes import training_source
from miner.training.run_dir import prepare_run_dir
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
