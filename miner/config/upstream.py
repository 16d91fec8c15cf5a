"""Facts read from a clone of the tournament's repository, whose files are parsed and never run.

Invariant: a reader returns the file's value, or raises `Unreadable` with a sentence about it;
nothing is guessed.
"""

import ast
import json
from collections.abc import Callable, Mapping
from operator import add, mul, sub
from pathlib import Path
from typing import Any

from miner.config.errors import ConfigurationError

Reader = Callable[[Path], Any]
"""A file of the clone -> a value of JSON's kinds. Raises: `Unreadable`."""

_SIGNS: Mapping[type, Callable[[Any, Any], Any]] = {ast.Add: add, ast.Sub: sub, ast.Mult: mul}


class Unreadable(ConfigurationError):
    """A file of a clone does not hold a fact in a form that is known here."""


class Source:
    """A Python file as a tree, of which literals are read. Raises: `Unreadable`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            tree = ast.parse(_text(path))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise Unreadable(f"{path} is not Python: {error}") from None
        self.nodes = list(ast.walk(tree))
        self._assigned: dict[str, ast.expr] = {}
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._assigned[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._assigned[name] = value

    def definition(self, name: str) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef:
        """The class or function of this name."""
        for node in self.nodes:
            if (
                isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name == name
            ):
                return node
        raise Unreadable(f"{self.path} defines no {name}")

    def constant(self, name: str, *users: str) -> Any:
        """The value that `name` is set to, of literals and other constants; `users` need it."""
        if name not in self._assigned or name in users:
            raise Unreadable(f"{self.path} sets no {name}")

        def fold(node: ast.expr | None) -> Any:
            match node:
                case ast.Constant(value=value):
                    return value
                case ast.Name(id=other):
                    return self.constant(other, name, *users)
                case ast.Attribute(attr=member):
                    return member
                case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                    return [fold(item) for item in items]
                case ast.Dict(keys=keys, values=values):
                    return {fold(key): fold(value) for key, value in zip(keys, values, strict=True)}
                case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
                    a, b = fold(left), fold(right)
                    if isinstance(a, int | float) and isinstance(b, int | float):
                        return _SIGNS[type(sign)](a, b)
            shown = ast.unparse(self._assigned[name])
            raise Unreadable(f"{self.path} sets {name} to more than literals: {shown}")

        return fold(self._assigned[name])


def constant(name: str) -> Reader:
    """The value of a constant."""
    return lambda path: Source(path).constant(name)


def enum_values(name: str) -> Reader:
    """The values of an enumeration's members, in order."""
    return lambda path: [
        ast.literal_eval(line.value)
        for line in Source(path).definition(name).body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
    ]


def fields(name: str) -> Reader:
    """The annotated fields of a class, by name."""
    return lambda path: {
        ast.unparse(line.target): ast.unparse(line.annotation)
        for line in Source(path).definition(name).body
        if isinstance(line, ast.AnnAssign)
    }


def default_of(variable: str) -> Reader:
    """The default that an environment variable is read with."""

    def read(path: Path) -> Any:
        for node in Source(path).nodes:
            match node:
                case ast.Call(args=[ast.Constant(value=found), ast.Constant(value=default)]) if (
                    found == variable
                ):
                    return default
        raise Unreadable(f"{path} reads no {variable} with a default")

    return read


def flags_in(function: str) -> Reader:
    """The options that a function puts into the first list of words that holds any."""

    def read(path: Path) -> list[str]:
        for part in ast.walk(Source(path).definition(function)):
            if isinstance(part, ast.List):
                words = (w.value for w in part.elts if isinstance(w, ast.Constant))
                found = [w for w in words if isinstance(w, str) and w.startswith("--")]
                if found:
                    return found
        raise Unreadable(f"{path}: the function {function} has no list of options")

    return read


def json_file(path: Path) -> Any:
    """The whole file."""
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise Unreadable(f"{path} is not JSON: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path} cannot be read: {error}") from None
