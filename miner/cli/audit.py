"""`python -m miner audit`: check for a learning signal before hours are spent."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from miner.config.channel_facts import FACTS
from miner.config.contract import is_game
from miner.config.errors import ConfigurationError, base_folder
from miner.config.settings import Settings
from miner.environments import InfrastructureError
from miner.evaluation.audit import NO_PLAY, Audit, FixedPolicy
from miner.games import GAMES, RANDOM

_TASKS = 32
"""At least, for policies that cost nothing."""


def audit_command(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, as for train.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
    groups: Annotated[int, typer.Option(min=1, help="Groups that the base plays.")] = 8,
) -> None:
    """Find out what this base gets in this environment, and what the environment rewards.

    Plays groups of episodes with the base at its sampling temperature, and the same tasks with
    random play, the best known play, and replies that hold no play: empty, constant, an echo, an
    instruction to the grader.

    Example:
      python -m miner audit model.path=MODEL environment.channel=builtin
    """
    settings = Settings.load(config, overrides or ())
    channel = settings.environment.channel
    if FACTS[channel].supervised:
        raise ConfigurationError(
            f"environment.channel={channel} is learned, not played: there is no reward to audit"
        )
    base_folder(settings.model.path)
    console = Console()
    found = run_audit(settings, groups, console)
    table = Table("policy", "score [95% interval]", "episodes", box=SIMPLE_HEAD, pad_edge=False)
    for result in (found.base, *found.others):
        table.add_row(
            result.policy, str(result.score).replace("[", "\\["), str(len(result.episodes))
        )
    console.print(table)
    fates = ", ".join(f"{name} {share:.0%}" for name, share in found.fates.items())
    seconds = found.base.seconds / len(found.base.episodes)
    for line in (
        f"replies of the base: {fates}",
        f"groups with signal: {found.with_signal:.0%} of {groups}",
        f"mean score {found.base.score.mean if found.base.score else 0:.3f}, "
        f"mean reward {found.mean_reward:.3f}",
        f"an episode: {found.reply_tokens:.0f} sampled tokens, {seconds:.2f} s where many are "
        "played at once",
        *found.findings(settings.episodes_per_step, settings.deadline.seconds),
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def run_audit(settings: Settings, groups: int, console: Console) -> Audit:
    """Play everything. Raises: `ConfigurationError`, `InfrastructureError` as training does."""
    from miner.background_loop import BackgroundLoop
    from miner.distributed.ranks import Ranks
    from miner.evaluation.model import model_policy
    from miner.evaluation.policies import BaselinePolicy, Policy
    from miner.evaluation.runner import Rules, evaluate
    from miner.rollout.model_folder import load_chat
    from miner.training.episodes import task_stream, training_source

    assert settings.model.path is not None
    size, rollout = settings.rollout.group_size, settings.rollout
    stream = task_stream(settings.environment)
    tasks = [stream.training(number, settings.seed) for number in range(max(groups, _TASKS))]
    with TemporaryDirectory() as folder, BackgroundLoop() as loop:
        aside = settings.model_copy(update={"run_dir": Path(folder)})
        with training_source(aside, loop, console, Ranks()) as source:
            rules = Rules(concurrency=source.capacity, timeout_s=rollout.episode_seconds)
            policies: list[Policy] = [FixedPolicy(name) for name in NO_PLAY]
            if is_game(tasks[0].environment):
                policies.append(BaselinePolicy(RANDOM))
            if game := GAMES.get(tasks[0].environment):
                policies += [BaselinePolicy(best) for best in list(game.policies)[:1]]
            others = [loop.run(evaluate(policy, source, tasks, rules)) for policy in policies]
            with model_policy(
                settings.model.path,
                name="base, sampled",
                temperature=rollout.temperature,
                max_reply_tokens=rollout.max_reply_tokens,
                max_sessions=min(source.capacity, groups * size),
            ) as policy:
                played = [task for task in tasks[:groups] for _ in range(size)]
                base = loop.run(evaluate(policy, source, played, rules))
    if base.unplayed == base.episodes:
        first = base.episodes[0]
        lost = first.failure == "infrastructure"
        kind = InfrastructureError if lost else ConfigurationError
        raise kind(f"no episode of the base could be played; the first one: {first.message}")
    tokenizer = load_chat(settings.model.path).tokenizer
    replies = [reply.text for episode in base.episodes for reply in episode.replies]
    tokens = sum(len(tokenizer.encode(text, add_special_tokens=False)) + 1 for text in replies)
    return Audit(
        base=base,
        others=[each for each in others if any(e.failure != "policy" for e in each.episodes)],
        group_size=size,
        penalty=settings.reward.invalid_reply_penalty,
        reply_tokens=tokens / len(base.episodes),
    )
