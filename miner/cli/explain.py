"""`python -m miner explain`: of one step every token, and what its loss was made of."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

from miner.config.errors import ConfigurationError
from miner.reporting.run_folder import RunFolder, check_run_dir
from miner.reporting.token_records import RowTokens, StepTokens, TokenRecords, reward_of, step_loss
from miner.rewards.advantages import EPSILON, differences_by_round, returns_to_go

OVERVIEW_HEAD = 3
"""Lines of an overview before those of its episodes."""

SHOWN = 50
"""Characters at each end of a masked part."""

_HEAD = f"    {'token':<20}{'sampled':>9}{'learned':>10}{'ratio':>8}{'advantage':>11}"


def explain_command(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder of a run.")],
    step: Annotated[int | None, typer.Option(min=1, help="Default: the newest.")] = None,
    episode: Annotated[
        int | None, typer.Option(min=0, help="Its tokens; without it, a line for each episode.")
    ] = None,
) -> None:
    """Explain a training step: every token, its advantage, and what that was made of.

    The newest steps are kept (setting token_records): each token's text, mask, row and tree, its
    log-probability when sampled and when learned. The loss is recomputed from them.

    Example:
      python -m miner explain runs/train --step 40 --episode 3
    """
    typer.echo(explanation(run_dir, step, episode))


def explanation(run_dir: Path, step: int | None, episode: int | None) -> str:
    """The text. Raises: `ConfigurationError` for a step or an episode that is not recorded."""
    check_run_dir(run_dir)
    records = TokenRecords(run_dir)
    if step is None:
        step = next(reversed(records.steps()), None)
    if step is None:
        raise ConfigurationError(
            f"{run_dir} has records of no step's tokens: train with token_records above 0"
        )
    parts = records.of(step)
    if episode is None:
        logged = [each for each in RunFolder(run_dir).steps.read()[0] if each.step == step]
        loss = logged[-1].metrics.get("loss", math.nan) if logged else math.nan
        return "\n".join(_overview(parts, loss))
    numbered = [(part, number) for part in parts for number in range(len(part.episodes))]
    if episode >= len(numbered):
        raise ConfigurationError(f"step {step} has episodes 0 to {len(numbered) - 1}")
    part, number = numbered[episode]
    head = f"step {step}, episode {episode}: {_described(part, number, episode)}"
    return "\n".join([head, *_credit(part, number), *_tokens(part, number)])


def _overview(parts: Sequence[StepTokens], logged: float) -> Iterator[str]:
    rows = [row for part in parts for row in part.rows]
    trees = len({row.tree for row in rows if row.tree >= 0})
    loss = step_loss(parts)
    yield (
        f"step {parts[0].step}: {sum(len(part.episodes) for part in parts)} episodes, {len(rows)} "
        f"rows in {trees} trees, {sum(len(row.at) for row in rows):,} tokens with loss"
    )
    same = math.isclose(loss, logged, rel_tol=1e-3, abs_tol=1e-5)
    why = "" if same or math.isnan(logged) else " (the model adds its own loss)"
    yield f"loss from this record {loss:.6f}, as it was logged {logged:.6f}{why}"
    yield "episode  reward  score  advantages of sampled tokens  rows"
    first = 0
    for part in parts:
        for number in range(len(part.episodes)):
            own = [row for row in part.rows if row.episode == number]
            values = [float(a) for row in own if row.weight is None for a in row.advantages]
            about = part.episodes[number]
            reward = f"{reward_of(about['parts']):6.2f}  {about['score']:5.2f}" if about else "-"
            span = f"{min(values):+.3f} to {max(values):+.3f}" if values else "none"
            game = _described(part, number, first + number)
            yield f"{first + number:7}  {reward:13}  {span:>28}  {len(own):4}  {game}"
        first += len(part.episodes)


def _described(part: StepTokens, number: int, episode: int) -> str:
    """Task and group of the episode that has a number in its part and one in the step."""
    about = part.episodes[number]
    group = episode // part.rules["group_size"]
    return f"{about['task'] if about else 'lost, or demonstrations'} (group {group})"


def _credit(part: StepTokens, number: int) -> Iterator[str]:
    """Parts of the advantages of the episode's sampled tokens."""
    about, rules = part.episodes[number], part.rules
    if about is None:
        return
    without = {
        "own": "  advantages are those of the function that reward.entry names",
        "all_moves": "  sampled tokens have no advantage: all legal replies are taught, below",
    }
    if rules["credit"] in without:
        yield without[rules["credit"]]
        return
    size = rules["group_size"]
    place = number % size
    group = [each["parts"] if each else None for each in part.episodes[number - place :][:size]]
    turns = about["parts"]
    if rules["credit"] == "episode":
        rewards = [reward_of(each) for each in group if each]
        reward, mean = reward_of(turns), fmean(rewards)
        deviation = stdev(rewards) if len(rewards) > 1 else 0.0
        score = about["score"]
        yield f"  reward {reward:+.3f} = score {score:+.3f}, penalties {reward - score:+.3f}"
        yield "  rewards of its group: " + " ".join(f"{each:.2f}" for each in rewards)
        yield (
            f"  advantage {(reward - mean) / (deviation + EPSILON):+.4f} = (reward - their mean "
            f"{mean:.3f}) / their deviation {deviation:.3f}"
        )
        return
    by_turn: list[Any] = [
        [(turn[0], sum(turn[1:])) for turn in each] if each else None for each in group
    ]
    differences, deviation = differences_by_round(by_turn)
    returns = returns_to_go([reward for _, reward in by_turn[place]])
    for turn, (played, value, apart) in enumerate(
        zip(turns, returns, differences[place], strict=True)
    ):
        score, penalty = played[1:]
        yield (
            f"  turn {turn} (round {played[0]}): reward {sum(played[1:]):+.3f} = score {score:+.3f}"
            f", penalty {penalty:+.3f}"
        )
        yield (
            f"    advantage {apart / (deviation + EPSILON):+.4f} = (return {value:+.3f} - the "
            f"round's mean {value - apart:+.3f}) / deviation {deviation:.3f}"
        )


def _tokens(part: StepTokens, number: int) -> Iterator[str]:
    """The episode's rows, token by token; masked parts in a line each."""
    for place, row in enumerate(part.rows):
        if row.episode != number:
            continue
        tree = f"tree {row.tree}" if row.tree >= 0 else "not computed: no token has an advantage"
        yield f"row {place}, {tree}{_unsampled(part, row)}"
        yield _masked(part, "prompt", row.ids[: row.prompt].tolist())
        yield from _completion(part, row)


def _unsampled(part: StepTokens, row: RowTokens) -> str:
    if row.weight is None:
        return ""
    if part.rules["by_policy"]:
        return f", not sampled: advantage {row.weight:+.3f}, times its probability"
    return f", not sampled: target {row.weight:.3f} of this reply"


def _completion(part: StepTokens, row: RowTokens) -> Iterator[str]:
    at = {offset: index for index, offset in enumerate(row.at.tolist())}
    factors = part.factor(row)
    completion = row.ids[row.prompt :].tolist()
    turns = row.turns.tolist()

    def key(offset: int) -> tuple[bool, int]:
        return offset in at, turns[offset]

    for (learned, turn), some in groupby(range(len(completion)), key):
        if not learned:
            why = "environment and template" if turn < 0 else f"turn {turn}: by most_turns"
            yield _masked(part, why, [completion[offset] for offset in some])
            continue
        yield _HEAD + (f"  turn {turn}" if turn >= 0 else "")
        for offset in some:
            one = at[offset]
            text = repr(part.texts[completion[offset]])[:19]
            yield (
                f"    {text:<20}{row.sampled[one]:9.4f}{row.learned[one]:10.4f}"
                f"{factors[one]:8.4f}{row.advantages[one]:+11.4f}"
            )


def _masked(part: StepTokens, why: str, ids: Sequence[int]) -> str:
    text = "".join(part.texts[token] for token in ids)
    short = text if len(text) <= 2 * SHOWN else f"{text[:SHOWN]} ... {text[-SHOWN:]}"
    return f"    masked, {why}, {len(ids)} tokens: {short!r}"
