"""Training on a game that nobody chose and that is not graded cannot be overlooked."""

import io
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

from miner.background_loop import BackgroundLoop
from miner.config.settings import Settings
from miner.distributed.ranks import Ranks
from miner.reporting.run_folder import RunFolder
from miner.reporting.run_warnings import run_warnings
from miner.training.episodes import training_source
from miner.training.run_dir import prepare_run_dir


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
