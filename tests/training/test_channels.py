"""Training on what plays no game: one's own environment, and code agents."""

import json
from pathlib import Path
from typing import get_args

import pytest

from miner.channels.duel import DuelChannel
from miner.channels.registry import channel_class
from miner.channels.served import ServedChannel
from miner.config.channel_facts import FACTS
from miner.config.errors import ConfigurationError
from miner.config.settings import EnvironmentSettings
from miner.learning.trainer import grpo_config
from miner.publishing.gate import form_lost
from miner.reporting.page import write_report
from miner.reporting.run_folder import RunFolder
from tests.training.in_process import Work

HIGH = """
from miner.environments.own import Step, TextEnvironment

class High(TextEnvironment):
    max_turns = 2
    replies = ("7", "1")

    def reset(self, seed):
        return f"say something, {seed}"

    def step(self, reply):
        if not reply:
            return Step("louder", valid=False)
        return Step(score=sum(each in "4567" for each in reply) / len(reply))
"""


def own(folder: Path, text: str) -> tuple[str, str]:
    path = folder / "high.py"
    path.write_text(text)
    return "environment.channel=own", f"environment.entry={path}"


def test_every_channel_can_be_set() -> None:
    names = get_args(EnvironmentSettings.model_fields["channel"].annotation)
    assert set(names) == set(FACTS)
    assert {channel_class(name) for name in names} > {ServedChannel}


def test_a_policy_learns_ones_own_environment(work: Work) -> None:
    """Held-out episodes before and after, and the files that a run leaves."""
    large = ("rollout.groups_per_step=4", "rollout.group_size=8", "evaluation.episodes=40")
    result = work.train(*own(work.folder, HIGH), *large, "optimizer.max_steps=12")
    run = RunFolder(work.run_dir).read()
    first, *_, last = run.evaluations
    assert result.step == last.step == 12
    assert last.score.low > first.score.high
    assert run.steps[-1].score > run.steps[0].score + 0.3
    assert (first.channel, first.environment, first.by_seat) == ("own", "High", {})
    assert json.loads((work.run_dir / "probe.json").read_text())["channel"] == "own"
    page = write_report(work.run_dir).read_text()
    assert "Channel own: High: 96 episodes" in page
    assert "bid = prize" not in page


STOPPING = HIGH.replace(
    "def step(self, reply):",
    """async def step(self, reply):
        if reply == "1":
            ask_to_stop()
            await asyncio.Event().wait()""",
)


def test_sigterm_ends_the_check_of_ones_own_environment(work: Work) -> None:
    head = "import asyncio\nfrom tests.training.test_run import ask_to_stop\n"
    result = work.train(*own(work.folder, head + STOPPING))
    assert (result.step, result.score) == (0, None)
    assert "asked to stop before training" in work.said.getvalue()
    assert not (work.run_dir / "probe.json").exists()
    assert (work.published / "model.safetensors").exists()


ENDINGS = """
from miner.environments.code_agent import CodeProblems

class Endings(CodeProblems):
    problems = 100

    def question(self, number):
        return f"say something, {number}"

    def grade(self, number, reply):
        return float(reply.endswith(tuple("4567")))
"""


@pytest.mark.parametrize("name", ["arithmetic", "Endings"])
def test_code_agents_are_trained(work: Work, name: str) -> None:
    (work.folder / "endings.py").write_text(ENDINGS)
    entry = f"environment.code_agent.entry={work.folder / 'endings.py'}:Endings"
    given = (
        "environment.channel=code_agent",
        "environment.code_agent.form=inline",
        *([entry] if name == "Endings" else ()),
    )
    result = work.train(*given, "optimizer.max_steps=1", "checkpoint.every_steps=1")
    assert work.steps == [1]
    assert result.output_dir == work.published
    probe = json.loads((work.run_dir / "probe.json").read_text())
    assert probe["environment"] == name
    assert "sandbox" in probe["reason"]
    work.train(*given, "optimizer.max_steps=2", "checkpoint.every_steps=1")  # a run continues
    assert work.steps == [1, 2]
    evaluations = RunFolder(work.run_dir).read().evaluations
    assert {record.environment for record in evaluations} == {name}


def test_of_few_problems_a_fifth_is_held_out(work: Work) -> None:
    work.train(*own(work.folder, HIGH + "    problems = 20"), "optimizer.max_steps=1")
    assert {record.score.n for record in RunFolder(work.run_dir).read().evaluations} == {4}


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("import nothing_of_the_kind", (), "cannot be imported: ModuleNotFoundError"),
        (HIGH.replace("reset", "begin"), (), "High has no reset"),
    ],
)
def test_a_mistake_is_reported_before_anything_is_made(
    work: Work, text: str, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        work.train(*own(work.folder, text), *overrides)
    assert not work.published.exists()
    assert not work.run_dir.exists()


def test_an_environment_that_cannot_be_trained_on_is_refused_before_the_first_step(
    work: Work,
) -> None:
    text = HIGH.replace('sum(each in "4567" for each in reply) / len(reply)', "float('nan')")
    with pytest.raises(ConfigurationError, match="the score is nan, but score_range is 0 to 1"):
        work.train(*own(work.folder, text))
    assert work.steps == []
    assert work.trainers == []


def test_a_critic_of_another_game_is_refused(work: Work) -> None:
    games = (ServedChannel, DuelChannel)
    for channel in (name for name in FACTS if channel_class(name) not in games):
        with pytest.raises(ConfigurationError, match=r"credit='all_moves' has no critic for"):
            work.settings(f"environment.channel={channel}", "reward.credit=all_moves")
    assert work.settings("environment.channel=builtin", "reward.credit=all_moves")
    with pytest.raises(ConfigurationError, match=r"all_moves' has no critic for .*'othello'"):
        work.settings("environment.name=othello", "reward.credit=all_moves")


def test_guided_episodes_need_the_critic_of_the_servers_game(work: Work) -> None:
    for other in ("environment.channel=duel reward.credit=all_moves", "reward.credit=turn"):
        with pytest.raises(ConfigurationError, match=r"rollout\.guided=0\.5 needs the critic"):
            work.settings(*other.split(), "rollout.guided=0.5")
    assert work.settings(
        "environment.channel=builtin", "reward.credit=all_moves", "rollout.guided=0.5"
    )


def test_groups_of_one_need_credit_that_compares_moves(work: Work) -> None:
    with pytest.raises(ConfigurationError, match=r"group_size=1 leaves nothing to compare"):
        work.settings("environment.channel=builtin", "rollout.group_size=1")
    alone = work.settings(
        "environment.channel=builtin",
        "reward.credit=all_moves",
        "rollout.group_size=1",
        "rollout.groups_per_step=3",
    )
    args = grpo_config(alone)
    assert (args.num_generations, args.per_device_train_batch_size) == (1, 3)
    assert args.generation_batch_size == 3


def test_the_supervised_channel_has_the_gate_of_form() -> None:
    assert channel_class("recorded")(EnvironmentSettings(channel="recorded")).gate() is form_lost
