"""Resuming: only complete checkpoints count, and only of the same run and base model."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from errno import EIO, ENOSPC

import pytest

from miner.config.errors import ConfigurationError
from miner.config.run_files import COMPLETE, newest_checkpoint
from miner.config.settings import Settings
from miner.duel.wording import own_wording
from miner.reporting.run_folder import RunFolder
from miner.training.run_dir import BASE_FILE, base_fingerprint, check_foreign, prepare_run_dir
from tests.builders import build_qwen3, save_base
from tests.reporting.made import evaluation


def write_checkpoint(run_dir, step, marker=None):
    folder = run_dir / "checkpoints" / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    if marker is not None:
        (folder / COMPLETE).write_text(marker)
    return folder


def complete(step, elapsed=1.5):
    return json.dumps({"step": step, "elapsed": elapsed})


def test_the_newest_complete_checkpoint_is_taken(tmp_path):
    write_checkpoint(tmp_path, 20, complete(20, 12.5))
    write_checkpoint(tmp_path, 100, complete(100, 60.0))
    write_checkpoint(tmp_path, 120)  # killed before it was complete
    write_checkpoint(tmp_path, 140, '{"step": 14')  # torn marker
    write_checkpoint(tmp_path, 160, complete(150))  # a marker copied from elsewhere
    found = newest_checkpoint(tmp_path / "checkpoints")
    assert (found.step, found.elapsed, found.path.name) == (100, 60.0, "checkpoint-100")


def test_what_a_kill_cut_off_is_removed(tmp_path):
    run_dir = tmp_path / "run"
    whole, half = write_checkpoint(run_dir, 20, complete(20)), write_checkpoint(run_dir, 40)
    beside = run_dir / ".best-weights.safetensors"
    beside.touch()
    prepare_run_dir(settings(tmp_path))
    assert whole.exists()
    assert not half.exists()
    assert not beside.exists()


DUEL, PARSER = "environment.channel=duel", "environment.tool_parser=qwen25"


def settings(tmp_path, *overrides):
    return Settings.load(None, [f"run_dir={tmp_path / 'run'}", *overrides], environ={})


def begin(tmp_path, *overrides):
    """Prepare a run and come as far as its first scores."""
    prepare_run_dir(settings(tmp_path, *overrides))
    (tmp_path / "run" / "best.json").write_text("{}")


def test_settings_are_written_and_equal_ones_resume(tmp_path):
    prepare_run_dir(settings(tmp_path, "seed=4"))
    write_checkpoint(tmp_path / "run", 20, complete(20))
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    prepare_run_dir(settings(tmp_path, "seed=4", "deadline.seconds=60"))
    assert (tmp_path / "run" / "metrics.jsonl").exists()
    assert Settings.load(tmp_path / "run" / "settings.toml", environ={}).deadline.seconds == 60


def test_the_channel_may_change_among_those_that_play_the_same_games(tmp_path):
    begin(tmp_path, "environment.channel=graded")
    prepare_run_dir(settings(tmp_path, "environment.channel=builtin"))
    own = ("environment.channel=own", "environment.entry=guess.py")
    for now in (own, ["environment.channel=code_agent"]):
        with pytest.raises(ConfigurationError, match=r"other settings \(.*environment.channel"):
            prepare_run_dir(settings(tmp_path, *now))


@pytest.mark.parametrize(
    "other",
    [
        "optimizer.micro_batch_tokens=8192",
        "optimizer.most_halvings=1",
        "optimizer.max_steps=900",
        "demonstrations.processes=0",
    ],
)
def test_memory_going_back_and_length_may_be_bounded_in_another_way_on_resume(other, tmp_path):
    begin(tmp_path)
    prepare_run_dir(settings(tmp_path, other))


def test_other_settings_are_refused_and_named(tmp_path):
    begin(tmp_path, "seed=4")
    with pytest.raises(ConfigurationError, match=r"rollout\.group_size, .*seed|seed.*rollout"):
        prepare_run_dir(settings(tmp_path, "seed=5", "rollout.group_size=16"))
    assert Settings.load(tmp_path / "run" / "settings.toml", environ={}).seed == 4


def test_settings_of_a_run_that_never_began_bind_nothing(tmp_path):
    base = save_base(tmp_path / "base")
    prepare_run_dir(settings(tmp_path, "seed=4", f"model.path={base}"))
    save_base(base, build_qwen3(seed=1))
    prepare_run_dir(settings(tmp_path, "seed=5", f"model.path={base}"))
    assert Settings.load(tmp_path / "run" / "settings.toml", environ={}).seed == 5


def test_records_of_a_run_without_a_checkpoint_start_again(tmp_path):
    prepare_run_dir(settings(tmp_path))
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    prepare_run_dir(settings(tmp_path))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("scored", [True, False])
def test_what_was_found_of_the_base_stays_once_it_has_scores(tmp_path, scored):
    """It is not evaluated again: the curve would lose it."""
    prepare_run_dir(settings(tmp_path))
    evaluations = tmp_path / "run" / "evaluations.jsonl"
    evaluations.write_text("{}\n")
    if scored:
        (tmp_path / "run" / "best.json").write_text("{}")
    prepare_run_dir(settings(tmp_path))
    assert evaluations.exists() == scored


def test_what_was_evaluated_by_hand_in_its_folder_stays(tmp_path):
    prepare_run_dir(settings(tmp_path))
    evaluations = RunFolder(tmp_path / "run").evaluations
    by_hand = evaluation("base", 0.4, split="grader")
    for record in (evaluation("base", 0.3, step=0), by_hand):
        evaluations.append(record)
    prepare_run_dir(settings(tmp_path))
    assert evaluations.read() == ([by_hand], 0)


def test_a_full_disk_is_no_mistake_in_the_settings(tmp_path, monkeypatch):
    """The run ends with the disk's status, and is started again."""

    def full(*_):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("miner.training.run_dir.write_atomically", full)
    with pytest.raises(OSError, match="No space left"):
        prepare_run_dir(settings(tmp_path))


def test_a_file_in_the_place_of_a_run_is_an_error_before_anything_is_made(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ConfigurationError, match=r"run_dir .* cannot be used"):
        check_foreign(tmp_path / "run")


def test_a_run_continues_with_a_copy_of_its_base_model(tmp_path):
    save_base(tmp_path / "base")
    begin(tmp_path, f"model.path={tmp_path / 'base'}")
    write_checkpoint(tmp_path / "run", 20, complete(20))
    shutil.copytree(tmp_path / "base", tmp_path / "copy")
    shutil.rmtree(tmp_path / "base")
    (tmp_path / "copy").rename(tmp_path / "base")
    begin(tmp_path, f"model.path={tmp_path / 'base'}")


def test_a_run_continues_where_it_was_moved_and_under_another_spelling(tmp_path, monkeypatch):
    save_base(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    begin(tmp_path, "model.path=base", "output.dir=out")
    for name in ("run", "base"):
        (tmp_path / "moved").mkdir(exist_ok=True)
        (tmp_path / name).rename(tmp_path / "moved" / name)
    moved = (f"run_dir={tmp_path / 'moved' / 'run'}", f"model.path={tmp_path / 'moved' / 'base'}")
    prepare_run_dir(settings(tmp_path, *moved, f"output.dir={tmp_path / 'moved' / '..' / 'out'}"))
    with pytest.raises(ConfigurationError, match=r"other settings \(output\.dir\)"):
        prepare_run_dir(settings(tmp_path, *moved, "output.dir=another"))


@pytest.mark.parametrize(
    ("given", "refused"),
    [((DUEL,), True), ((DUEL, PARSER), False), ((), False)],
    ids=["by name", "named", "no calls"],
)
def test_a_base_keeps_the_name_by_which_its_calls_are_read(tmp_path, given, refused):
    begin(tmp_path, f"model.path={save_base(tmp_path / 'Qwen3-Coder')}", *given)
    (tmp_path / "Qwen3-Coder").rename(tmp_path / "base")
    expected = pytest.raises(ConfigurationError, match=r"other settings \(model\.path\)")
    with expected if refused else nullcontext():
        begin(tmp_path, f"model.path={tmp_path / 'base'}", *given)


def test_another_base_model_at_another_path_is_refused(tmp_path):
    begin(tmp_path, f"model.path={save_base(tmp_path / 'base')}")
    other = save_base(tmp_path / "other", build_qwen3(seed=1))
    with pytest.raises(ConfigurationError, match=r"another base model .*\(model\.safetensors\)"):
        prepare_run_dir(settings(tmp_path, f"model.path={other}"))


@pytest.mark.parametrize("changed", ["model.safetensors", "config.json", "tokenizer.json"])
def test_another_base_model_at_the_same_path_is_refused_and_its_files_named(tmp_path, changed):
    base = save_base(tmp_path / "base")
    begin(tmp_path, f"model.path={tmp_path / 'base'}")
    other = save_base(tmp_path / "other", build_qwen3(seed=1, rope_theta=5e5))
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps(tokenizer | {"truncation": None, "more": 1}))
    shutil.copyfile(other / changed, base / changed)
    with pytest.raises(ConfigurationError, match=rf"another base model .*\({changed}\): put that"):
        begin(tmp_path, f"model.path={tmp_path / 'base'}")
    shutil.copyfile(save_base(tmp_path / "again") / changed, base / changed)
    begin(tmp_path, f"model.path={tmp_path / 'base'}")


def test_a_file_that_is_gone_makes_another_base_model(tmp_path):
    base = save_base(tmp_path / "base")
    begin(tmp_path, f"model.path={tmp_path / 'base'}")
    (base / "generation_config.json").unlink()
    with pytest.raises(ConfigurationError, match=r"\(generation_config\.json\)"):
        begin(tmp_path, f"model.path={tmp_path / 'base'}")


@pytest.mark.parametrize(
    ("channel", "setting", "named"),
    [
        ("own", "environment.entry", "FILE"),
        ("own", "environment.entry", "of_a_run.guess:Guess"),
        ("code_agent", "environment.code_agent.entry", "FILE:Guess"),
        ("code_agent", "environment.code_agent.tools_script", "FILE"),
        ("openenv", "environment.openenv.app", "FILE:app"),
        ("duel", "environment.opponents", "['random', 'FILE:play']"),
        ("duel", "environment.opponents", "['random', 'of_a_run.guess:play']"),
    ],
)
def test_a_run_goes_on_with_the_users_code_that_it_began_with(
    channel, setting, named, tmp_path, monkeypatch
):
    base, file = save_base(tmp_path / "base"), tmp_path / "of_a_run" / "guess.py"
    file.parent.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    named = named.replace("FILE", str(file))
    own = (f"environment.channel={channel}", f"{setting}={named}", f"model.path={base}")
    file.write_text("one")
    begin(tmp_path, *own)
    file.write_text("another")
    with pytest.raises(ConfigurationError, match=rf"{setting}.* changed since"):
        begin(tmp_path, *own)
    file.write_text("one")
    begin(tmp_path, *own)


def test_a_run_goes_on_with_the_data_that_it_began_with(tmp_path):
    """One conversation more, and others are held out."""
    base, data = save_base(tmp_path / "base"), tmp_path / "data"
    (data / "part").mkdir(parents=True)
    recorded = ("environment.channel=recorded", f"environment.datasets=['{data}']")
    recorded += ("reward.credit=episode", f"model.path={base}")
    (data / "part" / "a.jsonl").write_text("one")
    begin(tmp_path, *recorded)
    begin(tmp_path, *recorded)
    for name in ("a.jsonl", "b.jsonl"):
        file = data / "part" / name
        before = file.read_text() if file.exists() else None
        file.write_text("one more")
        with pytest.raises(ConfigurationError, match=r"environment\.datasets .* changed since"):
            begin(tmp_path, *recorded)
        file.unlink() if before is None else file.write_text(before)
    (data / "notes.txt").write_text("no record is read of it")
    begin(tmp_path, *recorded)


def test_data_that_a_channel_does_not_read_binds_nothing(tmp_path):
    base, data = save_base(tmp_path / "base"), tmp_path / "data"
    data.mkdir()
    duel = (DUEL, PARSER, f"environment.datasets=['{data}']", f"model.path={base}")
    begin(tmp_path, *duel)
    (data / "a.jsonl").write_text("{}")
    begin(tmp_path, *duel)


def test_data_that_cannot_be_listed_now_is_not_taken_for_other_data(tmp_path, monkeypatch):
    base, data = save_base(tmp_path / "base"), tmp_path / "data"
    data.mkdir()
    recorded = ("environment.channel=recorded", f"environment.datasets=['{data}']")
    recorded += ("reward.credit=episode", f"model.path={base}")

    def refuse(folder):
        raise OSError(EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("miner.training.run_dir.files_of", refuse)
        begin(tmp_path, *recorded)  # nothing is known of it: it binds nothing
        with pytest.raises(OSError, match="Input/output"):
            begin(tmp_path, *recorded)
    begin(tmp_path, *recorded)


def test_a_file_of_the_users_that_is_gone_is_no_other_base(tmp_path):
    base, file = save_base(tmp_path / "base"), tmp_path / "mine.py"
    file.write_text("one")
    own = ("reward.credit=own", f"reward.entry={file}", f"model.path={base}")
    begin(tmp_path, *own)
    file.unlink()
    with pytest.raises(ConfigurationError, match=r"reward\.entry changed since"):
        begin(tmp_path, *own)


def test_a_run_of_recorded_conversations_goes_on_with_their_length(tmp_path):
    recorded = ("environment.channel=recorded", "reward.credit=episode")
    begin(tmp_path, *recorded, "rollout.max_episode_tokens=4096")
    with pytest.raises(ConfigurationError, match=r"rollout\.max_episode_tokens"):
        begin(tmp_path, *recorded, "rollout.max_episode_tokens=1024")


def test_duels_go_on_with_the_sentences_that_they_began_with(tmp_path, monkeypatch):
    base = save_base(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    begin(tmp_path, "environment.channel=duel", f"model.path={base}")
    other = replace(own_wording(), source="another")
    monkeypatch.setattr("miner.training.run_dir.wording_of", lambda folder: other)
    with pytest.raises(ConfigurationError, match=r"the wording of prompts changed since"):
        begin(tmp_path, "environment.channel=duel", f"model.path={base}")
    begin(tmp_path / "other", f"model.path={base}")


def test_a_damaged_fingerprint_is_an_error_with_a_way_out(tmp_path):
    save_base(tmp_path / "base")
    begin(tmp_path, f"model.path={tmp_path / 'base'}")
    (tmp_path / "run" / BASE_FILE).write_text('{"config.json": "12')
    with pytest.raises(ConfigurationError, match=r"base_fingerprint\.json is damaged .*delete it"):
        begin(tmp_path, f"model.path={tmp_path / 'base'}")


def large_weights(folder, change_at=None):
    """A weight file of 40 MiB without content; `change_at` bytes from its start, 1 MiB differs."""
    file = folder / "model.safetensors"
    with file.open("wb") as stream:
        stream.truncate(40 << 20)
        if change_at is not None:
            stream.seek(change_at)
            stream.write(b"\1" * (1 << 20))
    return base_fingerprint(folder)["model.safetensors"]


def test_of_large_weights_samples_from_end_to_end_are_compared(tmp_path):
    before = large_weights(tmp_path)
    assert large_weights(tmp_path) == before
    seen = [large_weights(tmp_path, place << 20) != before for place in range(40)]
    assert seen[0]
    assert seen[-1]
    assert all(any(seen[place : place + 3]) for place in range(38))


def test_a_folder_whose_settings_are_of_another_version_is_named(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "settings.toml").write_text("[rollout]\nfresh_groups = 0\n")
    with pytest.raises(ConfigurationError, match=r"run holds a run .*choose another run_dir"):
        prepare_run_dir(Settings.load(None, [f"run_dir={run}"], environ={}))
