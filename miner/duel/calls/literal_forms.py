"""Forms whose calls look like Python's with literals for arguments: olmo, lfm2."""

import ast
import json
import warnings
from collections.abc import Sequence
from typing import Any

from miner.duel.calls.found import Call, Found, Offered, as_json, between
from miner.duel.calls.json_forms import calls_in

_OLMO, _OLMO_END = "<function_calls>", "</function_calls>"
_LFM2, _LFM2_END = "<|tool_call_start|>", "<|tool_call_end|>"
_LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}
"""Characters that JSON leaves as they are, and at which vLLM's parser ends a line."""
_JSON_NAMES = {"true": True, "false": False, "null": None}


def parse_olmo(text: str, offered: Offered) -> list[Found]:
    """The first block, one call a line; anything else in it, or no end tag, loses all calls."""
    block = next(between(text, _OLMO, _OLMO_END), "")
    return [_call(statement) for statement in _parsed(block.strip())]


def parse_lfm2(text: str, offered: Offered) -> list[Found]:
    """Blocks, each a list of calls or of JSON objects. Skipped: a block that is neither, a call of
    anything but keywords and literals."""
    calls: list[Found] = []
    for block in map(str.strip, between(text, _LFM2, _LFM2_END)):
        if block.startswith(("[{", "{")):
            calls += _json_calls(block)
            continue
        for node in _listed(block):
            try:
                calls.append(_call(node))
            except (ValueError, TypeError):
                continue
    return calls


def write_olmo(calls: Sequence[Call]) -> str:
    """A line for each call, values as in JSON."""
    lines = "\n".join(
        f"{name}({', '.join(f'{key}={as_json(value)}' for key, value in arguments.items())})"
        for name, arguments in calls
    )
    return f"{_OLMO}{lines.translate(_LINE_ENDS)}{_OLMO_END}"


def write_lfm2(calls: Sequence[Call]) -> str:
    """One list, values as in Python; objects as in JSON."""
    listed = ", ".join(
        f"{name}({', '.join(f'{key}={_python(value)}' for key, value in arguments.items())})"
        for name, arguments in calls
    )
    return f"{_LFM2}[{listed}]{_LFM2_END}"


def _json_calls(block: str) -> list[Found]:
    try:
        return list(calls_in(json.loads(block)))
    except json.JSONDecodeError:
        return []


def _listed(block: str) -> list[ast.expr]:
    """The elements of a list of calls, or the one call."""
    try:
        body = _parsed(block)
    except (SyntaxError, ValueError):
        return []
    nodes = body[0].elts if body and isinstance(body[0], ast.List) else body[:1]
    return nodes if all(isinstance(node, ast.Call) for node in nodes) else []


def _parsed(source: str) -> list[ast.expr]:
    """The expressions of a text of nothing else. Raises: `SyntaxError`, `ValueError`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of escapes in what a model wrote
        statements = ast.parse(source).body
    if not all(isinstance(statement, ast.Expr) for statement in statements):
        raise ValueError("no expression")
    return [statement.value for statement in statements if isinstance(statement, ast.Expr)]


def _call(node: ast.AST) -> Found:
    """Name and arguments of a call of keywords only. Raises: `ValueError`, `TypeError`."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call of keywords")
    if not isinstance(node.func, ast.Name):  # of another kind none is offered
        raise ValueError("no name of a tool")
    if any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("no keyword")
    arguments = {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    json.dumps(arguments)  # bytes, complex numbers and ... are no arguments
    return node.func.id, arguments


def _literal(node: ast.AST | None) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_literal(k): _literal(v) for k, v in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _literal(operand)
            if isinstance(value, int | float):
                return -value if isinstance(sign, ast.USub) else value
    raise ValueError("no literal")


def _python(value: Any) -> str:
    return as_json(value) if isinstance(value, dict) else repr(value)
