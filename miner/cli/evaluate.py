"""`python -m miner evaluate`: how good a model or a baseline is, by the grader's rules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from miner.config.contract import (
    GRADER_BASE_SEED,
    GRADER_EPISODES,
    SERVERS_VARIABLE,
)
from miner.config.errors import ConfigurationError
from miner.config.settings import Channel

BUILTIN = "builtin"

BaselineName = Literal["random", "match", "highest", "lowest"]

_WHO = "Who plays (choose one)"
_WHERE = "Where"
_RULES = "Rules"


ModelOption = Annotated[Path | None, typer.Option(help="Model folder.", rich_help_panel=_WHO)]
Baseline = Annotated[
    BaselineName | None,
    typer.Option(help="A baseline; match bids the prize's value.", rich_help_panel=_WHO),
]
LlmUrl = Annotated[
    str | None,
    typer.Option(
        help="An OpenAI-compatible endpoint (OPENAI_API_KEY is used if set).",
        rich_help_panel=_WHO,
    ),
]
LlmModel = Annotated[
    str | None,
    typer.Option(help="Model to ask the endpoint for; default: its first.", rich_help_panel=_WHO),
]
Name = Annotated[str | None, typer.Option(help="Label of the results, such as base or trained.")]
Episodes = Annotated[int, typer.Option(min=1, max=100_000, help="Episodes to play.")]
BaseSeed = Annotated[int, typer.Option(help="Seed of the list; the grader's is 42.")]
Game = Annotated[str, typer.Option(help="Game.")]
Sizes = Annotated[str | None, typer.Option(help="Goofspiel: only these deck sizes, such as 8,10.")]
EnvUrls = Annotated[
    list[str] | None,
    typer.Option(
        help="Environment server; repeat for more. Default: ENVIRONMENT_SERVER_URLS, else builtin, "
        "which plays in this process.",
        rich_help_panel=_WHERE,
    ),
]
ChannelOption = Annotated[
    Channel | None,
    typer.Option(
        help="How servers are played with. Default: graded, the grader's own path. In this "
        "process: duel, today's tournament; own and code_agent, held-out tasks. openenv: held-out "
        "seeds on an OpenEnv server.",
        rich_help_panel=_WHERE,
    ),
]
Games = Annotated[
    str | None,
    typer.Option(
        help="Duels: games with commas between them. Default: all six.", rich_help_panel=_WHERE
    ),
]
Opponent = Annotated[
    str,
    typer.Option(
        help="Duels: random, mcts:50, strong, a model folder, ...", rich_help_panel=_WHERE
    ),
]
Entry = Annotated[
    str, typer.Option(help="--channel own: your class, guess.py:Guess.", rich_help_panel=_WHERE)
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Of own, code_agent and openenv, as for training: environment.openenv.max_turns=1.",
        rich_help_panel=_WHERE,
    ),
]
Temperature = Annotated[
    float, typer.Option(min=0, help="The grader's is 0; 1 samples as a model does by itself.")
]
Dtype = Annotated[
    Literal["float32", "float16", "bfloat16"] | None,
    typer.Option(
        help="What --model computes in. Default: as graded on a GPU (bfloat16 in duels, else "
        "float16); float32 on a CPU.",
        rich_help_panel=_RULES,
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Episodes at once. Default: the grader's 4; 64 in this process.",
        rich_help_panel=_RULES,
    ),
]
MaxReplyTokens = Annotated[
    int,
    typer.Option(
        min=1, help="Longest reply of --model (the grader has no limit).", rich_help_panel=_RULES
    ),
]
Replays = Annotated[int, typer.Option(min=0, help="Games to keep for looking at.")]
Out = Annotated[
    Path, typer.Option(help="Folder for JSON and pictures; several evaluations may share it.")
]


def evaluate_command(
    model: ModelOption = None,
    policy: Baseline = None,
    llm_url: LlmUrl = None,
    llm_model: LlmModel = None,
    name: Name = None,
    episodes: Episodes = GRADER_EPISODES,
    base_seed: BaseSeed = GRADER_BASE_SEED,
    environment: Game = "goofspiel",
    sizes: Sizes = None,
    env_url: EnvUrls = None,
    channel: ChannelOption = None,
    games: Games = None,
    opponent: Opponent = "random",
    entry: Entry = "",
    setting: Setting = None,
    temperature: Temperature = 0.0,
    dtype: Dtype = None,
    concurrency: Concurrency = None,
    max_reply_tokens: MaxReplyTokens = 256,
    replays: Replays = 2,
    out: Out = Path("runs/evaluate"),
) -> None:
    """Play the grader's episodes and print the score with its 95% interval.

    Evaluations that share --out are compared in one table and one picture.

    Examples:
      python -m miner evaluate --policy match
      python -m miner evaluate --model runs/train/output --name trained --out runs/compare
      python -m miner evaluate --llm-url http://localhost:30000/v1 --env-url http://localhost:8000
      python -m miner evaluate --model MODEL --channel duel --games othello,clobber
    """
    from miner.cli.evaluation_session import EvaluationRequest, run_evaluation

    _check_one_plays(model, policy, llm_url)
    request = EvaluationRequest(
        model=model,
        baseline=policy,
        llm_url=llm_url,
        llm_model=llm_model,
        name=name,
        episodes=episodes,
        base_seed=base_seed,
        environment=environment,
        sizes=_sizes(sizes),
        servers=server_urls(env_url or []),
        channel=channel,
        games=games,
        opponent=opponent,
        temperature=temperature,
        dtype=dtype,
        entry=entry,
        settings=tuple(setting or ()),
        concurrency=concurrency,
        max_reply_tokens=max_reply_tokens,
        replays=replays,
        out=out,
    )
    raise typer.Exit(0 if run_evaluation(request) else 1)


def _check_one_plays(*players: object) -> None:
    given = sum(player is not None for player in players)
    if given != 1:
        raise ConfigurationError(
            f"{given} of --model, --policy and --llm-url are given: name exactly one, "
            "such as --policy match"
        )


def server_urls(given: list[str]) -> tuple[str, ...]:
    """Environment servers: those given, else those of ENVIRONMENT_SERVER_URLS, else none.

    "builtin" stands for none. Raises: `ConfigurationError` for what is no URL.
    """
    from miner.environments.servers import check_server_urls, parse_server_urls

    if BUILTIN in given:
        if set(given) != {BUILTIN}:
            raise ConfigurationError(
                f"--env-url {BUILTIN} plays in this process: it cannot be combined with servers"
            )
        return ()
    if given:
        return check_server_urls(given)
    listed = os.environ.get(SERVERS_VARIABLE, "")
    return parse_server_urls(listed) if listed.strip() else ()


def _sizes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words):
        raise ConfigurationError(f"--sizes {text!r} is no list of deck sizes: write it like 8,10")
    return tuple(dict.fromkeys(map(int, words)))
