"""The settings reference: a table of every setting, from where each is declared."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from miner.config.evaluation_run import EvaluationRun
from miner.config.settings import Settings

_HEAD = """# Settings

Every setting of a run, as `KEY=VALUE` on the command line or in a TOML file (`--config`). An empty
default is not set: the meaning has what applies then. Made by `python -m miner settings`.
"""
_COLUMNS = "\n| setting | default | values | meaning |\n|---|---|---|---|\n"


def settings_reference() -> str:
    """The reference as Markdown: name, default, range or choices, and meaning of each setting."""
    parts = [_HEAD, "\n## run\n", _COLUMNS]
    sections = []
    for name, field in Settings.model_fields.items():
        section = _section(field)
        if section is None:
            parts.append(_row(name, field))
        else:
            sections.append((name, section))
    for name, section in sections:
        parts += [f"\n## {name}\n", _COLUMNS, *_rows(section, f"{name}.")]
    parts += ["\n## only for `miner evaluate`\n", _COLUMNS]
    for name, field in EvaluationRun.model_fields.items():
        if name not in Settings.model_fields:
            parts.append(_row(name, field))
    return "".join(parts)


def _rows(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = _section(field)
        if inner is None:
            yield _row(prefix + name, field)
        else:
            yield from _rows(inner, f"{prefix}{name}.")


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _row(name: str, field: FieldInfo) -> str:
    cells = (f"`{name}`", _default(field.default), _values(field), field.description or "")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _default(value: Any) -> str:
    if value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        shown = ", ".join(f'"{part}"' if isinstance(part, str) else str(part) for part in value)
        return f"`[{shown}]`"
    return f"`{value}`"


def _values(field: FieldInfo) -> str:
    """Choices, or the type with its bounds."""
    choices = [repr(choice) for choice in _choices(field.annotation)]
    if choices:
        listed = get_origin(field.annotation) is tuple
        return ("list of " if listed else "") + ", ".join(choices).replace("'", "")
    bounds = []
    for bound in field.metadata:
        for sign, attribute in ((">=", "ge"), (">", "gt"), ("<=", "le"), ("<", "lt")):
            limit = getattr(bound, attribute, None)
            if limit is not None:
                bounds.append(f"{sign} {limit:g}")
    return " ".join([_type(field.annotation), *bounds])


def _choices(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(choice for part in get_args(kind) for choice in _choices(part))


def _type(kind: Any) -> str:
    names = {int: "integer", float: "number", str: "text", bool: "true, false", dict: "table"}
    origin = get_origin(kind)
    if origin is tuple:
        inner = _type(get_args(kind)[0])
        count = 0 if Ellipsis in get_args(kind) else len(get_args(kind))
        return f"list of {count} {inner}s" if count else f"list of {inner}"
    if origin is not None and origin is not dict:
        parts = [_type(part) for part in get_args(kind) if part is not type(None)]
        return " or ".join(parts)
    return names.get(origin or kind, "path")
