"""InterCode as a channel: tasks from a folder, episodes in realms, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from miner.config.errors import ConfigurationError
from miner.duel.intercode.environment import InterCodeSource, OpenShell, spoken
from miner.duel.intercode.tasks import InterCodeTasks
from miner.environments.base import EpisodeTask, Transition
from miner.evaluation.channels import CHANNELS, channel_settings
from tests.duel.intercode_shells import by_rote, require_realms, task_folder

SUBMIT = '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call><|im_end|>'


def bash(command: str) -> str:
    call = json.dumps({"name": "execute_bash", "arguments": {"command": command}})
    return f"Let me see.\n<tool_call>\n{call}\n</tool_call><|im_end|>"


@pytest.fixture
def tasks(tmp_path: Path) -> InterCodeTasks:
    return InterCodeTasks(task_folder(tmp_path))


def episode(source: InterCodeSource, number: int, replies: Sequence[str]) -> list[Transition]:
    async def played() -> list[Transition]:
        environment = source.open()
        try:
            task = EpisodeTask("intercode", number, number, "none")
            observation = await environment.reset(task)
            assert [tool["function"]["name"] for tool in observation.tools] == [
                "execute_bash",
                "submit",
            ]
            return [await environment.step(reply) for reply in replies]
        finally:
            await environment.close()

    return asyncio.run(played())


def shown(transition: Transition) -> str:
    return transition.messages[1]["content"]


@pytest.fixture
def source(open_shell: OpenShell, tasks: InterCodeTasks) -> InterCodeSource:
    return InterCodeSource(tasks, open_shell, family="qwen25")


def test_an_episode_shows_its_steps_in_a_fresh_chat_and_ends_with_the_reward(
    source: InterCodeSource,
) -> None:
    first, silent, last = episode(source, 1, [bash("cat /testbed/a.txt"), "I am done", SUBMIT])
    assert first.fresh
    assert first.valid
    assert (
        'Thought 1: Let me see.\nTool 1: execute_bash(command="cat /testbed/a.txt")\n'
        "Observation 1: one\ntwo\n"
    ) in shown(first)
    assert (silent.valid, silent.fault) == (False, "no call")
    assert "Thought 2: I am done\nTool 2: no valid tool call\n" in shown(silent)
    assert (last.done, last.score, last.valid) == (True, 1.0, True)


def test_rewards_fall_with_what_was_missed(source: InterCodeSource) -> None:
    [nothing] = episode(source, 1, [SUBMIT])
    assert nothing.score == 0.67
    _, missed = episode(source, 3, [bash("echo zebra"), SUBMIT])
    assert missed.score == 0.67
    _, right = episode(source, 3, [bash("echo ok"), SUBMIT])
    assert right.score == 1.0


def test_after_ten_turns_the_task_is_submitted(tasks: InterCodeTasks) -> None:
    source = InterCodeSource(tasks, by_rote, family="qwen25")
    turns = episode(source, 3, [bash("echo ok")] * 10)
    assert [turn.done for turn in turns] == [False] * 9 + [True]
    assert turns[-1].score == 1.0
    silent = episode(source, 3, ["nothing"] * 10)
    assert [turn.valid for turn in silent] == [False] * 9 + [True]
    assert silent[-1].score == 0.67


def test_what_a_reply_says_beside_its_calls() -> None:
    assert spoken("qwen25", bash("ls")) == "Let me see."
    assert spoken("llama3", '{"name": "submit", "parameters": {}}<|eot_id|>') == ""
    assert spoken("mistral", "so[TOOL_CALLS] [{}]</s>") == "so"
    assert spoken("hermes", "<think>hm</think>yes<|im_end|>") == "yes"


def test_tasks_are_numbered_through_the_files_and_split(tasks: InterCodeTasks) -> None:
    assert [tasks.task(n).question for n in (1, 2, 3, 4)] == [
        "Print a.txt",
        "Append",
        "Echo",
        "Count",
    ]
    assert tasks.task(2).gold == "echo three >> /testbed/a.txt;true"
    assert tasks.task(3).files is None
    [held_out] = tasks.held_out(1, 0)
    trained = {tasks.training(index, 1).task_id for index in range(50)}
    assert trained == {1, 2, 3, 4} - {held_out.task_id}
    with pytest.raises(ConfigurationError, match=r"lower evaluation\.episodes"):
        tasks.held_out(2, 0)


def test_a_folder_without_tasks_or_their_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no tasks of InterCode"):
        InterCodeTasks(tmp_path)
    (tmp_path / "nl2bash_fs_2.json").write_text('[{"query": "q", "gold": "g"}]')
    with pytest.raises(ConfigurationError, match=r"fs2\.tar or a folder fs2/"):
        InterCodeTasks(tmp_path)
    (tmp_path / "nl2bash_fs_2.json").write_text('[{"query": 7}]')
    with pytest.raises(ConfigurationError, match="is no list of InterCode's tasks"):
        InterCodeTasks(tmp_path)


def test_the_channel_says_which_setting_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"set environment\.tasks"):
        CHANNELS["intercode"](channel_settings("intercode"))
    with pytest.raises(ConfigurationError, match=r"set environment\.tool_parser"):
        CHANNELS["intercode"](channel_settings("intercode", tasks=tmp_path))


def test_the_check_runs_a_trial(tmp_path: Path) -> None:
    require_realms()
    folder = task_folder(tmp_path)
    channel = CHANNELS["intercode"](
        channel_settings("intercode", tasks=folder, tool_parser="hermes")
    )

    async def looked() -> str:
        source = await channel.open()
        return str((await channel.check(source)).to_json()["reason"])

    assert asyncio.run(looked()).startswith(f"4 tasks of {folder}")
