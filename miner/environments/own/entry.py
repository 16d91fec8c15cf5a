"""From an entry, such as `environment.entry`, to the class or function it names.

Invariant: any mistake in the entry is one sentence, before anything is trained.
"""

import hashlib
import importlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from miner.config.errors import ConfigurationError
from miner.environments.own.slow_calls import SlowCalls
from miner.environments.own.text_environment import TextEnvironment

EXPECTED = "name a class as guess.py:Guess, or as package.module:Guess"
METHODS = {
    "reset": "def reset(self, seed: int) -> str",
    "step": "def step(self, reply: str) -> Step",
}
Kind = TypeVar("Kind")


def number_of(value: Any) -> float | None:
    """A number of Python, numpy or torch as a float; None for what is none, and for NaN."""
    if isinstance(value, str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return None if math.isnan(number) else number


def load_entry(entry: str) -> type[TextEnvironment]:
    """The class that `entry` names; without `:Class`, the only one of its file.

    Raises: `ConfigurationError` for one that cannot be imported or used.
    """
    if not entry.partition(":")[0]:
        raise ConfigurationError(
            f"environment.entry is {entry!r}: {EXPECTED} (python -m miner new-environment NAME "
            "writes one to begin with)"
        )
    return _checked(load_class(entry, TextEnvironment, METHODS))


def load_class(
    entry: str, base: type[Kind], methods: Mapping[str, str], setting: str = "environment.entry"
) -> type[Kind]:
    """The subclass of `base` that `entry` names; without `:Class`, the only one of its file.

    Args:
        methods: names of those that it has to have, each with an example of its signature.
        setting: named in errors.

    Raises: `ConfigurationError` for one that cannot be imported, lacks a method, has senseless
        `problems` or cannot be made.
    """
    place, _, name = entry.partition(":")
    module = imported(place, entry, setting)
    there = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == module.__name__
    ]
    kind, names = base.__name__, ", ".join(each.__name__ for each in there) or "none"
    if not name and len(there) != 1:
        raise ConfigurationError(
            f"{setting} {entry!r} names no class, and there is not one {kind} in it but {names}: "
            f"{EXPECTED}"
        )
    found = getattr(module, name, None) if name else there[0]
    if found is None:
        raise ConfigurationError(
            f"{setting} {entry!r}: there is no {name!r} in {place} ({kind} in it: {names})"
        )
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigurationError(
            f"{setting} {entry!r} is no {kind}: write class {name}({kind}), with {kind} from "
            f"{base.__module__.rpartition('.')[0]}"
        )
    _check_made(found, entry, base, methods, setting)
    return found


def _check_made(
    found: type, entry: str, base: type, methods: Mapping[str, str], setting: str
) -> None:
    """Raises: `ConfigurationError`, see `load_class`."""
    for method, example in methods.items():
        if getattr(found, method) is getattr(base, method):
            raise ConfigurationError(
                f"{setting} {entry!r}: {found.__name__} has no {method}: write {example}"
            )
    count = getattr(found, "problems", None)
    if count is not None and (not isinstance(count, int) or count < 2):
        raise ConfigurationError(
            f"{found.__name__}.problems is {count!r}: expected 2 or more, of which some are held "
            "out, or None"
        )
    try:
        found()
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"{found.__name__}() cannot be made: {type(error).__name__}: {error}; it is made "
            "without arguments"
        ) from error


def imported(place: str, entry: str, setting: str = "environment.entry") -> ModuleType:
    """The module that `place` names, a file or a module; `setting` is named in errors.

    Raises: `ConfigurationError` with the line that cannot be imported.
    """
    try:
        if place.endswith(".py"):
            return _from_file(Path(place).resolve(), entry, setting)
        return importlib.import_module(place)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"{setting} {entry!r} cannot be imported: {with_place(error)}"
        ) from error


def load_function(
    entry: str, setting: str, expected: str, convert: Callable[[Any], Any] = lambda found: found
) -> Callable[..., Any]:
    """The function that `entry` names as FILE.py:NAME or package.module:NAME.

    Args:
        expected: its arguments behind the name that counts where `entry` has none.
        convert: makes the returned function's value of its own, such as a list of a generator.

    The returned function warns where it takes long.

    Raises: `ConfigurationError`; the returned function does for any error of its own or `convert`.
    """
    place, _, name = entry.partition(":")
    default, _, arguments = expected.removesuffix(")").partition("(")
    function = getattr(imported(place, entry, setting), name or default, None)
    if not callable(function):
        raise ConfigurationError(
            f"{setting} {entry!r}: there is no function {name or default!r} in {place}"
        )
    try:  # a decorator may pass the function that it wraps more
        inspect.signature(function, follow_wrapped=False).bind(*arguments.split(", "))
    except ValueError:
        pass  # of Python's own functions not all show theirs
    except TypeError as error:
        raise ConfigurationError(
            f"{setting} {entry!r} takes other arguments than it is given ({error}): write def "
            f"{name or default}({arguments})"
        ) from error
    own: Callable[..., Any] = function

    slow = SlowCalls(f"{setting} {entry!r}")

    def called(*given: Any) -> Any:
        try:
            with slow:
                return convert(own(*given))
        except (Exception, SystemExit) as error:
            raise ConfigurationError(f"{setting} {entry!r} raised {with_place(error)}") from error

    return called


def with_place(error: BaseException) -> str:
    """Type, text, file and line of what custom code raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"


def _from_file(path: Path, entry: str, setting: str) -> ModuleType:
    """The module in `path`, imported once for each content; it can import modules beside it."""
    if not path.is_file():
        raise ConfigurationError(f"{setting} {entry!r}: there is no file {path}")
    digest = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:8]
    name = f"{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _checked(found: type[TextEnvironment]) -> type[TextEnvironment]:
    """Raises: `ConfigurationError` for a class with senseless numbers."""
    if not isinstance(found.max_turns, int) or found.max_turns < 1:
        raise ConfigurationError(
            f"{found.__name__}.max_turns is {found.max_turns!r}: an episode has one reply at least"
        )
    if not isinstance(found.seconds, int | float) or not found.seconds > 0:
        raise ConfigurationError(
            f"{found.__name__}.seconds is {found.seconds!r}: expected the longest time of a method"
        )
    try:
        low, high = found.score_range
        sound = math.isfinite(low) and math.isfinite(high) and low < high
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise ConfigurationError(
            f"{found.__name__}.score_range is {found.score_range!r}: expected (lowest, highest), "
            "such as (0, 10)"
        )
    if not isinstance(found.system, str):
        raise ConfigurationError(f"{found.__name__}.system is {found.system!r}: expected a text")
    for name in ("stop", "replies"):
        texts = getattr(found, name)
        sound = isinstance(texts, tuple | list) and all(isinstance(text, str) for text in texts)
        if not sound:
            raise ConfigurationError(
                f"{found.__name__}.{name} is {texts!r}: expected a tuple of texts, such as "
                '("</answer>",)'
            )
    return found
