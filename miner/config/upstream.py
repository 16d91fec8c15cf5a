"""Facts read from a clone of the tournament's repository, whose files are parsed and never run.

Invariant: a reader returns the file's value, or raises `Unreadable` with a sentence about it;
nothing is guessed.
"""

import ast
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from miner.config.errors import ConfigurationError

Reader = Callable[[Path], Any]
"""A file of the clone -> a value of JSON's kinds. Raises: `Unreadable`."""


class Unreadable(ConfigurationError):
    """A file of a clone does not hold a fact in a form that is known here."""


def constant(name: str) -> Reader:
    """The value that `name` is set to, of literals and other constants of the file."""
    return lambda path: _folded(path, _assigned(path), name)


def enum_values(name: str) -> Reader:
    """The values of an enumeration's members, in order."""
    return lambda path: [
        ast.literal_eval(line.value)
        for line in _class(path, name).body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
    ]


def fields(name: str) -> Reader:
    """The annotated fields of a class, by name."""
    return lambda path: {
        ast.unparse(line.target): ast.unparse(line.annotation)
        for line in _class(path, name).body
        if isinstance(line, ast.AnnAssign)
    }


def default_of(variable: str) -> Reader:
    """The default that an environment variable is read with."""

    def read(path: Path) -> Any:
        for node in ast.walk(_tree(path)):
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
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
                for part in ast.walk(node):
                    if isinstance(part, ast.List):
                        words = (w.value for w in part.elts if isinstance(w, ast.Constant))
                        found = [w for w in words if isinstance(w, str) and w.startswith("--")]
                        if found:
                            return found
        raise Unreadable(f"{path} has no function {function} with a list of options")

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


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"{path} is not Python: {error}") from None


def _class(path: Path, name: str) -> ast.ClassDef:
    for node in _tree(path).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise Unreadable(f"{path} has no class {name}")


def _assigned(path: Path) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in _tree(path).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = value
    return found


def _folded(path: Path, constants: Mapping[str, ast.expr], name: str) -> Any:
    if name not in constants:
        raise Unreadable(f"{path} sets no {name}")
    others = {other: value for other, value in constants.items() if other != name}

    def fold(node: ast.expr | None) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=other):
                return _folded(path, others, other)
            case ast.Attribute(attr=member):
                return member
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [fold(item) for item in items]
            case ast.Dict(keys=keys, values=values):
                return {fold(key): fold(value) for key, value in zip(keys, values, strict=True)}
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as sign, right=right):
                a, b = fold(left), fold(right)
                if isinstance(a, int | float) and isinstance(b, int | float):
                    return (
                        a + b
                        if isinstance(sign, ast.Add)
                        else (a - b if isinstance(sign, ast.Sub) else a * b)
                    )
        raise Unreadable(
            f"{path} sets {name} to more than literals: {ast.unparse(constants[name])}"
        )

    return fold(constants[name])
