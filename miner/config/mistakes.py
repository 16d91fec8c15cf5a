"""Explanation of mistakes in settings, in sentences that name each and the way out."""

import difflib
from collections.abc import Sequence

from pydantic import ValidationError

_LISTED = "`miner settings` lists them all"


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
            sentences.append(f"setting {key!r} does not exist: {_hint(key, names)}")
        elif problem["type"] in ("tuple_type", "list_type"):
            given = problem["input"]
            value = f'"{given}"' if isinstance(given, str) else given
            sentences.append(f"setting {key!r} is a list: write {key}='[{value}]'")
        elif problem["type"] == "model_type":
            sentences.append(f"{key!r} is a section: write {key}.NAME=VALUE ({_LISTED})")
        elif problem["type"] == "literal_error":
            allowed = problem["ctx"]["expected"]
            sentences.append(f"setting {key!r} cannot be {problem['input']!r}: choose {allowed}")
        else:
            message = problem["msg"][0].lower() + problem["msg"][1:]
            text = problem["type"] in ("path_type", "string_type") and key in names
            quoted = f"; as a text write {key}='\"{problem['input']}\"'" if text else ""
            sentences.append(f"setting {key!r} cannot be {problem['input']!r}: {message}{quoted}")
    return "; ".join(sentences)


def _hint(key: str, names: Sequence[str]) -> str:
    sections = {name.rpartition(".")[0] for name in names if "." in name}
    near = difflib.get_close_matches(key, [*sections, *names], n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else _LISTED
