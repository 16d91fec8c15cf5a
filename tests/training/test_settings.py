"""Settings: file and overrides resolve as documented, and mistakes are explained."""

import re

import pytest

from miner.config.channel_facts import unused_settings
from miner.config.errors import ConfigurationError
from miner.config.held_out_games import USUALLY_GATED
from miner.config.reference import settings_reference
from miner.config.section import setting_fields
from miner.config.settings import (
    EnvironmentSettings,
    Settings,
    check_divides,
    to_toml,
)


def test_overrides_win_over_the_file_and_the_file_over_defaults(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("seed = 3\n[rollout]\ngroup_size = 16\ngroups_per_step = 4\n")
    settings = Settings.load(file, ["rollout.group_size=32", "model.path=/models/a"], environ={})
    assert (settings.seed, settings.rollout.group_size, settings.rollout.groups_per_step) == (
        3,
        32,
        4,
    )
    assert str(settings.model.path) == "/models/a"


def test_resolved_settings_read_back_equal(tmp_path):
    settings = Settings.load(None, ["environment.deck_sizes=[8, 16]", "deadline.seconds=60"], {})
    file = tmp_path / "resolved.toml"
    file.write_text(to_toml(settings))
    assert Settings.load(file, environ={}) == settings


@pytest.mark.parametrize(
    ("words", "episodes"),
    [
        ((), 100),
        (("environment.channel=duel",), 6 * USUALLY_GATED),
        (("environment.channel=duel", "environment.games=othello,othello"), USUALLY_GATED),
        (("environment.channel=duel", "evaluation.episodes=40"), 40),
    ],
)
def test_duels_hold_out_games_enough_for_their_gate(words, episodes):
    settings = Settings.load(None, words, environ={})
    assert settings.evaluation.episodes == episodes
    assert settings.having(seed=3).evaluation.episodes == episodes


@pytest.mark.parametrize(
    ("words", "longest"),
    [
        ((), 16),
        (("environment.channel=duel",), 512),
        (("environment.channel=duel", "rollout.max_reply_tokens=16"), 16),
    ],
)
def test_replies_of_duels_are_as_long_as_graded(words, longest):
    settings = Settings.load(None, words, environ={})
    assert settings.rollout.max_reply_tokens == longest
    assert settings.having(seed=3).held_out_reply_tokens == longest


def test_servers_come_from_the_environment_unless_they_are_set():
    environ = {"ENVIRONMENT_SERVER_URLS": "http://10.0.0.1:8000, http://10.0.0.2:8000,"}
    assert Settings.load(None, (), environ).environment.servers == (
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
    )
    written = Settings.load(None, ["environment.servers=[]"], environ)  # as --dry-run prints it
    assert written.environment.servers == Settings.load(None, (), environ).environment.servers
    explicit = Settings.load(None, ['environment.servers=["http://a:1"]'], environ)
    assert explicit.environment.servers == ("http://a:1",)


def test_a_list_of_the_environment_may_be_one_value_or_text_with_commas():
    given = ["servers=http://a:1,http://b:2", "deck_sizes=8", "games=othello, clobber"]
    environment = Settings.load(None, [f"environment.{text}" for text in given], {}).environment
    assert environment.servers == ("http://a:1", "http://b:2")
    assert environment.deck_sizes == (8,)
    assert environment.games == ("othello", "clobber")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "rollout.grop_size=8",
            r"'rollout.grop_size' does not exist: did you mean 'rollout.group_size'",
        ),
        ("rolout.group_size=8", r"'rolout' does not exist: did you mean 'rollout'"),
        ("rollout.group_size=1", r"group_size=1 leaves nothing to compare"),
        ("environment.entry=mine.py:Game", r"played by environment.channel='own' alone"),
        (
            "environment.code_agent.entry=mine.py:Sums",
            r"code_agent.entry='mine.py:Sums' is played by environment.channel='code_agent' alone",
        ),
        ("demonstrations.teacher=mine.py:teach", r"teaches duels alone, and only with"),
        ("rollout.group_size", r"not KEY=VALUE"),
        ("optimizer.micro_batch_tokens=0", r"'optimizer.micro_batch_tokens' cannot be 0"),
        ("seed=soon", r"'seed' cannot be 'soon'"),
        ("seed.value=1", r"'seed' cannot be"),
        ("demonstrations=0.5", r"is a section: write demonstrations\.NAME=VALUE"),
        ("seed=4294967296", r"'seed' cannot be 4294967296: .*2147483648"),
    ],
)
def test_mistakes_name_the_setting_and_the_way_out(override, message):
    with pytest.raises(ConfigurationError, match=message):
        Settings.load(None, [override], environ={})


def test_several_processes_get_whole_groups():
    settings = Settings.load(None, ["rollout.group_size=7"], environ={})
    check_divides(settings, 4)
    with pytest.raises(ConfigurationError, match=r"groups_per_step=16 cannot be divided among 3"):
        check_divides(settings, 3)


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"absent\.toml does not exist"):
        Settings.load(tmp_path / "absent.toml", environ={})
    broken = tmp_path / "broken.toml"
    broken.write_text("seed = \n")
    with pytest.raises(ConfigurationError, match=r"broken\.toml cannot be read"):
        Settings.load(broken, environ={})


def test_settings_of_other_channels_are_left_out_unless_they_were_set() -> None:
    settings = Settings.load(None, ["environment.channel=own", "environment.deck_sizes=[8]"])
    shown = to_toml(settings, used_only=True)
    assert "deck_sizes" in shown
    assert not any(name in shown for name in ("openenv", "code_agent", "games", "cards"))
    assert unused_settings("duel") >= {"deck_sizes", "entry", "openenv"}
    assert EnvironmentSettings.model_fields.keys() >= unused_settings("none")


def test_the_reference_explains_every_setting() -> None:
    reference = settings_reference()
    for name in setting_fields(Settings):
        assert f"| `{name}` |" in reference
    assert all(line.count(" | ") >= 3 for line in reference.splitlines() if line.startswith("| `"))
    assert "| `rollout.group_size` | `8` | integer >= 1 |" in reference
    assert "| `deadline.seconds` |  | number > 0 |" in reference, "unset ones are listed too"
    assert "| integer >= 0 < 2147483648 |" in reference
    assert "| list of 8, 10, 12, 14, 16 |" in reference
    assert " |  |\n" not in reference, "a setting without a description"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("report_to=wandb", "report_to='[\"wandb\"]'"),
        ("environment.deck_sizes=[9]", "cannot be 9: choose 8, 10, 12, 14 or 16"),
    ],
)
def test_a_wrong_value_comes_with_the_right_way_to_write_it(override: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)) as refused:
        Settings.load(None, [override])
    assert "after validation" not in str(refused.value), "one mistake, one sentence"


LORA, TURNS = '[model]\ntuning = "lora"\n', '[reward]\ncredit = "turn"\n'
RATE, PAIRS = "[optimizer]\nlearning_rate = 1e-4\n", "[rollout]\ngroup_size = 2\n"


@pytest.mark.parametrize(
    ("table", "file", "rate", "group_size"),
    [
        ("", LORA, 3e-4, 1),
        ("", LORA + RATE, 1e-4, 1),
        ("lora_rate = 2.0", LORA + RATE, 2e-4, 1),
        ("", TURNS, 3e-6, 8),
        ("", TURNS + RATE + PAIRS, 1e-4, 2),
        ("", '[environment]\nchannel = "recorded"\n[reward]\ncredit = "episode"\n', 1.5e-5, 2),
    ],
)
def test_what_a_file_sets_wins_over_tables_of_the_recipe_that_it_extends(
    table, file, rate, group_size, tmp_path
):
    path = tmp_path / "mine.toml"
    path.write_text(f'[recipe]\nextends = "real-to-4b"\n{table}\n{file}')
    settings = Settings.load(path, environ={})
    assert settings.optimizer.learning_rate == pytest.approx(rate)
    assert settings.rollout.group_size == group_size


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[model]\ntuning = "lora"\n[optimizer]\nlearning_rate = "high"\n', "learning_rate"),
        ('rollout = 3\n[recipe]\nextends = "smollm2"\n', "'rollout'"),
        ("run_dir = 2025-01-01\n", "run_dir='\"2025-01-01\"'"),
    ],
)
def test_a_value_of_another_type_is_named(text, words, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        Settings.load(path, environ={})


def test_a_file_as_windows_writes_it_is_read(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 7\r\n[rollout]\r\ngroup_size = 3\r\n")
    settings = Settings.load(path, environ={})
    assert (settings.seed, settings.rollout.group_size) == (7, 3)
