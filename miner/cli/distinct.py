"""`python -m miner distinct`: compare two submissions as the tournament does.

Invariants:
* equal means what the tournament's first two tiers compare: the commit, or the files' text without
  indentation, blank lines, runs of spaces and whole-line comments;
* a difference of shape is one that renaming, other numbers or texts, comments and moving a function
  to another file cannot make: what the tournament's review counts as a difference.
"""

import ast
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from miner.config.errors import ConfigurationError

Shapes = dict[str, str]
"""By the place of a function or class (`file: name`), its code without names and values."""


def distinct_command(
    other: Annotated[Path, typer.Argument(help="A clone of another submission.")],
    own: Annotated[Path, typer.Option(help="This submission.")] = Path(),
) -> None:
    """Compare this submission with another as the tournament's check for duplicates does.

    Lists the functions and classes of each that the other has under no name. Ends with 1 if the two
    are equal after normalising, or differ in names, numbers, texts and comments only.

    Example:
      python -m miner distinct ../other-miner
    """
    ours, theirs = _files(own), _files(other)
    if (commit := _commit(own)) and commit == _commit(other):
        print(f"equal: both are commit {commit}")
        raise typer.Exit(1)
    if _normalised(own, ours) == _normalised(other, theirs):
        print("equal: the same text after normalising, which is out before round 1")
        raise typer.Exit(1)
    here, there = _shapes(own, ours), _shapes(other, theirs)
    for words, some, others in (("here", here, there), ("there", there, here)):
        known = set(others.values())
        only = [place for place, shape in some.items() if shape not in known]
        print(f"only {words}: {len(only)} of {len(some)} functions and classes")
        for place in only:
            print(f"  {place}")
    if set(here.values()) == set(there.values()):
        print("not distinct: they differ in names, numbers, texts and comments only")
        raise typer.Exit(1)


def _files(root: Path) -> list[str]:
    """Names of the tracked files, or of all files where there is no history; sorted.

    Raises: `ConfigurationError` for a folder without Python files.
    """
    if (root / ".git").exists():
        names = [name for name in _git(root, "ls-files", "-z").split("\0") if name]
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    if not any(name.endswith(".py") for name in names):
        raise ConfigurationError(f"{root} holds no Python files: name a clone of a submission")
    return sorted(name for name in names if (root / name).is_file())


def _commit(root: Path) -> str:
    return _git(root, "rev-parse", "HEAD").strip() if (root / ".git").exists() else ""


def _normalised(root: Path, names: list[str]) -> dict[str, list[str]]:
    return {
        name: [
            " ".join(line.split())
            for line in (root / name).read_text(errors="replace").splitlines()
            if line.strip() and not line.strip().startswith("#")
        ]
        for name in names
    }


def _shapes(root: Path, names: list[str]) -> Shapes:
    """Raises: `ConfigurationError` naming a file that is not Python."""
    found: Shapes = {}
    for name in names:
        if name.endswith(".py"):
            try:
                tree = ast.parse((root / name).read_text(errors="replace"))
            except (SyntaxError, ValueError) as error:
                raise ConfigurationError(f"{root / name} is not Python: {error}") from error
            found |= {f"{name}: {place}": shape for place, shape in _parts(tree)}
    return found


def _parts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and shape of each function, and of each class without its methods."""
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        above, node = stack.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            place = f"{above}{child.name}"
            if isinstance(child, ast.ClassDef):
                stack.append((f"{place}.", child))
                fields = (line for line in child.body if not isinstance(line, ast.FunctionDef))
                child = ast.ClassDef(child.name, child.bases, [], list(fields), [])
            yield place, _shape(child)


def _shape(node: ast.AST) -> str:
    """The kinds of the nodes, nested, without names, values, imports and lone texts."""
    inner = (
        _shape(child)
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, ast.Import | ast.ImportFrom | ast.expr_context)
        and not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant))
    )
    return f"{type(node).__name__}({','.join(inner)})"


def _git(root: Path, *words: str) -> str:
    if shutil.which("git") is None:
        raise ConfigurationError("git is not installed: install it")
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigurationError(f"git cannot read {root}: {done.stderr.strip()}")
    return done.stdout
