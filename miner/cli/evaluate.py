"""`python -m miner evaluate`: score a model or a baseline by the grader's rules."""

from pathlib import Path
from typing import Annotated

import typer

from miner.config.evaluation_run import EvaluationRun, refuse_unread


def evaluate_command(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings: policy, llm_url, name, episodes, base_seed, temperature, dtype, "
            "concurrency, max_reply_tokens, replays, out, model.path and environment.*. "
            "`miner settings` explains each.",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.")] = None,
) -> None:
    """Play the grader's episodes and print the score with its 95% interval.

    Evaluations that share a folder (out) are compared in one table and one picture.

    Examples:
      python -m miner evaluate policy=match
      python -m miner evaluate model.path=OUT name=trained out=runs/compare
      python -m miner evaluate llm_url=http://localhost:30000/v1
      python -m miner evaluate model.path=MODEL environment.channel=duel environment.games=othello
    """
    from miner.cli.evaluation_session import run_evaluation

    refuse_unread(overrides or ())
    run = EvaluationRun.load(config, overrides or ())
    raise typer.Exit(0 if run_evaluation(run) else 1)
