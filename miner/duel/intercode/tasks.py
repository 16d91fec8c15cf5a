"""Tasks from a folder that a person names: the benchmark's files, of which none are here.

    FOLDER/nl2bash_fs_1.json    a list of objects with "query" and "gold"
    FOLDER/fs1.tar or fs1/      the file system they are about, as it lies below /
    ... up to 4; tasks of fs4 need no file system

Invariants: tasks are numbered from 1 on through the files in their order, as the tournament does;
no held-out task is ever trained on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miner.config.contract import INTERCODE_CHANNEL
from miner.config.errors import ConfigurationError
from miner.environments.seeded_tasks import SeededTasks

FILE_SYSTEMS = (1, 2, 3, 4)
WITHOUT_FILES = 4


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    Attributes:
        question: what the policy is asked.
        gold: the command that answers it.
        files: archive or folder of what the file system holds to begin with, None for nothing.
    """

    question: str
    gold: str
    files: Path | None


class InterCodeTasks(SeededTasks):
    """`TaskStream` of the tasks in a folder.

    Raises: `ConfigurationError` for a folder without any, or with a file that is no list of tasks
        or lacks its file system.
    """

    def __init__(self, folder: Path) -> None:
        found = [(number, folder / f"nl2bash_fs_{number}.json") for number in FILE_SYSTEMS]
        present = [(number, path) for number, path in found if path.is_file()]
        self._tasks = [task for number, path in present for task in _tasks_of(number, path)]
        if not self._tasks:
            raise ConfigurationError(
                f"{folder} holds no tasks of InterCode, and none come with this repository: "
                "expected nl2bash_fs_1.json to nl2bash_fs_4.json of the benchmark and their file "
                "systems as fs1.tar or fs1/ and so on"
            )
        super().__init__(INTERCODE_CHANNEL, len(self._tasks), first=1)

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, number: int) -> Task:
        """Task `number`, from 1. Raises: `ConfigurationError` if there is none."""
        if not 1 <= number <= len(self._tasks):
            raise ConfigurationError(
                f"there is no task {number} of InterCode: {len(self._tasks)} are in the folder"
            )
        return self._tasks[number - 1]


def _tasks_of(number: int, path: Path) -> list[Task]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        pairs = [(_text(row["query"]), _text(row["gold"])) for row in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"{path} is no list of InterCode's tasks ({type(error).__name__}: {error}): expected "
            '[{"query": ..., "gold": ...}, ...] as the benchmark has it'
        ) from error
    places = [path.parent / f"fs{number}.tar", path.parent / f"fs{number}"]
    files = next((place for place in places if place.exists()), None)
    if files is None and number != WITHOUT_FILES:
        raise ConfigurationError(
            f"{path} has tasks about a file system that is not there: put {path.parent}/fs{number}"
            f".tar or a folder fs{number}/ beside it"
        )
    return [Task(query, gold, files) for query, gold in pairs]


def _text(value: Any) -> str:
    """A text; several commands are one after another."""
    if isinstance(value, list):
        return ";".join(_text(part) for part in value)
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
