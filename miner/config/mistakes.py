"""Explanation of mistakes in settings, in sentences that name each and the way out."""

import difflib
from collections.abc import Sequence

from pydantic import ValidationError

GONE = {
    "demonstrations.named": "it is 'reward.named' now",
    "demonstrations.notes": "it is 'environment.notes' now, of own games too",
    "evaluation.seconds_apart": "evaluation.time_share bounds their time now, as it is measured",
    "model.lora_layers": "it is 'model.last_layers' now, of full fine-tuning too",
    "optimizer.schedule": "the rate is constant until the last optimizer.decay_share of the run",
    "reward.decay": "nothing is earned before the end of an episode but penalties",
    "reward.results": "with credit = all_moves sampled turns have no advantages of their own",
    "reward.shaping": "reward.credit='all_moves' knows more of each turn",
    "rollout.weights": "weights reach vLLM's server by a file in run_dir",
}
"""Settings of earlier versions, and what to do about them."""


def explained(error: ValidationError, names: Sequence[str]) -> str:
    """A sentence for each mistake; `names` are the known settings."""
    sentences = []
    inner = {problem["loc"][:-1] for problem in error.errors()}
    for problem in error.errors():
        if problem["type"] == "too_short" and problem["loc"] in inner and problem["input"]:
            continue  # its entries are invalid, so that none is left
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "value_error":  # a rule of ours; it names settings itself
            sentences.append(problem["msg"].removeprefix("Value error, "))
            continue
        if problem["type"] == "extra_forbidden":
            if key in GONE:
                sentences.append(f"setting {key!r} is gone: {GONE[key]}")
                continue
            sentences.append(f"setting {key!r} does not exist: {_hint(key, names)}")
        elif problem["type"] in ("tuple_type", "list_type"):
            given = problem["input"]
            value = f'"{given}"' if isinstance(given, str) else given
            sentences.append(f"setting {key!r} is a list: write {key}='[{value}]'")
        elif problem["type"] == "literal_error":
            allowed = problem["ctx"]["expected"]
            sentences.append(f"setting {key!r} cannot be {problem['input']!r}: choose {allowed}")
        else:
            message = problem["msg"][0].lower() + problem["msg"][1:]
            sentences.append(f"setting {key!r} cannot be {problem['input']!r}: {message}")
    return "; ".join(sentences)


def _hint(key: str, names: Sequence[str]) -> str:
    sections = {name.rpartition(".")[0] for name in names if "." in name}
    near = difflib.get_close_matches(key, [*sections, *names], n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else "`miner settings` lists them all"
