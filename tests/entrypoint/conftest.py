"""Folders and files that the orchestrator's tests work on, made without torch."""

import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.entrypoint.plans import run_plan
from tests.entrypoint.watched import FakeSupervisor, Moment

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 2048,
}
ARGUMENTS = {
    "--task-id": "task-1",
    "--model": "acme/tiny",
    "--dataset": "https://store.example/stub.json?X-Amz-Signature=s3cr3tsignature",
    "--dataset-type": '{"environment_name": "goofspiel"}',
    "--task-type": "EnvTask",
    "--file-format": "s3",
    "--expected-repo-name": "repo-1",
    "--hours-to-complete": "0.02",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write golden files anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a golden file; `pytest tests/entrypoint --update` writes it instead."""
    update = request.config.getoption("--update", default=False)

    def compare(name: str, text: str) -> None:
        file = GOLDEN / name
        if update:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        assert text == file.read_text(), f"{name} differs; if meant, run with --update"

    return compare


def write_model(
    folder: Path, *, config: dict[str, object] | None = None, values: int = 512
) -> Path:
    """A model folder whose structure is sound: one BF16 tensor, a tokenizer with a template."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    tokenizer = {"chat_template": "{{ messages }}", "eos_token": "<e>", "pad_token": "<p>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer.json").write_text("{}")
    header = json.dumps(
        {"w": {"dtype": "BF16", "shape": [values], "data_offsets": [0, 2 * values]}}
    )
    body = struct.pack("<Q", len(header)) + header.encode() + bytes(2 * values)
    (folder / "model.safetensors").write_bytes(body)
    return folder


@pytest.fixture(scope="session")
def model_writer() -> Callable[..., Path]:
    """`write_model`, for tests that need several."""
    return write_model


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, str]:
    """Environment variables of a container with a model cache and an empty output volume."""
    write_model(tmp_path / "cache/models/acme--tiny")
    (tmp_path / "checkpoints").mkdir()
    return {
        "MINER_CACHE_DIR": str(tmp_path / "cache"),
        "MINER_CHECKPOINTS_DIR": str(tmp_path / "checkpoints"),
    }


@pytest.fixture
def arguments() -> Callable[..., list[str]]:
    """The tournament's command line, with options replaced, or left out where None is given."""

    def build(*extra: str, **replaced: str | None) -> list[str]:
        options = ARGUMENTS | {f"--{name.replace('_', '-')}": v for name, v in replaced.items()}
        given = [word for name, v in options.items() if v is not None for word in (name, v)]
        return [*given, *extra]

    return build


@pytest.fixture
def child_environment(roots: dict[str, str]) -> dict[str, str]:
    """Variables for `python -m entrypoint` in a subprocess."""
    return {**os.environ, **roots, "PYTHONPATH": str(REPOSITORY), "ENVIRONMENT_SERVER_URLS": ""}


class HealthServer:
    """A real HTTP server that answers every GET with the next of `statuses` (the last repeats)."""

    def __init__(self, statuses: list[int]) -> None:
        self.asked = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                handler.send_response(statuses[min(self.asked, len(statuses) - 1)])
                self.asked += 1
                handler.send_header("Content-Length", "0")
                handler.end_headers()

            def log_message(handler, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[..., HealthServer]]:
    """Start servers; they are closed at the end."""
    servers: list[HealthServer] = []

    def build(*statuses: int) -> HealthServer:
        servers.append(HealthServer(list(statuses) or [200]))
        return servers[-1]

    yield build
    for server in servers:
        server.close()


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., FakeSupervisor]:
    def build(*moments: Moment, **fields: Any) -> FakeSupervisor:
        times = {"started_at": 1000, "trainer_ends_at": 5000, "ends_at": 5100, "kill_at": 5200}
        waits = {"stall_seconds": 25, "poll_seconds": 0.001}
        plan = run_plan(tmp_path, **{**times, **waits, **fields})
        plan.train_dir.mkdir(parents=True)
        plan.settings_file.write_text("[optimizer]\nmicro_batch_tokens = 8192\n")
        return FakeSupervisor(plan, list(moments))

    return build
