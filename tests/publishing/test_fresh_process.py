"""Heavy work in a process of its own gives the same answers and the same errors."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from miner.publishing import fresh_process
from miner.publishing.__main__ import main
from miner.publishing.errors import PublishingError, UnverifiedModelError
from miner.publishing.publisher import PublishedScore, Publisher
from miner.publishing.verify import verify_model


def test_a_real_process_from_within_a_distributed_run(
    base_model: Path, trained_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One: importing torch takes seconds. Real ranks verify by others what they hand over."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    fresh_process.write_trained_model(base_model, trained_model, tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert weights == (trained_model / "model.safetensors").read_bytes()


@pytest.mark.usefixtures("in_this_process")
def test_a_publisher_with_full_check_refuses_what_only_loading_shows(
    base_model: Path, model: Path, tmp_path: Path, change_weights: Callable[..., None]
) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"][0] = float("nan")

    publisher = Publisher(tmp_path / "repo", full_check=True)
    base = publisher.publish_base(base_model)
    change_weights(model, spoil)
    with pytest.raises(UnverifiedModelError, match=r"'model\.norm\.weight' holds values"):
        publisher.publish(
            lambda folder: shutil.copytree(model, folder, dirs_exist_ok=True), PublishedScore(2)
        )
    assert publisher.current() == base


@pytest.mark.usefixtures("in_this_process")
def test_report_is_the_one_of_this_process(model: Path, set_json: Callable[..., None]) -> None:
    set_json(model / "tokenizer_config.json", chat_template=None)
    with pytest.raises(UnverifiedModelError, match="no chat template"):
        fresh_process.verify(model)
    expected = verify_model(model, load=True, strict=False)
    assert fresh_process.verify(model, strict=False) == expected


@pytest.mark.usefixtures("in_this_process")
def test_other_errors_come_back_as_publishing_errors(base_model: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(PublishingError, match="write-trained: ") as caught:
        fresh_process.write_trained_model(base_model, tmp_path, tmp_path / "out")
    assert not isinstance(caught.value, UnverifiedModelError)


def test_process_gets_no_gpu_and_no_place_in_a_distributed_run(
    base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str] = {}

    def record(command: list[str], *, env: dict[str, str], **_: object) -> object:
        seen.update(env)
        return subprocess.CompletedProcess(command, 0, '{"result": {}, "error": null}', "")

    monkeypatch.setattr(fresh_process.subprocess, "run", record)
    for name in ("RANK", "WORLD_SIZE", "ACCELERATE_USE_FSDP", "CUDA_VISIBLE_DEVICES", "MARK"):
        monkeypatch.setenv(name, "1")
    fresh_process.convert_base(base_model, base_model)
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["HF_HUB_OFFLINE"] == "1"
    assert seen["MARK"] == "1"
    assert not seen.keys() & {"RANK", "WORLD_SIZE", "ACCELERATE_USE_FSDP"}


def test_process_that_dies_is_named(base_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], -9, stdout="Loading weights: 10%", stderr="noise")

    monkeypatch.setattr(fresh_process.subprocess, "run", killed)
    with pytest.raises(PublishingError, match=r"status -9 \(killed: out of memory\?\).*noise"):
        fresh_process.verify(base_model)


def test_process_that_hangs_is_ended(base_model: Path) -> None:
    with pytest.raises(PublishingError, match="took more than 0 s"):
        fresh_process.verify(base_model, timeout=0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_process_does_not_outlive_a_caller_that_is_killed(tmp_path: Path) -> None:
    """It waits for the end of a file that never comes; once it is gone, nobody reads any more."""
    os.mkfifo(tmp_path / "config.json")
    program = (
        "import sys; from pathlib import Path; from miner.publishing import fresh_process; "
        "fresh_process.verify(Path(sys.argv[1]))"
    )
    caller = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    try:
        with open(tmp_path / "config.json", "wb") as config:  # waits until it reads
            caller.kill()
            readers = select.poll()
            readers.register(config, 0)
            assert readers.poll(30_000) == [(config.fileno(), select.POLLERR)]
    finally:
        caller.kill()
        caller.wait()


def test_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 1
    assert "expected verify" in capsys.readouterr().out
