"""Heavy work in a process of its own gives the same answers and the same errors."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from miner.lifeline import lifeline
from miner.publishing import __main__ as other_end
from miner.publishing import fresh_process
from miner.publishing.errors import PublishingError, UnverifiedModelError
from miner.publishing.publisher import PublishedScore, Publisher
from miner.publishing.verify import verify_model
from tests.publishing.changes import change_weights, set_json
from tests.publishing.killed_publisher import copy_of


def test_a_real_process_from_within_a_distributed_run(
    trained_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real ranks verify by others what they publish."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert fresh_process.verify(trained_model).loaded
    with pytest.raises(UnverifiedModelError, match="nowhere is not a folder"):
        fresh_process.verify(tmp_path / "nowhere")


@pytest.mark.usefixtures("in_this_process")
def test_a_publisher_with_full_check_refuses_what_only_loading_shows(
    base_model: Path, model: Path, tmp_path: Path
) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"][0] = float("nan")

    publisher = Publisher(tmp_path / "repo", full_check=True)
    publisher.publish_base(base_model)
    change_weights(model, spoil)
    with pytest.raises(UnverifiedModelError, match=r"'model\.norm\.weight' holds values"):
        publisher.publish(copy_of(model), PublishedScore(2))
    assert publisher.current() == PublishedScore(step=0)


@pytest.mark.usefixtures("in_this_process")
def test_report_is_the_one_of_this_process(model: Path) -> None:
    set_json(model / "tokenizer_config.json", chat_template=None)
    with pytest.raises(UnverifiedModelError, match="no chat template"):
        fresh_process.verify(model)
    expected = verify_model(model, load=True, strict=False)
    assert fresh_process.verify(model, strict=False) == expected


@pytest.mark.usefixtures("in_this_process")
def test_other_errors_come_back_as_publishing_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("full")

    monkeypatch.setattr(other_end, "verify_model", fail)
    with pytest.raises(PublishingError, match="verify: MemoryError: full") as caught:
        fresh_process.verify(Path("model"))
    assert not isinstance(caught.value, UnverifiedModelError)


def test_process_gets_no_gpu_and_no_place_in_a_distributed_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, str] = {}

    def record(
        command: list[str], *, env: dict[str, str], **_: object
    ) -> subprocess.CompletedProcess[str]:
        seen.update(env)
        return subprocess.CompletedProcess(command, 0, '{"result": {}, "error": "seen"}', "")

    monkeypatch.setattr(fresh_process.subprocess, "run", record)
    places = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    places |= {"ACCELERATE_USE_FSDP", "TORCHELASTIC_RUN_ID"}
    for name in (*places, "CUDA_VISIBLE_DEVICES", "MARK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    with pytest.raises(PublishingError, match="seen"):
        fresh_process.verify(Path("model"))
    expected = {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MARK": "1",
        "PYTHONPATH": f"{Path(__file__).parents[2]}{os.pathsep}/elsewhere",
        **lifeline(),
    }
    assert {name: seen.get(name) for name in expected} == expected
    assert not seen.keys() & places


@pytest.mark.parametrize(
    ("status", "words"),
    [(-9, r"-9 \(killed: out of memory\?\)"), (0, "0"), (1, "1")],
)
def test_process_that_dies_is_named(
    status: int, words: str, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], status, "Loading weights: 10%", stderr="noise")

    monkeypatch.setattr(fresh_process.subprocess, "run", ended)
    with pytest.raises(PublishingError, match=f"status {words} and no answer: noise"):
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
