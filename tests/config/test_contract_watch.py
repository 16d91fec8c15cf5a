"""A clone of the tournament's repository, compared fact by fact with what is built for."""

import shutil
from pathlib import Path

import pytest

from entrypoint.job import _parser
from miner.config.contract import JOB_FLAGS
from miner.config.errors import ConfigurationError
from miner.config.watched import FACTS, differences
from tests.commands import miner
from tests.config.made_clone import changed, made_clone

ROOT = Path(__file__).parents[2]
CONSTANTS = "core/pvp/constants.py"
EVALUATION = "validator/evaluation/constants.py"

MOVED = {
    "EnvironmentName": ("core/constants/environments.py", '"othello"', '"hex"'),
    "ENV_TRAINING_HOURS_SWE_INFINITE": ("validator/tournament/constants.py", "+ 1.0", "+ 2.0"),
    "TOURNAMENT_GPU_THRESHOLD_FOR_4X_H100": (
        "validator/tournament/gpu_requirements.py",
        "12.0",
        "16.0",
    ),
    "PVP_TURN_MAX_TOKENS": (CONSTANTS, "512", "1024"),
    "PVP_TURN_TIMEOUT_SECONDS": (CONSTANTS, "TURN_TIMEOUT_SECONDS = 30", "X = 30"),
    "PVP_REFLECTION_TIMEOUT_SECONDS": (CONSTANTS, "REFLECTION_TIMEOUT_SECONDS = 30", "Y = 12"),
    "PVP_HTTP_READ_TIMEOUT_SECONDS": (CONSTANTS, "35", "24"),
    "PVP_HTTP_MAX_RETRIES": (CONSTANTS, "RETRIES = 1", "RETRIES = 3"),
    "PVP_EPISODE_FORFEIT_THRESHOLD": (EVALUATION, "THRESHOLD = 10", "THRESHOLD = 5"),
    "PVP_CONSECUTIVE_LOSS_FORFEIT": (EVALUATION, "FORFEIT = 10", "FORFEIT = 6"),
    "PVP_SERVER_RECOVERY_MAX_RETRIES": (EVALUATION, "RETRIES = 2", "RETRIES = 4"),
    "PVP_LONGTERM_MEM_SLOTS": (CONSTANTS, "PVP_LONGTERM_MEM_SLOTS = 8", "X = 8"),
    "GameActionArgs": ("core/models/pvp_models.py", "action_id: int", "action_id: str"),
    "_FAMILY_PARSERS": ("core/pvp/sglang_parsers.py", "'lfm2.5', 'lfm2'", "'lfm2.5', 'hermes'"),
    "SGLANG_DTYPE": ("core/pvp/sglang_launch.py", "bfloat16", "float8"),
    "ENV_MODEL_SIZE_B": ("core/whitelisted_env_models.py", "granite-4.1-3b", "granite-5-3b"),
    "run_trainer_container_text": ("trainer/image_manager.py", '"--file-format"', '"--format"'),
}
"""By the name of the fact: file, what is there, what takes its place."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    return made_clone(tmp_path / "clone")


def test_an_equal_clone_has_no_differences_and_ends_with_0(clone: Path) -> None:
    assert miner("contract", "--from", clone).splitlines()[-1].startswith("0 differences")


def test_moved_facts_are_all_found_and_nothing_else(clone: Path) -> None:
    for name, before, after in MOVED.values():
        changed(clone, name, before, after)
    found = differences(clone)
    assert {difference.fact.name for difference in found} == set(MOVED)
    assert len(found) == len(MOVED)
    output = miner("contract", "--from", clone, status=1)
    [line] = [line for line in output.splitlines() if "PVP_TURN_MAX_TOKENS" in line]
    assert "core/pvp/constants.py" in line
    assert "here 512, there 1024" in line
    assert "miner/duel/turn.py" in line


def test_a_dependent_constant_moves_with_what_it_is_made_of(clone: Path) -> None:
    changed(clone, "validator/tournament/constants.py", "HOURS = 1.5", "HOURS = 2.0")
    assert {difference.fact.name: difference.there for difference in differences(clone)} == {
        "ENV_TRAINING_HOURS": 2.0,
        "ENV_TRAINING_HOURS_SWE_INFINITE": 3.0,
    }


def test_a_file_that_does_not_parse_is_named(clone: Path) -> None:
    (clone / "core/pvp/tools.py").write_text("def (")
    (clone / "core/whitelisted_sft_datasets.json").write_text("[")
    found = {difference.fact.name: str(difference.there) for difference in differences(clone)}
    assert "core/pvp/tools.py is not Python" in found.pop("GAME_ACTION_TOOL_NAME")
    assert "whitelisted_sft_datasets.json is not JSON" in found.pop("whitelisted data sets")
    assert found == {}


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ("int(os.environ['X'])", "more than literals: int(os.environ['X'])"),
        ("PVP_TURN_MAX_TOKENS", "sets no PVP_TURN_MAX_TOKENS"),
        ("'a' * 5", "more than literals"),
    ],
)
def test_a_value_of_another_form_is_a_difference(clone: Path, after: str, words: str) -> None:
    changed(clone, CONSTANTS, "512", after)
    [difference] = differences(clone)
    assert words in difference.there


def test_a_file_that_is_gone_is_a_difference(clone: Path) -> None:
    (clone / "core/pvp/sglang_launch.py").unlink()
    [difference] = differences(clone)
    assert "sglang_launch.py cannot be read" in difference.there


def test_an_older_layout_is_read_where_its_files_are_known(clone: Path) -> None:
    shutil.move(clone / "core/constants/environments.py", clone / "core/constants.py")
    shutil.move(clone / "validator/tournament/constants.py", clone / "constants.py")
    (clone / "validator/core").mkdir()
    shutil.move(clone / "constants.py", clone / "validator/core/constants.py")
    assert differences(clone) == []


def test_another_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"neither core/pvp/constants\.py nor trainer"):
        differences(tmp_path)


def test_the_licence_is_the_tournaments(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (clone, tmp_path):
        (folder / "LICENSE").write_text("a licence")
    assert differences(clone) == []
    (clone / "LICENSE").write_text("another")
    assert [difference.fact.name for difference in differences(clone)] == ["LICENSE"]


def test_what_depends_on_a_fact_is_there() -> None:
    needed = {name for fact in FACTS for name in fact.needed_by.split(", ")}
    assert [name for name in sorted(needed) if not (ROOT / name).is_file()] == []


def test_the_command_line_has_every_flag_of_a_job() -> None:
    options = {option for action in _parser()._actions for option in action.option_strings}
    assert set(JOB_FLAGS) <= options
