"""Output paths that publishing would destroy something at."""

from pathlib import Path

import pytest

from miner.config.errors import ConfigurationError
from miner.publishing.output_path import PUBLICATION_FILE, check_apart, check_replaceable


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model and a run."""
    for name in ("models/base", "runs/train"):
        (tmp_path / "home" / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "home" / "models" / "base")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        ("models/base", "is the base model's folder models/base"),
        ("../link", "is the base model's folder models/base"),
        ("models", "contains the base model's folder models/base"),
        ("models/base/trained", "is inside model.path models/base"),
        ("runs/train", "is run_dir runs/train"),
        ("runs", "contains run_dir runs/train"),
        (".", "contains the base model's folder models/base"),
        ("..", "contains the base model's folder models/base"),
    ],
)
def test_a_folder_in_use_is_not_an_output(home: Path, output: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"output.dir .* ({fault}): name a folder that"):
        check_apart(Path(output), Path("models/base"), Path("runs/train"))


@pytest.mark.parametrize("output", ["runs/train/output", "models/trained", "../out", "out"])
def test_other_folders_are(home: Path, output: str) -> None:
    check_apart(Path(output), Path("models/base"), Path("runs/train"))


@pytest.mark.parametrize("content", [{}, {PUBLICATION_FILE: '{"step": 3}', "config.json": "{}"}])
def test_new_empty_and_published_folders_are_replaced(
    tmp_path: Path, content: dict[str, str]
) -> None:
    check_replaceable(tmp_path / "absent")
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    check_replaceable(tmp_path)


@pytest.mark.parametrize("mark", [None, "{", '{"other": 1}'])
def test_other_content_is_not(tmp_path: Path, mark: str | None) -> None:
    (tmp_path / "notes.txt").write_text("years of work")
    if mark is not None:
        (tmp_path / PUBLICATION_FILE).write_text(mark)
    with pytest.raises(ConfigurationError, match="holds files that the miner has not published"):
        check_replaceable(tmp_path)
    with pytest.raises(ConfigurationError, match=r"notes.txt is a file: name a folder"):
        check_replaceable(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("output", "fault"), [(".", "is"), ("../home", "is"), ("..", "contains"), ("../..", "contains")]
)
def test_nor_is_the_working_folder(home: Path, output: str, fault: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"output.dir {output} {fault} the working folder"
    ):
        check_apart(Path(output), Path("/elsewhere"))
