"""The trainer's settings as the plan wants them, under what a person set by hand.

The names are those of the trainer's settings file (TOML, dotted on the command line). The
orchestrator does not import the trainer: a test checks that the trainer accepts what is made here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.job import Job
from entrypoint.ladder import Settings, get_setting, put_setting
from entrypoint.paths import Paths
from entrypoint.presets import preset_for
from entrypoint.run_plan import RunPlan
from entrypoint.topology import BatchShape, Topology

INFERENCE_PORT = 8100
BUILTIN_CHANNEL = "builtin"  # the one that needs no environment server
PREFERRED_GAME = "goofspiel"


def parse_overrides(texts: Sequence[str]) -> Settings:
    """KEY=VALUE texts as nested settings; values are TOML where they parse as such, else text.

    Raises: `Failure` (ARGUMENTS).
    """
    settings: Settings = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip(". "):
            raise Failure(
                ExitStatus.ARGUMENTS,
                f"--set {text!r} is not KEY=VALUE: write it like rollout.group_size=16",
            )
        try:
            put_setting(settings, key.strip(), _parse_value(value.strip()))
        except KeyError as error:
            raise Failure(ExitStatus.ARGUMENTS, f"--set {text!r}: {error.args[0]}") from None
    return settings


def batch_shape(overrides: Settings, servers: int) -> BatchShape:
    """What a step plays: the trainer's defaults, or what a person set instead."""
    names = {
        "groups": "rollout.groups_per_step",
        "group_size": "rollout.group_size",
        "episode_tokens": "rollout.max_episode_tokens",
    }
    values: dict[str, int] = {"servers": servers}
    for field, key in names.items():
        value = get_setting(overrides, key)
        if value is None:
            continue
        if not isinstance(value, int) or value < 1:
            raise Failure(ExitStatus.ARGUMENTS, f"--set {key}={value!r}: expected a whole number")
        values[field] = value
    return BatchShape(**values)


def choose_game(environments: Sequence[str]) -> tuple[str, str]:
    """The game to train and the reason: one run trains one game."""
    if len(environments) == 1:
        return environments[0], "the only game of the job"
    chosen = PREFERRED_GAME if PREFERRED_GAME in environments else environments[0]
    others = ", ".join(name for name in environments if name != chosen)
    return chosen, f"one run trains one game; not trained: {others}"


def channel_of(overrides: Settings) -> str:
    """Where episodes come from: "auto" unless a person forces a channel."""
    return str(get_setting(overrides, "environment.channel") or "auto")


def trainer_settings(
    job: Job,
    paths: Paths,
    plan: RunPlan,
    topology: Topology,
    cpus: int,
    parameters: int,
    overrides: Settings,
) -> Settings:
    """All settings that the orchestrator decides for a model of this size, then the person's."""
    preset = preset_for(parameters)
    tuning = get_setting(overrides, "model.tuning") or topology.tuning
    settings: Settings = {
        "run_dir": str(plan.train_dir),
        "model": {"path": str(paths.model_dir), "dtype": topology.dtype},
        "output": {"dir": str(paths.output_dir)},
        "environment": {"name": choose_game(job.environments)[0], "servers": list(job.servers)},
        "rollout": {
            "groups_per_step": topology.groups,
            "max_episode_tokens": topology.episode_tokens,
        },
        "optimizer": {
            # what the plan has room for, so that short episodes share a pass
            "micro_batch_tokens": topology.micro_batch * topology.episode_tokens,
            "learning_rate": preset.learning_rate(tuning),
            "warmup_steps": preset.warmup_steps,
        },
        "deadline": {"ends_at": plan.trainer_ends_at},
    }
    if topology.layout == "cpu":
        settings["threads"] = cpus
    else:
        settings["model"]["tuning"] = topology.tuning
        settings["rollout"] |= _engine_settings(topology)
        if topology.processes > 1:
            settings["optimizer"]["deepspeed"] = str(plan.deepspeed_file)
    _merge(settings, overrides)
    return settings


def deepspeed_config(topology: Topology) -> dict[str, Any]:
    """DeepSpeed's configuration; sizes of batches are left to the trainer ("auto")."""
    zero: dict[str, Any] = {"stage": topology.zero_stage, "overlap_comm": True}
    if topology.zero_stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return {
        "bf16": {"enabled": "auto"},
        "zero_optimization": zero,
        "gradient_clipping": "auto",
        "gradient_accumulation_steps": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
    }


def _engine_settings(topology: Topology) -> dict[str, Any]:
    if topology.layout == "split":
        return {"engine": "vllm_server", "server": f"http://127.0.0.1:{INFERENCE_PORT}"}
    return {"engine": "vllm_colocated", "memory_share": topology.memory_share}


def _merge(settings: Settings, overrides: Settings) -> None:
    for key, value in overrides.items():
        if isinstance(value, dict) and isinstance(settings.get(key), dict):
            _merge(settings[key], value)
        else:
            settings[key] = value


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
