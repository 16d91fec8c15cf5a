"""One evaluation from request to files: opens policy and source, plays, prints, writes.

Files in the output folder: `{name}.json` (every episode with every reply), `{name}.csv` (the score
of each seed), `evaluations.jsonl`
(one summary per evaluation, appended), `evaluation.png` and `.svg` (all of them), `replays/`.
Evaluations of one name that were played in different ways get different names.
"""

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import typer
from pydantic import ValidationError
from rich.columns import Columns
from rich.console import Console
from rich.markup import escape

from miner.channels.registry import channel_class, make_channel
from miner.cli.stoppable import run_stoppable
from miner.config.channel_facts import FACTS
from miner.config.contract import is_game
from miner.config.errors import ConfigurationError
from miner.config.evaluation_run import EvaluationRun
from miner.config.out_folder import check_out
from miner.config.statuses import TrainerStatus
from miner.evaluation.llm_url import LlmUrlPolicy
from miner.evaluation.policies import BaselinePolicy, Policy, PolicyError
from miner.evaluation.results import EvaluationResult
from miner.evaluation.runner import GRADER_CONCURRENCY, GRADER_TIMEOUT_S, Rules, evaluate
from miner.games import GAMES
from miner.reporting.figures import evaluation_figure
from miner.reporting.page import table_evaluations, write_replay
from miner.reporting.progress import EvaluationProgress, print_line
from miner.reporting.records import EvaluationRecord, Replay
from miner.reporting.run_folder import RunFolder
from miner.reporting.style import save_figure
from miner.reporting.tables import evaluation_tables, print_scores
from miner.rewards.luck import without_luck
from miner.rollout.model_folder import check_model_folder

IN_PROCESS_CONCURRENCY = 64
BASE = "base"
_LONGEST = 100
"""Characters of a path in a file's name."""


def rules_of(run: EvaluationRun) -> Rules:
    """The grader's limits, relaxed for a model in this process, except on the grader's servers.

    Its clock is that of the first format alone: no other environment has a grader with one.
    """
    facts = FACTS[run.channel]
    served = bool(run.environment.servers) and facts.asks_servers and facts.first_format
    in_process = run.llm_url is None and not served
    return Rules(
        concurrency=run.concurrency
        or (IN_PROCESS_CONCURRENCY if in_process else GRADER_CONCURRENCY),
        timeout_s=GRADER_TIMEOUT_S if facts.first_format and not in_process else None,
    )


def run_evaluation(run: EvaluationRun, console: Console | None = None) -> bool:
    """Evaluate, print and write; returns whether the score means anything.

    It does not when no episode counted, or when the policy failed in every one. Interrupted, it
    writes the episodes that were over and ends with `INTERRUPTED`.
    Raises: `EnvironmentFault` for settings that cannot work and servers that cannot be used.
    """
    console = console or Console()
    check_out(run.out)
    RunFolder(run.out).read()  # what cannot be added to is refused before hours of play
    with _policy(run) as policy:
        try:
            result, replays, wanted = run_stoppable(_play(run, policy, console))
        except PolicyError as error:
            raise ConfigurationError(str(error)) from error
    if run.name:
        result = result.model_copy(update={"policy": run.name})
    failed = result.unplayed
    if failed == result.episodes:
        console.print(
            f"[bold red]No score:[/] all {len(failed)} episodes failed; the first one with:"
        )
        print_line(console, failed[0].message)
        return False
    folder = RunFolder(run.out)
    record = _record(run, result)
    earlier = folder.read().evaluations
    base, note = _base_result(folder, earlier, record)
    label = distinct_name(record, earlier)
    over = len(result.episodes)
    if over < wanted:  # without it, it would take the place of the whole evaluation
        label += f", {over} of {wanted}"
    result = result.model_copy(update={"policy": label})
    record = _write(run, folder, result, replays, base)
    _print(run, result, record, console)
    if note:
        print_line(console, note)
    if over < wanted:
        print_line(console, f"interrupted: {over} of {wanted} episodes were over")
        raise typer.Exit(TrainerStatus.INTERRUPTED)
    return True


@contextmanager
def _policy(run: EvaluationRun) -> Iterator[Policy]:
    if run.policy:
        yield BaselinePolicy(run.policy)
    elif run.llm_url:
        url, _, model = run.llm_url.partition("#")
        yield LlmUrlPolicy(url, model or None, temperature=run.temperature)
    else:
        assert run.folder is not None
        check_model_folder(run.folder)
        import torch  # takes seconds

        from miner.evaluation.model import model_policy

        if run.threads:
            torch.set_num_threads(run.threads)

        with model_policy(
            run.folder,
            name=run.name or str(run.folder),
            temperature=run.temperature,
            max_reply_tokens=run.reply_tokens,
            max_sessions=rules_of(run).concurrency,
            dtype=run.dtype,
            served=FACTS[run.environment.channel].served_dtype,
        ) as policy:
            yield policy


async def _play(
    run: EvaluationRun, policy: Policy, console: Console
) -> tuple[EvaluationResult, list[Replay], int]:
    """All episodes, those to show as a replay, and how many were wanted."""
    environment = run.environment.model_copy(update={"channel": run.channel})
    channel = make_channel(environment, run.folder)
    tasks = channel.compared(run.episodes, run.base_seed)
    source = await channel.open()
    try:
        if described := channel.described(source):
            print_line(console, described)
        if isinstance(policy, LlmUrlPolicy):
            await policy.connect()
        rules = rules_of(run)
        with EvaluationProgress(
            len(tasks), run.name or policy.name, at_once=rules.concurrency, console=console
        ) as bar:
            result = await evaluate(policy, source, tasks, rules, bar.update, interruptible=True)
        rate = source.applied_rate
        if rate is not None and rate < 1.0:
            console.print(
                f"[yellow]The servers applied only {rate:.0%} of the actions as "
                "asked:[/] this is not the grader's score. Set environment.channel=graded or "
                "builtin.",
                highlight=False,
                soft_wrap=True,
            )
        failed = partial(print_line, console)
        replays = await channel.replays(source, result, run.replays, failed)
        return result, replays, len(tasks)
    finally:
        await source.close()
        await policy.close()


def _write(
    run: EvaluationRun,
    folder: RunFolder,
    result: EvaluationResult,
    replays: Sequence[Replay],
    base: EvaluationResult | None,
) -> EvaluationRecord:
    """Everything on disk; returns the summary, compared with `base`."""
    record = _record(run, result, base)
    record = record.model_copy(update={"without_luck": without_luck(result)})
    folder.evaluations.append(record)
    listed = folder.read()
    slug = _stem(result.policy, listed.evaluations)
    (run.out / f"{slug}.json").write_text(result.model_dump_json(indent=1))
    (run.out / f"{slug}.csv").write_text(result.by_seed())
    figure = evaluation_figure(table_evaluations(listed))
    for suffix in ("png", "svg"):
        save_figure(figure, run.out / f"evaluation.{suffix}")
    for number, replay in enumerate(replays, start=1):
        replay = replay.model_copy(update={"policy": result.policy})
        name = f"{slug}-{number}"
        folder.add_replay(name, replay)
        write_replay(run.out, name, replay)
    return record


def _record(
    run: EvaluationRun, result: EvaluationResult, base: EvaluationResult | None = None
) -> EvaluationRecord:
    split = channel_class(run.channel).split
    record = EvaluationRecord.of(result, split=split, time=time.time(), base=base)
    played = run.environment
    if FACTS[run.channel].duels:
        drawn = {size for game in played.games for size in GAMES[game].duel_sizes}
        sizes = (str(size) for size in (*played.cards, *played.boards) if size in drawn)
        record = record.model_copy(update={"sizes": tuple(sizes)})
    return record


def _base_result(
    folder: RunFolder, earlier: Sequence[EvaluationRecord], record: EvaluationRecord
) -> tuple[EvaluationResult | None, str]:
    """The base model's, played as `record` was; None for the base itself, or without one.

    Returns: that, and why one that is listed cannot be read.
    """
    alike = [
        other
        for other in earlier
        if _is_base(other.name) and other.step is None and played_alike(record, other)
    ]
    if _is_base(record.name) or not alike:
        return None, ""
    # of those that fit best the longest, as one may have been interrupted, and of these the newest
    base = max(
        reversed(alike),
        key=lambda other: (not _differences(record, other), other.score.n if other.score else 0),
    )
    path = folder.path / f"{_stem(base.name, earlier)}.json"
    if not path.exists():  # earlier versions let names of the same letters share a file
        path = folder.path / f"{_slug(base.name)}.json"
    try:
        result = EvaluationResult.model_validate_json(path.read_bytes())
        if result.policy == base.name:
            return result, ""
        why = f"but of {result.policy}"
    except (OSError, ValidationError) as error:
        why = type(error).__name__
    return None, (
        f"not compared with the base: {path} is no evaluation of it ({why}); "
        "evaluate the base again"
    )


def _is_base(name: str) -> bool:
    """Part of a name after a comma: how it was played."""
    return name.partition(", ")[0] == BASE


def _print(
    run: EvaluationRun,
    result: EvaluationResult,
    record: EvaluationRecord,
    console: Console,
) -> None:
    assert record.score is not None
    temperature = "" if not result.temperature else f", temperature {result.temperature:g}"
    console.print(
        f"[bold]{escape(result.policy)} {record.score.mean:.3f}[/]  95% interval "
        f"{record.score.low:.3f} to {record.score.high:.3f}  {record.score.n} episodes over "
        f"{result.channel}{temperature}, {result.seconds:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    if record.without_luck:
        print_line(console, f"without the luck of the draws {record.without_luck}")
    console.print(Columns(evaluation_tables(record), padding=(0, 4)))
    for game, score in (record.games if record.by_game or record.by_opponent else {}).items():
        met = record.by_opponent.get(game, {}).items()
        against = ", ".join(f"{part.mean:.2f} against {opponent}" for opponent, part in met)
        print_line(console, f"{game.rpartition(':')[2]}: {score}" + f" ({against})" * bool(met))
    for fault, count in result.faults.items():
        print_line(console, f"{count} games forfeited: {fault}")
    unread, illegal = result.parse_failures, result.illegal_replies
    invalid = f"{unread:,} parse failures, {illegal:,} illegal"
    if not is_game(result.environment):
        invalid = f"{unread + illegal:,} not valid"
    print_line(console, f"replies {result.replies:,}: {invalid}")
    for kind, count in result.failures().items():
        first = next(episode for episode in result.episodes if episode.failure == kind)
        fate = "excluded" if first.score is None else "scored 0"
        way_out = " (with a lower concurrency each has more time)" if kind == "timeout" else ""
        print_line(
            console,
            f"{count} episodes {fate}: {kind.replace('_', ' ')}, such as: {first.message}{way_out}",
        )
    compared = table_evaluations(RunFolder(run.out).read())
    print_scores(console, compared)
    print_line(console, f"written to {run.out}")


def _stem(name: str, listed: Sequence[EvaluationRecord]) -> str:
    """The stem of `name`'s files; the first of several `listed` with the same letters is plain."""
    slug = _slug(name)
    alike = (other.name for other in listed if other.step is None and _slug(other.name) == slug)
    return slug if next(alike, name) == name else _hashed(slug, name)


def _slug(name: str) -> str:
    """The letters of `name`; where that is a path, others with the same ones have another."""
    slug = re.sub(r"[\W_]+", "-", name).strip("-") or "policy"
    return _hashed(slug, name) if "/" in name else slug


def _hashed(slug: str, name: str) -> str:
    return f"{slug[-_LONGEST:].lstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def distinct_name(record: EvaluationRecord, earlier: Sequence[EvaluationRecord]) -> str:
    """The record's name, with how it was played where an earlier one of that name was not so.

    What counts is the channel, the temperature, games, opponents and sizes. The same
    evaluation done again gets the same name again, so that it replaces its older self. Training's
    own evaluations, which have a step, are of other episodes and come into no table with these.

    Args:
        earlier: evaluations in the same folder.
    """
    namesakes = [other for other in earlier if other.name == record.name and other.step is None]
    if not namesakes:
        return record.name
    return ", ".join([record.name, *_differences(record, namesakes[-1])])


def played_alike(record: EvaluationRecord, other: EvaluationRecord) -> bool:
    """Return whether two scores may be subtracted, as far as their episodes are the same."""
    if record.opponents and other.opponents and {*record.opponents}.isdisjoint(other.opponents):
        return False
    return not _games(record).isdisjoint(_games(other)) and _way(record)[:2] == _way(other)[:2]


def _differences(record: EvaluationRecord, other: EvaluationRecord) -> list[str]:
    """Parts of `record`'s way that `other` has otherwise."""
    pairs = zip(_way(record), _way(other), strict=True)
    return [way for way, others in pairs if others and way != others]


def _way(record: EvaluationRecord) -> tuple[str, ...]:
    temperature = 0.0 if record.temperature is None else record.temperature
    cards = "+".join(map(str, sorted(record.by_deck_size)))
    return (
        f"over {record.channel}",
        f"temperature {temperature:g}",
        "+".join(sorted(game.rpartition(":")[2] for game in _games(record))),
        f"against {'+'.join(record.opponents)}" if record.opponents else "",  # earlier versions
        f"{cards} cards",
        f"sizes {'+'.join(record.sizes)}" if record.sizes else "",
    )


def _games(record: EvaluationRecord) -> set[str]:
    return set(record.by_game) or {record.environment}
