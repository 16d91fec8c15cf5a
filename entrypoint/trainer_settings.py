"""The trainer's settings for a plan: the recipe, then the plan's choices, then the user's own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from entrypoint.batch import BatchShape
from entrypoint.exit_status import ExitStatus, Failure
from entrypoint.job import Invocation, Job
from entrypoint.layout import Topology
from entrypoint.paths import Paths
from entrypoint.run_cost import EVALUATION_SHARE, RunCost
from entrypoint.run_plan import RunPlan
from entrypoint.workload import has_rows, learns_long_rows, others_than_intercode, workload
from miner.config.channel_facts import FACTS
from miner.config.contract import (
    DUEL_CHANNEL,
    DUEL_REPLY_TOKENS,
    DUEL_TURN_TOKENS,
    GAMES,
    GOOFSPIEL,
    INTERCODE,
    INTERCODE_DATASET,
    RECORDED_CHANNEL,
    SWE,
    SWE_DATASET,
    SWE_REPLY_TOKENS,
    dataset_folder,
)
from miner.config.errors import ConfigurationError
from miner.config.held_out_games import LEAST_GATED
from miner.config.overrides import Tree, merged, parse_overrides, value_at
from miner.config.recipes import Recipe, recipe, recipe_for
from miner.config.settings import Settings

INFERENCE_PORT = 8100
BUILTIN_CHANNEL = "builtin"  # the one that needs no environment server

DUEL_OPPONENTS = ("random", "teacher", "rival")
"""Stand-ins for the models that will be met, which are unknown when a job starts."""

DUEL_TURNS = 8
"""Trained of a game; all would make gin rummy and Othello most of what is learned."""

DUEL_WARM_START = 1.0
"""Share of the run that learns from teachers: a step of own games takes twenty times as long, and
longer than there is room for at the end of a run whose steps were short."""

DUEL_ROWS = 64
"""Decisions of such a step: steps, not decisions, are what a base's form and first look-up take."""

DUEL_GROUPS, DUEL_GROUP = 64, 2
"""Of a step of own games: credit comes from values, and games that begin alike show the same
positions."""

DUEL_TAU = 0.015
"""Teachers' values are less exact than the critic of the servers' Goofspiel."""

DUEL_NOTES = 0.5
"""Share of games with notes on the opponent: all of a match but the first."""

GATED_GAMES = 300
"""Held-out games of each game: the gate sees too little in fewer, see docs/duels.md. Where an
engine plays too slowly there are `LEAST_GATED`."""

LEAST_HELD_OUT = 20
"""Held-out games of a job on servers where an engine plays too slowly."""

TASK_DATASETS = {SWE: SWE_DATASET, INTERCODE: INTERCODE_DATASET}
"""Data sets for a single task. Mounted data take half of each step's replies, which other jobs
would waste."""

DUEL_EPISODE_SECONDS = 900.0
"""Gin rummy of random moves takes sixty turns of each side."""

RECORDED_PER_STEP = 32
"""Conversations of a step."""

RECORDED_TOKENS = 16384
"""Of a conversation; what comes later in it is left out. SWE-ZERO's have 9,000 on average."""

GIN_RUMMY_TOKENS = 28672
"""Of a game on servers: up to 23,000 at random, by SmolLM2's tokenizer, without retries."""

DECIDED = {
    "model.path": "--model names the base, below MINER_CACHE_DIR",
    "output.dir": "it follows from the job, below MINER_CHECKPOINTS_DIR",
    "run_dir": "it is beside the output, below MINER_CHECKPOINTS_DIR",
    "environment.servers": "ENVIRONMENT_SERVER_URLS names them",
}
"""Settings that other programs of the container share with the trainer, and where they come from.
"""

RECORDED_HELD_OUT = 100
"""Held-out conversations, three replies of each."""


def choose_games(job: Job) -> tuple[str, str]:
    """Names to train, "" if none can be, and the reason: all games of duels, else one.

    A job of other tasks alone learns the mounted data sets.
    """
    if not job.duels:
        return choose_game(job.environments)
    known = [name for name in job.environments if name in GAMES]
    others = [name for name in job.environments if name not in GAMES]
    if not known and learns_recorded(job):
        names = ", ".join(folder.name for folder in _without_games(job))
        return ", ".join(others), f"supervised, from {names}{_missing_swe(job)}"
    if not known:
        return "", f"none of them can be trained: {', '.join(others)}{_missing_swe(job)}"
    mounted = {each.name for each in _beside_games(job)}
    others = [name for name in others if dataset_folder(TASK_DATASETS.get(name, "")) not in mounted]
    left = f"; as the base plays them: {', '.join(others)}{_missing_swe(job)}" if others else ""
    sets = len(_beside_games(job))
    data = f"; with rows of {sets} mounted data sets" if sets else ""
    return ", ".join(known), f"duels{data}{left}"


def _beside_games(job: Job) -> list[Path]:
    """Mounted data sets but those of a single task that the job does not list."""
    useless = {
        dataset_folder(name) for task, name in TASK_DATASETS.items() if task not in job.environments
    }
    return [each for each in job.datasets if each.name not in useless]


def _without_games(job: Job) -> list[Path]:
    """Mounted data sets that a job without games learns: those of the tasks listed, since a larger
    one beside them would be most of every step; without their files, whatever else is there."""
    listed = {
        dataset_folder(name) for task, name in TASK_DATASETS.items() if task in job.environments
    }
    there = [*filter(has_rows, job.datasets)] or [*job.datasets]
    of_tasks = [each for each in there if each.name in listed]
    return of_tasks or [each for each in _beside_games(job) if each in there] or there


def learns_recorded(job: Job) -> bool:
    """Return whether a job has no game, but tasks that recorded conversations can teach."""
    tasks = {SWE, INTERCODE} & set(job.environments)
    return job.duels and bool(job.datasets and tasks) and not set(job.environments) & set(GAMES)


def _missing_swe(job: Job) -> str:
    """Data for the final's software tasks; empty where it is mounted or they are not listed."""
    mounted = {folder.name for folder in job.datasets}
    if SWE not in job.environments or dataset_folder(SWE_DATASET) in mounted:
        return ""
    return f" ({SWE} is learned from {SWE_DATASET} only: request it at the miner's endpoint)"


def choose_game(environments: Sequence[str]) -> tuple[str, str]:
    """The game to train, "" if none can be, and the reason: one run trains one game.

    Goofspiel first, for its credit was measured; else the first one known, as listed.
    """
    known = [name for name in environments if name in GAMES]
    if not known:
        return "", f"none of them can be trained: {', '.join(environments)}"
    if len(environments) == 1:
        return known[0], "the only game of the job"
    chosen = GOOFSPIEL if GOOFSPIEL in known else known[0]
    others = [name for name in known if name != chosen]
    unknown = [name for name in environments if name not in known]
    reasons = ["one run trains one game", f"not trained: {', '.join(others)}" if others else ""]
    reasons.append(f"not known, as the base plays them: {', '.join(unknown)}" if unknown else "")
    return chosen, "; ".join(filter(None, reasons))


class PlannedSettings:
    """The trainer's settings on any machine: of the job, a recipe and the user.

    Args:
        parameters: of the base model; they choose the recipe unless the user names one.

    Raises: `Failure` (ARGUMENTS) for settings or a recipe that are invalid.
    """

    def __init__(self, invocation: Invocation, parameters: int) -> None:
        job = invocation.job
        self._seconds = float(job.seconds)
        if learns_recorded(job):
            self._job_tree = _recorded_tree(job)
        else:
            self._job_tree = _duels_tree(job) if job.duels else _served_tree(job)
        try:
            self._by_hand = parse_overrides(invocation.overrides)
            for name, instead in DECIDED.items():
                if value_at(self._by_hand, name) is not None:
                    raise ConfigurationError(f"--set {name} cannot be used here: {instead}")
            channel = value_at(merged(self._job_tree, self._by_hand), "environment.channel")
            if channel == DUEL_CHANNEL:
                self._job_tree = merged(self._job_tree, _learning_tree(job))
            named = invocation.recipe
            self.recipe: Recipe = recipe_for(parameters) if named is None else recipe(named)
            self.settings = self._with({})
        except ConfigurationError as error:
            raise Failure(ExitStatus.ARGUMENTS, str(error)) from None

    def batch_shape(self) -> BatchShape:
        """Work of a step and of a run of the job's time, for the plan; passes are as large as fits
        unless the user sets less."""
        optimizer, environment = self.settings.optimizer, self.settings.environment
        evaluation, taught = self.settings.evaluation, self.settings.demonstrations
        bounded = "micro_batch_tokens" in optimizer.model_fields_set
        return BatchShape(
            groups=self.settings.rollout.groups_per_step,
            group_size=self.settings.rollout.group_size,
            episode_tokens=self.settings.rollout.max_episode_tokens or BatchShape.episode_tokens,
            pass_tokens=optimizer.micro_batch_tokens if bounded else BatchShape.pass_tokens,
            lora_rank=self.settings.model.lora_rank,
            servers=len(environment.servers) if FACTS[environment.channel].bounded else 0,
            work=workload(self.settings),
            mounted=learns_long_rows(self.settings),
            held_out=evaluation.episodes,
            least_held_out=self._least_held_out(),
            every_steps=evaluation.every_steps,
            most_steps=optimizer.max_steps,
            taught_share=taught.share,
            taught_rows=taught.rows,
            seconds=self._seconds,
        )

    def planned(
        self, paths: Paths, plan: RunPlan, topology: Topology, cpus: int, cost: RunCost
    ) -> Settings:
        """All settings for a plan. Raises: `Failure` (ARGUMENTS).

        Args:
            cost: of the run, from which the rhythm and length of evaluations follow unless the user
                sets them.
        """
        try:
            planned = _planned_tree(paths, plan, topology, cpus)
            seconds = round(cost.evaluation, 1)
            planned["evaluation"] = {"episodes": cost.episodes, "seconds": seconds}
            given, longest = self.settings.evaluation.max_reply_tokens, cost.reply_tokens
            shorter = self.settings.rollout.max_reply_tokens < longest
            if _graded_as_goofspiel(self.settings) and given is None and shorter:
                planned["evaluation"]["max_reply_tokens"] = longest
            if "every_steps" not in self._by_hand.get("evaluation", {}):
                planned["evaluation"] |= {
                    "every_steps": cost.every_steps,
                    "time_share": EVALUATION_SHARE,
                }
            wanted, batch = self.settings.rollout.max_episode_tokens, self.batch_shape()
            shortened = batch.mounted and topology.episode_tokens < batch.episode_tokens
            if topology.layout == "split" or wanted is not None or shortened:
                # else the trainer asks the model, whose engine is its own
                planned["rollout"]["max_episode_tokens"] = topology.episode_tokens
            # as many as the user wants, or the next number that the trainers divide
            return self._with(planned).having(rollout={"groups_per_step": topology.groups})
        except ConfigurationError as error:
            raise Failure(ExitStatus.ARGUMENTS, str(error)) from None

    def _least_held_out(self) -> int:
        """Held-out games where there is no time for all; as many as the user has set, if any."""
        if "episodes" in self._by_hand.get("evaluation", {}):
            return self.settings.evaluation.episodes
        environment = self.settings.environment
        duels = FACTS[environment.channel].duels
        return LEAST_GATED * len(set(environment.games)) if duels else LEAST_HELD_OUT

    def adapter_learning_rate(self) -> float:
        """Learning rate of adapters."""
        return self._with({"model": {"tuning": "lora"}}).optimizer.learning_rate

    def _with(self, planned: Tree) -> Settings:
        return Settings.resolve(self.recipe.under(merged(self._job_tree, planned, self._by_hand)))


def _served_tree(job: Job) -> Tree:
    """A job whose games are played on servers, or in process where it has none."""
    game = choose_game(job.environments)[0] or GOOFSPIEL
    tree: Tree = {"environment": {"name": game, "servers": list(job.servers)}}
    if not job.servers:  # the user may force another channel
        tree["environment"]["channel"] = BUILTIN_CHANNEL
    if game == "gin_rummy":
        tree["rollout"] = {"max_episode_tokens": GIN_RUMMY_TOKENS}
    return tree


def _graded_as_goofspiel(settings: Settings) -> bool:
    """Return whether held-out games are the first format's Goofspiel. Chats of longer games have no
    room for whole replies in `rollout.max_episode_tokens`."""
    environment = settings.environment
    return FACTS[environment.channel].first_format and environment.name == GOOFSPIEL


def _duels_tree(job: Job) -> Tree:
    """A job whose models will meet each other; its servers play in another form."""
    games = [name for name in job.environments if name in GAMES] or list(GAMES)
    return {
        "environment": {
            "name": games[0],
            "servers": list(job.servers),
            "channel": DUEL_CHANNEL,
            "games": games,
            "opponents": list(DUEL_OPPONENTS),
        },
        "rollout": {
            "max_reply_tokens": DUEL_REPLY_TOKENS,
            "episode_seconds": DUEL_EPISODE_SECONDS,
        },
        "reward": {"most_turns": DUEL_TURNS},
    }


def _learning_tree(job: Job) -> Tree:
    """Settings for learning duels: from teachers, and by a gate that has games enough to see."""
    games = [name for name in job.environments if name in GAMES] or list(GAMES)
    return {
        "environment": {"notes": DUEL_NOTES},
        "reward": {"credit": "all_moves", "entry": "", "tau": DUEL_TAU},
        "demonstrations": {
            "share": DUEL_WARM_START,
            "rows": DUEL_ROWS,
            "datasets": _beside_games(job),
        },
        "rollout": {"groups_per_step": DUEL_GROUPS, "group_size": DUEL_GROUP},
        "evaluation": {"episodes": GATED_GAMES * len(games)},
    }


def _recorded_tree(job: Job) -> Tree:
    """A job that learns mounted data alone. Nothing is sampled but replies that are evaluated."""
    datasets = _without_games(job)
    longest = RECORDED_TOKENS if others_than_intercode(datasets) else DUEL_TURN_TOKENS
    return {
        "environment": {"channel": RECORDED_CHANNEL, "datasets": datasets},
        "rollout": {
            "groups_per_step": RECORDED_PER_STEP // 2,
            "group_size": 2,
            "temperature": 1.0,
            "max_reply_tokens": SWE_REPLY_TOKENS if SWE in job.environments else DUEL_REPLY_TOKENS,
            "max_episode_tokens": longest,
            "episode_seconds": DUEL_EPISODE_SECONDS,
        },
        "reward": {"credit": "episode", "entry": ""},
        "evaluation": {"episodes": RECORDED_HELD_OUT},
    }


def _planned_tree(paths: Paths, plan: RunPlan, topology: Topology, cpus: int) -> Tree:
    tree: dict[str, Any] = {
        "run_dir": plan.train_dir,
        "model": {
            "path": paths.model_dir,
            "dtype": topology.dtype,
            "tuning": topology.tuning,
            "gradient_checkpointing": topology.checkpointing,
        },
        "output": {"dir": paths.output_dir, "take_over": True},
        "rollout": {},
        "optimizer": {
            "micro_batch_tokens": topology.pass_tokens,
            "zero_stage": topology.zero_stage,
        },
        "deadline": {"ends_at": plan.trainer_ends_at},
    }
    if topology.layout == "cpu":
        tree["threads"] = cpus
        return tree
    tree["token_records"] = 0  # written between a step's forward and its backward
    tree["rollout"]["live_episodes"] = topology.live_by_trainer
    if topology.layout == "split":
        server = f"http://127.0.0.1:{INFERENCE_PORT}"
        tree["rollout"] |= {"engine": "vllm_server", "server": server}
    elif topology.memory_share:
        tree["rollout"] |= {"engine": "vllm_colocated", "memory_share": topology.memory_share}
    return tree
