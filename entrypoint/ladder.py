"""The degrade ladder as data: what to give up, in which order, when the trainer runs out of memory.

Invariant: a rung changes only settings that the trainer's settings hold already, and only towards
less memory; a rung that can change nothing is skipped. What else its change needs goes with it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """Multiply a number, down to a floor; whole numbers stay whole."""

    factor: float
    floor: float

    def __call__(self, value: Any) -> Any:
        """The scaled value, in the type that it had."""
        scaled = max(self.floor, value * self.factor)
        return int(scaled) if isinstance(value, int) else round(scaled, 2)


@dataclass(frozen=True)
class Raise:
    """Multiply a number, up to a ceiling."""

    factor: float
    ceiling: float

    def __call__(self, value: Any) -> Any:
        """The raised value."""
        return min(self.ceiling, value * self.factor)


@dataclass(frozen=True)
class Replace:
    """Put one value in the place of another."""

    new: Any

    def __call__(self, value: Any) -> Any:
        """The new value."""
        return self.new


Change = Scale | Raise | Replace


@dataclass(frozen=True)
class Rung:
    """One step down: its name, what becomes of which settings (dotted names), what goes with it.

    Attributes:
        not_with: a setting (dotted name) that rules this step out.
    """

    name: str
    changes: Mapping[str, Change]
    along: Mapping[str, Change] = field(default_factory=dict)
    not_with: str = ""


HALF_A_PASS: Mapping[str, Change] = {
    "optimizer.micro_batch_tokens": Scale(0.5, floor=64),
}
"""Half of what a pass takes; no longest episode is shorter than 64."""

LADDER = (
    Rung("half the micro-batch", HALF_A_PASS),
    Rung("a smaller share for vLLM", {"rollout.memory_share": Scale(0.8, floor=0.1)}),
    Rung("half the micro-batch again", HALF_A_PASS),
    Rung("shorter episodes", {"rollout.max_episode_tokens": Scale(0.75, floor=1024)}),
    Rung(
        "LoRA",
        {"model.tuning": Replace("lora")},
        along={"optimizer.learning_rate": Raise(10.0, ceiling=1.0)},  # as in the presets
        not_with="optimizer.deepspeed",  # it would load the full run's optimizer into the adapters'
    ),
)


def step_down(settings: Settings, taken: int) -> tuple[Settings, int, str] | None:
    """The settings one rung below, after `taken` rungs of the ladder.

    Returns: (new settings, rungs taken now, what was given up), or None at the ladder's end.
    """
    for position in range(taken, len(LADDER)):
        rung = LADDER[position]
        if rung.not_with and get_setting(settings, rung.not_with) is not None:
            continue
        changed = copy.deepcopy(settings)
        given_up = [text for key in rung.changes if (text := _change(changed, key, rung))]
        if given_up:
            for key, change in rung.along.items():
                if (value := get_setting(changed, key)) is not None:
                    put_setting(changed, key, change(value))
            return changed, position + 1, f"{rung.name} ({', '.join(given_up)})"
    return None


def weights_by_file(settings: Settings) -> Settings | None:
    """The settings with weights that reach vLLM's server by a file: slower, but without NCCL.

    None where there is no server, or its weights come so already.
    """
    if get_setting(settings, "rollout.engine") != "vllm_server":
        return None
    if get_setting(settings, "rollout.weights") == "file":
        return None
    changed = copy.deepcopy(settings)
    changed["rollout"]["weights"] = "file"
    return changed


def without_vllm(settings: Settings) -> Settings | None:
    """The settings with the trainer's own model generating: slow, but it needs no engine.

    None where it generates already.
    """
    if get_setting(settings, "rollout.engine") in (None, "transformers"):
        return None
    changed = copy.deepcopy(settings)
    changed["rollout"]["engine"] = "transformers"
    for of_servers in ("server", "weights"):
        changed["rollout"].pop(of_servers, None)
    return changed


def get_setting(settings: Settings, key: str) -> Any:
    """The value of a dotted name, None where it is not set."""
    node: Any = settings
    for part in key.split("."):
        if not isinstance(node, dict):
            return None
        node = node.get(part)
    return node


def put_setting(settings: Settings, key: str, value: Any) -> None:
    """Set a dotted name, making the sections on the way. Raises: KeyError where one is a value."""
    *parents, leaf = key.split(".")
    node = settings
    for part in parents:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise KeyError(f"{key}: {part} is a value, not a section")
    node[leaf] = value


def _change(settings: Settings, key: str, rung: Rung) -> str:
    old = get_setting(settings, key)
    if old is None:
        return ""
    new = rung.changes[key](old)
    if new == old or (isinstance(old, int | float) and new >= old):
        return ""
    put_setting(settings, key, new)
    return f"{key} {old} -> {new}"
