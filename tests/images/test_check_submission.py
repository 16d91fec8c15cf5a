"""The check before a submission: it names what is in the way, or the commit."""

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from miner.duel.tournament_files import FILES
from miner.recorded import intercode_form
from miner.rollout.base_templates import COPY as TEMPLATES
from miner.rollout.base_templates import FILES as TEMPLATE_FILES

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_submission.py"
COPIES = (
    *(f"tournament/{names[0]}" for names in FILES.values()),
    f"tournament/{intercode_form.FILE}",
    *(f"{TEMPLATES}/{name}" for name in TEMPLATE_FILES),
)
SOUND = {
    "LICENSE": "theirs",
    "NOTICE": "theirs",
    "Dockerfile": "FROM python\n",
    "dockerfiles/standalone-text-trainer.dockerfile": "FROM python\n",
    "ops/docker/standalone-text-trainer.dockerfile": "FROM python\n",
    "entrypoint/main.py": "",
    **dict.fromkeys(COPIES, "theirs"),
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_submission", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(repository: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    command = ["git", *identity, *words]
    return subprocess.run(
        command, cwd=repository, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def commit(tmp_path: Path) -> Callable[[dict[str, str | None]], Path]:
    """A repository with one commit of `SOUND` and what a test changes in it; None removes."""

    def build(changed: dict[str, str | None]) -> Path:
        git(tmp_path, "init", "--quiet")
        for name, text in {**SOUND, **changed}.items():
            if text is not None:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(text)
        git(tmp_path, "add", "--all", "--force")
        git(tmp_path, "commit", "--quiet", "--message", "all of it")
        return tmp_path

    return build


def test_a_sound_commit_is_named(
    script: ModuleType, commit: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    repository = commit({})
    assert script.main(repository) == 0
    head = git(repository, "rev-parse", "HEAD")
    assert len(head) == 40
    assert capsys.readouterr().out == f"submit commit {head}\n"


def test_the_first_format_goes_without_the_prompts_of_duels(
    script: ModuleType, commit: Callable[..., Path]
) -> None:
    assert script.main(commit({"tournament/core/pvp/game_prompts.yml": None}), duels=False) == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"NOTICE": None}, "NOTICE is not committed"),
        ({"LICENSE": None}, "LICENSE is not committed"),
        ({"tournament/core/pvp/game_prompts.yml": None}, "prompts in our own words"),
        *(({name: None}, f"not committed: {name}; duels") for name in COPIES),
        ({"dockerfiles/standalone-text-trainer.dockerfile": None}, "validators build this file"),
        ({"ops/docker/standalone-text-trainer.dockerfile": None}, "validators build this file"),
        ({"ops/docker/standalone-text-trainer.dockerfile": "FROM a\n"}, "make it equal to"),
        ({"Dockerfile": "FROM other\n"}, "make it equal to Dockerfile"),
        ({"entrypoint/main.pyc": ""}, "entrypoint/main.pyc is compiled"),
        *(
            ({f"weights/model.{suffix}": ""}, "looks like a model")
            for suffix in ("safetensors", "ckpt", "npz", "npy", "pkl", "h5", "msgpack", "csv")
        ),
    ],
)
def test_each_obstacle_is_one_sentence(
    script: ModuleType,
    commit: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, str | None],
    words: str,
) -> None:
    assert script.main(commit(changed)) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("not yet: ")
    assert words in line


def test_what_is_not_committed_is_in_the_way(
    script: ModuleType, commit: Callable[..., Path]
) -> None:
    repository = commit({})
    (repository / "entrypoint/main.py").write_text("changed")
    assert ["differs from HEAD" in line for line in script.obstacles(repository)] == [True]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, "was not timed"),
        ("899 HEAD", ""),
        ("900 HEAD", "took 15 minutes"),
        ("899 0a1b2c", "built of 0a1b2c, not of HEAD"),
    ],
)
def test_a_build_that_might_take_too_long_or_is_of_another_commit_is_noted(
    script: ModuleType, commit: Callable[..., Path], record: str | None, words: str
) -> None:
    repository = commit({})
    if record:
        written = record.replace("HEAD", git(repository, "rev-parse", "HEAD"))
        (repository / ".image-seconds").write_text(written + "\n")
    warning = script.build_warning(repository)
    assert words in warning
    assert bool(warning) is bool(words)


def test_gits_own_reason_is_shown(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not a git repository"):
        script.main(tmp_path)


def test_a_missing_git_is_named(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="git is not installed: install it"):
        script.main(tmp_path)
