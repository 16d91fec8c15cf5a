"""Every setting of a training run, documented and bounded where it is declared.

A run is described by one `Settings` value: defaults, then a TOML file (which may build on a
recipe), then dotted overrides (`rollout.group_size=16`). Unknown keys are errors that name the one
and what was probably meant. The orchestrator plans with the same class that the trainer reads; the
resolved settings are written next to the run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import Field, ValidationError, field_validator, model_validator

from miner.config.channel_facts import FACTS, Channel, unused_settings
from miner.config.channel_settings import CodeAgentSettings, OpenEnvSettings
from miner.config.contract import (
    DATASETS_DIR_VARIABLE,
    DATASETS_VARIABLE,
    DECK_SIZES,
    DUEL_BOARDS,
    DUEL_CARDS,
    GAMES,
    GOOFSPIEL,
    SERVERS_VARIABLE,
    DeckSize,
    DuelBoard,
    DuelCards,
    GameName,
    ToolParser,
    mounted_datasets,
    split_server_urls,
)
from miner.config.errors import ConfigurationError
from miner.config.held_out_games import USUALLY_GATED, usual_in_duels
from miner.config.learning_settings import DemonstrationSettings, OptimizerSettings, RewardSettings
from miner.config.mistakes import explained
from miner.config.overrides import Tree, merged, parse_overrides, parse_value, value_at
from miner.config.recipes import read_recipe
from miner.config.section import Section, setting_fields


class ModelSettings(Section):
    path: Path | None = Field(None, description="Folder of the base model (`from_pretrained`).")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Dtype of the trainer's computation; bfloat16 wants a GPU."
    )
    tuning: Literal["full", "lora"] = Field(
        "full", description="lora: only low-rank adapters on all linear layers are trained."
    )
    gradient_checkpointing: bool | None = Field(
        None,
        description="Recompute activations backward: less memory, slower; empty: on GPUs.",
    )
    lora_rank: int = Field(16, ge=1, description="tuning = lora: rank of the adapters.")
    last_layers: int | None = Field(
        None,
        ge=1,
        description="Only so many of the last layers are trained, and nothing else; empty: all. "
        "Below them nothing is computed backward, nor kept without gradient_checkpointing.",
    )


class OutputSettings(Section):
    dir: Path | None = Field(
        None,
        description="Folder of the published model: a new one, or one that the miner published.",
    )
    take_over: bool = Field(
        False,
        description="Rename other content of dir to a hidden folder beside it instead of refusing "
        "it; the container does so, whose path is fixed.",
    )


class EnvironmentSettings(Section):
    name: str = Field(
        GOOFSPIEL, description="channel = auto, step, graded, builtin: game to learn."
    )
    channel: Channel = Field(
        "auto",
        description="Source of episodes; auto lets the conformance probe decide among the games'. "
        "own: a class of yours (entry); code_agent: problems to write code for; openenv: an "
        "OpenEnv server; duel: today's tournament, played in this process; recorded: supervised "
        "learning on conversations (datasets).",
    )
    entry: str = Field(
        "", description="channel = own: your class, as guess.py:Guess or package.module:Guess."
    )
    code_agent: CodeAgentSettings = CodeAgentSettings()
    servers: tuple[str, ...] = Field(
        (), description=f"Environment servers; empty: taken from {SERVERS_VARIABLE}."
    )
    opponent: Literal["random", "mcts"] = Field(
        "random", description="As name: always named to the server."
    )
    deck_sizes: tuple[DeckSize, ...] = Field(
        DECK_SIZES,
        min_length=1,
        description="As name: Goofspiel's sizes trained on, equally often.",
    )
    games: tuple[GameName, ...] = Field(
        GAMES,
        min_length=1,
        description="channel = duel: games to learn, "
        "equally often; one that is listed twice comes twice as often.",
    )
    opponents: tuple[str, ...] = Field(
        ("random",),
        min_length=1,
        description="channel = duel: who sits opposite, in turns: random, bid, mcts:SIMULATIONS, "
        "cfr, strong, teacher, rival, a function of yours (own_duels.py:play), a model folder, an "
        "endpoint's URL, base, or snapshot (what this run has published last).",
    )
    cards: tuple[DuelCards, ...] = Field(
        DUEL_CARDS, min_length=1, description="channel = duel: Goofspiel's deck sizes."
    )
    boards: tuple[DuelBoard, ...] = Field(
        DUEL_BOARDS, min_length=1, description="channel = duel: Clobber's boards."
    )
    notes: float = Field(
        0.0,
        ge=0,
        le=1,
        description="channel = duel: share of the games, and of the teachers' demonstrations, that "
        "show notes of a game before against the same opponent, where teachers write some.",
    )
    tool_parser: ToolParser | None = Field(
        None,
        description="channel = duel: what reads the model's tool calls; empty: by the model's "
        "family, as it will be served.",
    )
    openenv: OpenEnvSettings = OpenEnvSettings()
    datasets: tuple[Path, ...] = Field(
        (),
        description="channel = recorded: folders of conversations, as demonstrations.datasets; "
        f"not set: those of {DATASETS_VARIABLE} below {DATASETS_DIR_VARIABLE}; []: none.",
    )

    @field_validator(
        "servers", "deck_sizes", "games", "opponents", "cards", "boards", mode="before"
    )
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """One value or a text with commas is a list: games=othello,clobber, deck_sizes=8."""
        if isinstance(value, str):
            return [parse_value(part.strip()) for part in value.split(",") if part.strip()]
        return [value] if isinstance(value, int) else value


class RolloutSettings(Section):
    groups_per_step: int = Field(16, ge=1, description="Games per optimizer step.")
    group_size: int = Field(8, ge=1, description="Episodes of each game (GRPO's group).")
    temperature: float = Field(1.0, gt=0, le=2, description="Sampling temperature in training.")
    guided: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of episodes whose moves reward.credit=all_moves' critic picks, which "
        "costs no sampling; it falls to none over optimizer.decay_share.",
    )
    max_reply_tokens: int = Field(
        16, ge=1, description="Longest reply to one prompt, in tokens; in duels by default 512."
    )
    max_episode_tokens: int | None = Field(
        None,
        ge=64,
        description="Longest whole episode, in tokens; empty: as the model's tokenizer needs for "
        "the games.",
    )
    episode_seconds: float = Field(180.0, gt=0, description="Time limit of one episode.")
    live_episodes: int | None = Field(
        None,
        ge=1,
        description="Episodes that a process plays at once at most; empty: a step's, on a CPU all "
        "held-out ones too (of duels 100, where `evaluation.episodes` is the default).",
    )
    engine: Literal["transformers", "vllm_server", "vllm_colocated"] = Field(
        "transformers",
        description="Engine that generates: the trainer's own model, vLLM servers, or vLLM in the "
        "trainer's process.",
    )
    server: str = Field(
        "",
        pattern=r"^(https?://[^\s,]+)?$",
        description="vllm_server: base URL of `vllm serve`, which may have several engines.",
    )
    memory_share: float = Field(
        0.4, gt=0, lt=1, description="vllm_colocated: vLLM's share of the GPU's memory."
    )
    start_seconds: float = Field(
        900.0, gt=0, description="vllm_server: longest wait for a server that starts."
    )

    @property
    def episode_limit(self) -> int:
        """`max_episode_tokens` once the trainer has filled it in."""
        if self.max_episode_tokens is None:
            raise RuntimeError("the model has not been asked for rollout.max_episode_tokens yet")
        return self.max_episode_tokens


class EvaluationSettings(Section):
    every_steps: int = Field(20, ge=1, description="Steps between held-out evaluations.")
    time_share: float = Field(
        1.0, gt=0, le=1, description="Share of the time for them: one too soon is left out."
    )
    episodes: int = Field(
        100,
        ge=10,
        description=f"Held-out graded episodes, greedy; in duels {USUALLY_GATED} of each game.",
    )
    max_reply_tokens: int | None = Field(
        None, ge=1, description="Longest reply in them, in tokens; empty: as in rollout."
    )
    base_seed: int = Field(7, description="Of the held-out list, apart from the grader's.")
    seconds: float = Field(0.0, ge=0, description="Planned for one, no game of it forfeited.")


class DeadlineSettings(Section):
    seconds: float | None = Field(
        None,
        gt=0,
        description="Training time over all restarts; empty: max_steps or ends_at ends it.",
    )
    ends_at: float | None = Field(None, gt=0, description="Unix time of the kill, planned for.")


class CheckpointSettings(Section):
    every_steps: int = Field(20, ge=1, description="Steps between resumable checkpoints.")
    seconds_apart: float = Field(0.0, ge=0, description="One sooner after the last is left out.")


class Settings(Section):
    """One training run. See the sections; `python -m miner train --dry-run` prints it resolved."""

    run_dir: Path = Field(Path("runs/train"), description="Checkpoints, records, replays.")
    seed: int = Field(0, ge=0, lt=2**31, description="Of tasks, sampling and initialisation.")
    threads: int | None = Field(None, ge=1, description="CPU threads of torch; empty: torch's own.")
    report_to: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = Field(
        (),
        description="Trackers that get each step's metrics, too; trackio and wandb (offline) also "
        "get its completions as a table, its first episodes as traces, and the report's path.",
    )
    token_records: int = Field(
        20, ge=-1, description="Newest steps whose tokens `miner explain` can show; -1: all."
    )
    model: ModelSettings = ModelSettings()
    output: OutputSettings = OutputSettings()
    environment: EnvironmentSettings = EnvironmentSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    demonstrations: DemonstrationSettings = DemonstrationSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    deadline: DeadlineSettings = DeadlineSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        credit = self.reward.credit
        facts = FACTS[self.environment.channel]
        goofspiel = facts.critics and not facts.duels and self.environment.name == GOOFSPIEL
        if credit == "all_moves" and not (goofspiel or facts.duels):
            where = f"environment.channel={self.environment.channel!r}, {self.environment.name!r}"
            raise ValueError(f"reward.credit={credit!r} has no critic for {where}: set 'episode'")
        for name, entry, channel in (
            ("entry", self.environment.entry, "own"),
            ("code_agent.entry", self.environment.code_agent.entry, "code_agent"),
            ("code_agent.tools_script", self.environment.code_agent.tools_script, "code_agent"),
        ):
            if entry and self.environment.channel != channel:
                why = f"is played by environment.channel={channel!r} alone, not by"
                found = self.environment.channel
                raise ValueError(f"environment.{name}={entry!r} {why} {found!r}: set it")
        if self.rollout.group_size == 1 and credit != "all_moves":
            raise ValueError(
                "rollout.group_size=1 leaves nothing to compare an episode with: set it to 2 or "
                "more, or reward.credit to 'all_moves'"
            )
        if self.rollout.guided and (credit != "all_moves" or facts.duels):
            raise ValueError(
                f"rollout.guided={self.rollout.guided:g} needs the critic of the "
                "servers' Goofspiel: set reward.credit to 'all_moves', or leave it out"
            )
        if self.demonstrations.share and not facts.duels:
            raise ValueError(
                f"demonstrations.share={self.demonstrations.share:g} needs teachers, which only "
                f"duels have: with environment.channel={self.environment.channel!r}, leave it out"
            )
        teacher, learned = self.demonstrations.teacher, self.demonstrations.share
        if teacher and not (facts.duels and (learned or credit == "all_moves")):
            raise ValueError(
                f"demonstrations.teacher={teacher!r} teaches duels alone, and only with "
                "demonstrations.share above 0 or reward.credit='all_moves': set one of these"
            )
        if facts.supervised and (credit != "episode" or self.rollout.temperature != 1):
            raise ValueError(
                f"environment.channel={self.environment.channel!r} samples nothing in training: "
                "leave reward.credit='episode' and rollout.temperature=1"
            )
        if (self.rollout.engine == "vllm_server") != bool(self.rollout.server):
            raise ValueError(
                f"rollout.engine={self.rollout.engine!r} and rollout.server={self.rollout.server!r}"
                ': set engine="vllm_server" together with the server\'s URL'
            )
        return self

    @classmethod
    def load(
        cls,
        config: Path | None = None,
        overrides: Sequence[str] = (),
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Resolve settings from a TOML file and `key=value` overrides, the latter winning.

        `environment.servers` falls back to ENVIRONMENT_SERVER_URLS, `demonstrations.datasets` to
        the folders that a validator mounts.
        Raises: `ConfigurationError` naming the file or key, the value and the way out.
        """
        tree = parse_overrides(overrides)
        if config is not None:
            tree = read_recipe(config).under(tree)
        if mounted := mounted_datasets(environ):
            folders = {"datasets": mounted}
            tree = merged({"demonstrations": folders, "environment": folders}, tree)
        urls = split_server_urls(environ.get(SERVERS_VARIABLE, ""))
        if urls and not value_at(tree, "environment.servers"):
            tree = merged(tree, {"environment": {"servers": urls}})
        return cls.resolve(tree)

    @classmethod
    def resolve(cls, tree: Tree) -> Self:
        """A tree over the defaults. Raises: `ConfigurationError` naming each key and its value."""
        try:
            found = cls.model_validate(tree)
        except ValidationError as error:
            raise ConfigurationError(explained(error, tuple(setting_fields(cls)))) from None
        usual = usual_in_duels(found.environment.games)
        for name, values in usual.items() if FACTS[found.environment.channel].duels else ():
            section = getattr(found, name)
            unset = {k: v for k, v in values.items() if k not in section.model_fields_set}
            found = found.model_copy(update={name: section.model_copy(update=unset)})
        return found

    def having(self, **sections: Tree) -> Self:
        """These settings with other values: `settings.having(rollout={"group_size": 4})`.

        Raises: `ConfigurationError` as `resolve`.
        """
        return self.resolve(merged(self.model_dump(), sections))

    @property
    def episodes_per_step(self) -> int:
        """Episodes of one optimizer step: groups times members."""
        return self.rollout.groups_per_step * self.rollout.group_size

    @property
    def held_out_reply_tokens(self) -> int:
        """Longest reply in held-out games."""
        return self.evaluation.max_reply_tokens or self.rollout.max_reply_tokens


def check_divides(settings: Settings, count: int) -> None:
    """Check that each of `count` processes gets whole groups. Raises: `ConfigurationError`."""
    groups = settings.rollout.groups_per_step
    if groups % count:
        raise ConfigurationError(
            f"rollout.groups_per_step={groups} cannot be divided among {count} trainer processes: "
            f"use a multiple of {count}, so that no group is torn apart"
        )


def to_toml(settings: Settings, *, used_only: bool = False) -> str:
    """The settings as a TOML document that `Settings.load` reads back to an equal value.

    Args:
        used_only: leave out defaults that the run's channel does not read.
    """
    tree = settings.model_dump(mode="json", exclude_none=True)
    return used_toml(tree) if used_only else tomli_w.dumps(tree)


def used_toml(tree: Tree) -> str:
    """A tree of settings as TOML, without defaults that the run's channel does not read."""
    environment = tree.get("environment", {})
    defaults = EnvironmentSettings().model_dump(mode="json")
    unused = unused_settings(str(environment.get("channel", "auto")))
    kept = {
        name: value
        for name, value in environment.items()
        if name not in unused or value != defaults[name]
    }
    return tomli_w.dumps(tree | ({"environment": kept} if environment else {}))
