"""The published base is the base's own files, and only those that belong to the model."""

import json
import os
import shutil
from pathlib import Path

import pytest

from miner.publishing.base_files import copy_base_model
from miner.publishing.errors import UnverifiedModelError
from miner.publishing.publisher import Publisher
from miner.publishing.verify import verify_model
from tests.publishing.changes import set_json, shard
from tests.publishing.killed_publisher import open_publisher


def test_files_are_equal_byte_for_byte(base_model: Path, destination: Path) -> None:
    copy_base_model(base_model, destination)
    assert {f.name: f.read_bytes() for f in destination.iterdir()} == {
        f.name: f.read_bytes() for f in base_model.iterdir()
    }


def test_of_how_the_base_is_sampled_the_special_tokens_stay(model: Path, destination: Path) -> None:
    """Servers read the rest for what a request leaves out; a penalty changes greedy replies."""
    tokens = {"eos_token_id": [5, 7], "pad_token_id": 5, "transformers_version": "4.37.0"}
    sampling = {"repetition_penalty": 1.05, "top_p": 0.8, "top_k": 20, "do_sample": True}
    (model / "generation_config.json").write_text(json.dumps(tokens | sampling))
    copy_base_model(model, destination)
    assert json.loads((destination / "generation_config.json").read_text()) == tokens


def test_a_link_to_a_file_of_somebody_elses_is_not_published(
    model: Path, tmp_path: Path, destination: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "id_rsa").write_text("a private key")
    (model / "notes.txt").symlink_to(tmp_path / "id_rsa")
    (model / "vocab.json").symlink_to(model / "config.json")
    copy_base_model(model, destination)
    assert "notes.txt" not in os.listdir(destination)
    assert (destination / "vocab.json").is_file()
    assert f"notes.txt links to {tmp_path / 'id_rsa'}" in caplog.text


def test_what_is_not_a_part_of_the_model_stays_behind(model: Path, destination: Path) -> None:
    wanted = set(os.listdir(model)) | {"vocab.json", "merges.txt", "chat_template.jinja"}
    for name in wanted - set(os.listdir(model)):
        (model / name).write_text("{}")
    for name in (
        "README.md",
        "consolidated.safetensors",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "adapter_config.json",
        "optimizer.pt",
        "trainer_state.json",
        "miner_publication.json",
    ):
        (model / name).write_text("{}")
    (model / "original").mkdir()
    copy_base_model(model, destination)
    assert set(os.listdir(destination)) == wanted


def test_shards_are_copied_with_their_index(model: Path, destination: Path) -> None:
    shard(model)
    copy_base_model(model, destination)
    assert verify_model(destination, load=True).parameters == 1336


@pytest.mark.parametrize("edited", ["", "config.json"])
def test_links_of_a_download_cache_become_files(
    base_model: Path, tmp_path: Path, destination: Path, edited: str
) -> None:
    """Its files are named by their content; one that was edited is there itself."""
    snapshot, blobs = tmp_path / "snapshots" / "0f3", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(base_model.iterdir()):
        shutil.copyfile(file, blobs / str(number))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
    if edited:
        (snapshot / edited).unlink()
        shutil.copyfile(base_model / edited, snapshot / edited)
    copy_base_model(snapshot, destination)
    assert {f.name for f in destination.iterdir()} == {f.name for f in base_model.iterdir()}
    assert not any(file.is_symlink() for file in destination.iterdir())
    verify_model(destination, load=False)


@pytest.mark.parametrize("end", ["<|end|>", {"__type": "AddedToken", "content": "<|end|>"}])
def test_padding_defaults_to_the_end_token(model: Path, destination: Path, end: object) -> None:
    set_json(model / "tokenizer_config.json", eos_token=end, pad_token=None)
    copy_base_model(model, destination)
    settings = json.loads((destination / "tokenizer_config.json").read_text())
    assert settings["pad_token"] == "<|end|>"
    assert verify_model(destination, load=True).warnings == ()


def test_a_template_of_our_own_is_where_newer_and_older_servers_look(
    model: Path, tmp_path: Path
) -> None:
    before = json.loads((model / "tokenizer_config.json").read_text())
    output = tmp_path / "repo"
    for template in ("Spiel: {{ messages }}", "Prämie: {{ messages }}"):
        (model / "chat_template.json").write_text('{"chat_template": "another"}')
        open_publisher(output).publish_base(model, template)
        settings = json.loads((output / "tokenizer_config.json").read_text())
        assert settings == before | {"chat_template": template}
        assert (output / "chat_template.jinja").read_text() == template
        assert not (output / "chat_template.json").exists()
        (model / "chat_template.json").unlink()
    open_publisher(output).publish_base(model)
    assert not (output / "chat_template.jinja").exists()


def test_no_model_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnverifiedModelError, match=r"nowhere is not a folder.* Download it again"):
        Publisher(tmp_path / "repo").publish_base(tmp_path / "nowhere")


def test_base_with_pickled_weights_only_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    with pytest.raises(UnverifiedModelError, match=r"safetensors.* Download it again"):
        Publisher(tmp_path / "repo").publish_base(model)


def test_incomplete_base_is_published_with_a_warning(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, in_this_process: list[str]
) -> None:
    set_json(model / "tokenizer_config.json", chat_template=None)
    Publisher(tmp_path / "repo").publish_base(model)
    assert "no chat template" in caplog.text
    assert in_this_process == ["verify-base"]
    assert verify_model(tmp_path / "repo", load=True, strict=False).loaded
