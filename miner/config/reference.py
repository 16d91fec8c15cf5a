"""The settings reference: a table of every setting, from where each is declared."""

from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from miner.config.evaluation_run import EvaluationRun
from miner.config.section import setting_fields
from miner.config.settings import Settings

_HEAD = """# Settings

Every setting of a run, as `KEY=VALUE` on the command line or in a TOML file (`--config`). An empty
default is not set: the meaning has what applies then. Made by `python -m miner settings`.
"""
_COLUMNS = "\n| setting | default | values | meaning |\n|---|---|---|---|\n"


def settings_reference() -> str:
    """The reference as Markdown: name, default, range or choices, and meaning of each setting."""
    tables = {"run": ""}
    for name, field in setting_fields(Settings).items():
        section, dot, _ = name.partition(".")
        title = section if dot else "run"
        tables[title] = tables.get(title, "") + _row(name, field)
    tables["only for `miner evaluate`"] = "".join(
        _row(name, field)
        for name, field in EvaluationRun.model_fields.items()
        if name not in Settings.model_fields
    )
    return _HEAD + "".join(f"\n## {title}\n{_COLUMNS}{rows}" for title, rows in tables.items())


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
                bounds.append(f"{sign} {limit:.10g}")
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
