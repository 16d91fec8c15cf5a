"""Before a run: the base model at the output path, and numbers of episodes that memory holds."""

import json
import subprocess
import sys
from contextlib import suppress
from errno import ESTALE
from types import SimpleNamespace

import pytest

from miner.config.errors import ConfigurationError
from miner.config.run_files import PUBLICATION_FILE
from miner.config.settings import Settings
from miner.duel.tournament_files import wording_of
from miner.publishing.publisher import PublishedScore, Publisher
from miner.reporting.run_folder import RunFolder
from miner.training.preparation import check_memory, checked_paths, prepare_run, publish_base
from tests.builders import CHATML, build_tokenizer, save_base
from tests.reporting.made import evaluation


@pytest.fixture
def base(tmp_path):
    return save_base(tmp_path / "base")


@pytest.fixture
def settings(tmp_path, base):
    places = [f"model.path={base}", f"output.dir={tmp_path / 'out'}", f"run_dir={tmp_path / 'run'}"]
    return Settings.load(None, places, environ={})


def published(settings):
    return Publisher(settings.output.dir, in_process=True).current()


def publish_step(settings, step):
    publisher = Publisher(settings.output.dir, in_process=True)
    publisher.publish(save_base, PublishedScore(step, 0.9, 100))


def test_a_launcher_does_not_import_what_only_its_ranks_need():
    """It prepares before they start, again after each fault."""
    needless = "('transformers.modeling_utils', 'peft', 'trl', 'accelerate')"
    look = "import sys, miner.training.preparation; "
    look += f"print([name for name in {needless} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_better_model_of_this_run_stays_though_no_checkpoint_was_written(settings, base):
    prepare_run(settings, in_process=True)
    publish_step(settings, 20)
    (settings.run_dir / "best.json").write_text("{}")
    prepare_run(settings, in_process=True)
    assert published(settings).step == 20


def test_a_model_of_another_run_gives_way_to_the_base(settings, base):
    publish_step(settings, 20)
    prepare_run(settings, in_process=True)
    assert published(settings).step == 0
    assert float((settings.run_dir / PUBLICATION_FILE).read_text()) > 0


@pytest.mark.parametrize(
    ("channel", "episodes", "warned"),
    [("duel", 142, True), ("duel", 144, False), ("builtin", 10, False)],
)
def test_too_few_games_for_the_gate_are_named(
    settings, channel, episodes, warned, caplog: pytest.LogCaptureFixture
):
    games = {"channel": channel, "games": ["leduc_poker", "othello"]}
    held_out = {"episodes": episodes}
    prepare_run(settings.having(environment=games, evaluation=held_out), in_process=True)
    assert ("35 pairs of each of 2 games" in caplog.text) == warned
    assert ("gate of duels" in caplog.text) == warned


@pytest.mark.parametrize("in_container", [False, True])
def test_a_container_has_its_base_before_anything_foreign_is_read(
    settings, in_container, monkeypatch
):
    """Mounted data may be more than the memory holds; on a laptop a refusal leaves nothing."""

    def read(folders):
        raise MemoryError

    monkeypatch.setattr("miner.channels.recorded.read_conversations", read)
    recorded = settings.having(
        environment={"channel": "recorded"},
        reward={"credit": "episode"},
        output={"take_over": in_container},
    )
    with pytest.raises(MemoryError):
        prepare_run(recorded, in_process=True)
    assert (settings.output.dir / "config.json").exists() == in_container
    assert settings.run_dir.exists() == in_container


def test_a_container_has_its_base_though_the_tournaments_files_cannot_be_read(
    settings, tmp_path, monkeypatch
):
    """Opening the game reports them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tournament").mkdir()
    (tmp_path / "tournament" / "game_prompts.yml").write_text("games: {}")
    with pytest.raises(ConfigurationError):
        wording_of(None)
    duels = settings.having(environment={"channel": "duel"}, output={"take_over": True})
    with suppress(ConfigurationError):
        prepare_run(duels, in_process=True)
    assert published(settings).step == 0


def test_a_published_model_stays_that_cannot_be_read_now(settings, monkeypatch):
    """The run ends with the disk's status, and is started again."""
    prepare_run(settings, in_process=True)
    publish_step(settings, 20)
    (settings.run_dir / "best.json").write_text("{}")
    (settings.output.dir / "mine").mkdir()
    (settings.output.dir / "mine" / "model.safetensors").write_text("another")
    prepare_run(settings, in_process=True)

    def stale(file, **more):
        raise OSError(ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr("miner.publishing.structure.safe_open", stale)
        with pytest.raises(OSError, match="Stale file handle"):
            prepare_run(settings, in_process=True)
    assert published(settings).step == 20


@pytest.mark.parametrize(
    "named",
    [
        {"reward": {"credit": "own", "entry": "none.py:credit"}},
        {
            "environment": {"channel": "duel"},
            "demonstrations": {"teacher": "none.py:teach", "share": 0.5},
        },
        {"environment": {"channel": "duel", "opponents": ["random", "none.py:play"]}},
        {"environment": {"channel": "duel", "opponents": ["base", "snapshot", "rivall"]}},
    ],
)
def test_what_is_not_there_is_found_before_a_run_begins(settings, named):
    """A run's folder keeps its settings: corrected, they would need another one."""
    with pytest.raises(
        ConfigurationError, match=r"'none.py:\w+': there is no file|'rivall' is neither a folder"
    ):
        prepare_run(settings.having(**named), in_process=True)
    assert not settings.run_dir.exists()


def test_the_record_of_a_model_that_is_gone_goes_too(settings):
    settings.run_dir.mkdir()
    best = settings.run_dir / "best.json"
    best.write_text(json.dumps({"best": {"step": 20}}))
    prepare_run(settings, in_process=True)
    assert published(settings).step == 0
    assert not best.exists()


@pytest.mark.parametrize("gone", [False, True])
def test_a_published_model_that_was_cut_off_gives_way_to_the_base(settings, gone):
    prepare_run(settings, in_process=True)
    publish_step(settings, 20)
    (settings.run_dir / "best.json").write_text("{}")
    if gone:
        (settings.output.dir / "config.json").unlink()
    else:
        weights = settings.output.dir / "model.safetensors"
        with weights.open("r+b") as file:
            file.truncate(weights.stat().st_size - 1)
    prepare_run(settings, in_process=True)
    assert published(settings).step == 0
    assert not (settings.run_dir / "best.json").exists()


@pytest.mark.parametrize(
    "name", ["checkpoints/checkpoint-500/model.safetensors", "metrics.jsonl", "evaluations.jsonl"]
)
def test_another_tools_folder_is_refused_and_left_as_it_was(settings, name):
    file = settings.run_dir / name
    file.parent.mkdir(parents=True)
    file.write_text('{"loss": 0.5}\n')
    with pytest.raises(ConfigurationError, match=rf"{name.split('/')[0]}.*name a folder that"):
        checked_paths(settings)  # before a lock is made
    with pytest.raises(ConfigurationError, match=r"run_dir .*/run"):
        prepare_run(settings, in_process=True)
    assert [path for path in settings.run_dir.rglob("*") if path.is_file()] == [file]
    assert not settings.output.dir.exists()


def test_evaluations_without_a_run_are_added_to(settings):
    evaluations = RunFolder(settings.run_dir).evaluations
    evaluations.append(evaluation("base", 0.4))
    with evaluations.path.open("a") as file:
        file.write("torn")
    before = evaluations.path.read_text()
    prepare_run(settings, in_process=True)
    assert evaluations.path.read_text() == before


def test_a_base_without_a_template_is_published_with_one(settings, base):
    build_tokenizer(chat_template=None).save_pretrained(base)
    (base / "chat_template.jinja").unlink(missing_ok=True)
    prepare_run(settings, in_process=True)
    assert published(settings).step == 0
    assert "### assistant" in (settings.output.dir / "chat_template.jinja").read_text()


def test_a_base_is_published_alone_with_a_template_that_holds_a_game(settings, base, train):
    """As a job's whose games nobody here can train."""
    build_tokenizer(chat_template=None).save_pretrained(base)
    (base / "chat_template.jinja").unlink(missing_ok=True)
    code, said = train(str(base), str(settings.output.dir), command="publish-base")
    assert code == 0, said.err
    assert published(settings).step == 0
    assert "### assistant" in (settings.output.dir / "chat_template.jinja").read_text()


@pytest.mark.parametrize(
    ("override", "named"),
    [
        (
            "rollout.group_size=1000000",
            "16,000,000 episodes .* GB at least.* lower rollout.group_s",
        ),
        ("rollout.groups_per_step=2000000", "lower rollout.group_size or rollout.groups_per_step"),
        ("evaluation.episodes=10000000", "10,000,000 episodes .* lower evaluation.episodes"),
        ("rollout.max_episode_tokens=1000000000", "128 episodes"),
    ],
)
def test_more_episodes_than_memory_holds_are_refused(override, named, tmp_path):
    with pytest.raises(ConfigurationError, match=named):
        check_memory(Settings.load(None, [override], environ={}), machine(tmp_path, 64 * 10**9))


def test_the_limit_is_the_memory(tmp_path):
    settings = Settings()
    check_memory(settings, machine(tmp_path, 10**9))
    with pytest.raises(ConfigurationError, match="there are 0"):
        check_memory(settings, machine(tmp_path, 10**6))


def machine(root, memory):
    """A root folder that shows this much memory, in bytes."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {memory // 1000} kB\n")
    return root


def test_a_base_that_is_published_twice_gives_a_sign_of_life_between(tmp_path):
    """On a slow disk each of them takes minutes, after which the watchdog would end the run."""
    seen = []
    publisher = SimpleNamespace(publish_base=lambda *given: seen.append(len(given)))
    for name, template in (("fixed", None), ("whole", CHATML)):
        base = save_base(tmp_path / name, tokenizer=build_tokenizer(template))
        publish_base(publisher, base, lambda: seen.append("beat"))
    assert seen == [1, "beat", 2, 1]
