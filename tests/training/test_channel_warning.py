"""Training on a game that nobody chose and that is not graded cannot be overlooked."""

import io
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

from miner.background_loop import BackgroundLoop
from miner.channels import duel
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.duel.channel import opening
from miner.duel.wording import own_wording
from miner.reporting.run_folder import RunFolder
from miner.reporting.run_warnings import run_warnings
from miner.training.episodes import training_source
from miner.training.run_dir import prepare_run_dir
from tests.builders import build_qwen3, build_tokenizer, save_base, trl_template


class Nothing(BaseHTTPRequestHandler):
    """Answers, but knows no path."""

    def do_GET(self):
        self.send_response(404)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET

    def log_message(self, format, *args):
        pass


@contextmanager
def answering_server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("channel", "times"), [("auto", 2), ("builtin", 0)])
def test_servers_that_can_play_no_channel_are_warned_about_at_both_ends(tmp_path, channel, times):
    said = io.StringIO()
    with answering_server() as url, BackgroundLoop() as loop:
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
    for module in (duel, opening):
        monkeypatch.setattr(module, "wording_of", lambda folder: wording)
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
