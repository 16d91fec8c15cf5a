"""Count the small defects that the tests notice: mutmut on the packages that results depend on.

    make mutants                                        # rewards whole, a sample of the others
    .venv/bin/python scripts/mutants.py rollout=all training=50 --seed 1

A sample is drawn with the seed from all mutants of a package. Works on a copy of the tree in
.cache/mutants/PACKAGE, where `survivors.txt` lists those that no test noticed; docs/mutants.md
keeps the results. mutmut changes functions, one place at a time, and runs the tests that reach the
function within their own process: code that only runs in a process of a test is not tested.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = "60"


@dataclass(frozen=True)
class Package:
    """Files to change, and the tests that should notice; slow files of tests are left out."""

    code: str
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()


PACKAGES = {
    "rewards": Package("miner/rewards/*.py", ("tests/rewards",)),
    "rollout": Package("miner/rollout/*.py", ("tests/rollout",), ("tests/rollout/test_outage.py",)),
    "publishing": Package("miner/publishing/*.py", ("tests/publishing",)),
    "training": Package("miner/training/*.py", ("tests/training", "tests/inference")),
    "learning": Package("miner/learning/*.py", ("tests/learning", "tests/training")),
    "inference": Package("miner/inference/*.py", ("tests/inference",)),
    "duel": Package("miner/duel/*.py", ("tests/duel",)),
    "entrypoint": Package(
        "entrypoint/*.py",
        ("tests/entrypoint",),
        (
            "tests/entrypoint/test_two_programs.py",
            "tests/entrypoint/test_supervised_run.py",
        ),
    ),
}

LOGS = ("logger.", "_log.", "logging.")

KILLED, SURVIVED, UNREACHED = {1, 3}, {0}, {5, 33}
"""mutmut's exit statuses; every other one is a mutant that hung or ended the process."""


def main() -> None:
    """Run the packages named, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "packages",
        nargs="*",
        metavar="PACKAGE=COUNT",
        help=f"COUNT or all mutants of {', '.join(PACKAGES)} (rewards=all, others={SAMPLE})",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args()
    wanted = options.packages or [
        f"{name}={'all' if name == 'rewards' else SAMPLE}" for name in PACKAGES
    ]
    print(
        "| package | mutants | tried | killed | hung or broken | survived | unreached | noticed |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for text in wanted:
        name, _, count = text.partition("=")
        if name not in PACKAGES or not (count.isdecimal() or count == "all"):
            parser.error(f"{text!r} is not one of {', '.join(PACKAGES)} and a count, or all")
        print(row(name, count, options.seed, options.processes), flush=True)


def row(name: str, count: str, seed: int, processes: int) -> str:
    """Try `count` mutants of a package; its line of the table."""
    folder = ROOT / ".cache" / "mutants" / name
    prepare(folder, PACKAGES[name])
    log = folder / "mutmut.log"
    mutmut(folder, log, processes, ["no.such.mutant"])  # makes them, and finds out who tests what
    names = sorted(mutant for mutant in statuses(folder) if not only_wording(folder, mutant))
    if not names:
        sys.exit(f"mutants: mutmut made none of {name}: see {log}")
    tried = (
        names if count == "all" else random.Random(seed).sample(names, min(int(count), len(names)))
    )
    found_out = folder / "mutants" / "mutmut-stats.json"
    if not found_out.exists():
        sys.exit(
            f"mutants: the tests of {name} fail as it is: run {' '.join(PACKAGES[name].tests)}"
        )
    reached = json.loads(found_out.read_text())
    tested = {key for key, tests in reached["tests_by_mangled_function_name"].items() if tests}
    reachable = [mutant for mutant in tried if mutant.rpartition("__mutmut_")[0] in tested]
    if reachable:
        mutmut(folder, log, processes, reachable)
    found = statuses(folder)
    missing = [mutant for mutant in reachable if found[mutant] is None]
    if missing:
        sys.exit(f"mutants: {len(missing)} mutants of {name} have no result: see {log}")
    unreached = sorted(set(tried) - set(reachable))
    survived = [mutant for mutant in reachable if found[mutant] in SURVIVED]
    unreached += [mutant for mutant in reachable if found[mutant] in UNREACHED]
    killed = sum(found[mutant] in KILLED for mutant in reachable)
    hung = len(tried) - killed - len(survived) - len(unreached)
    (folder / "survivors.txt").write_text(
        "\n".join(
            f"{mutant} ({word})\n{difference(folder, mutant)}\n"
            for word, mutants in (("survived", survived), ("unreached", unreached))
            for mutant in sorted(mutants)
        )
    )
    numbers = (len(names), len(tried), killed, hung, len(survived), len(unreached))
    share = (killed + hung) / len(tried)
    return f"| {name} | {' | '.join(f'{number:,}' for number in numbers)} | {share:.0%} |"


def prepare(folder: Path, package: Package) -> None:
    """A copy of the tree with mutmut's settings for one package."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    others = set()
    for file in listed.stdout.rstrip("\0").split("\0"):
        if (ROOT / file).is_file():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
            others.add(file.split("/")[0])
    shared = ROOT.parent / "shared"
    if shared.exists():
        (folder / "shared").symlink_to(shared)
    others -= {"miner", "mock_env_server", "entrypoint", "tests", "pyproject.toml"}
    settings = {
        "source_paths": ["miner", "mock_env_server", "entrypoint"],
        "only_mutate": [package.code],
        "also_copy": sorted(others),
        "pytest_add_cli_args_test_selection": list(package.tests),
        "pytest_add_cli_args": [
            *("-n0", "-p", "no:cacheprovider", "-m", "not long"),
            *(f"--ignore={file}" for file in package.without),
        ],
        "process_isolation": ["forkserver"],
        "timeout_constant": ["6"],  # seconds, times 15: a loaded machine is no endless loop
        "track_dependencies": ["false"],
        "use_git_change_detection": ["false"],
    }
    lines = [
        f"{key}=\n    " + "\n    ".join(values)
        if key.endswith("s") or len(values) > 1
        else f"{key}={values[0]}"
        for key, values in settings.items()
    ]
    (folder / "setup.cfg").write_text("[mutmut]\n" + "\n".join(lines) + "\n")


def mutmut(folder: Path, log: Path, processes: int, mutants: Sequence[str]) -> None:
    """`mutmut run` on these; its exit status means nothing, `statuses` counts."""
    program = [sys.executable, "-m", "mutmut", "run", "--max-children", str(processes), *mutants]
    with log.open("a") as sink:
        subprocess.run(
            program,
            cwd=folder,
            check=False,
            stdout=sink,
            stderr=sink,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def statuses(folder: Path) -> dict[str, int | None]:
    """mutmut's exit status of every mutant, None for one that was not tried."""
    found: dict[str, int | None] = {}
    for file in (folder / "mutants").rglob("*.meta"):
        found |= json.loads(file.read_text())["exit_code_by_key"]
    return found


def difference(folder: Path, mutant: str) -> str:
    """The changed lines of one mutant."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant  # installed by `make mutants`

    source = source_of(folder, mutant.rpartition(".")[0])
    lines = get_diff_for_mutant(mutant, source, path="").splitlines()[2:]
    return "\n".join(f"    {line}" for line in lines if line[0] in "+-")


def source_of(folder: Path, module: str) -> str:
    """The text of a module, or of a package's `__init__`, with its mutants."""
    path = folder / "mutants" / module.replace(".", "/")
    file = path.with_suffix(".py")
    return (file if file.is_file() else path / "__init__.py").read_text()


def only_wording(folder: Path, mutant: str) -> bool:
    """Return whether a mutant changes nothing but the text of an error or what goes to a log."""
    module, _, function = mutant.rpartition(".")
    shapes = shapes_of(source_of(folder, module))
    return shapes[function] == shapes[f"{function.rpartition('__mutmut_')[0]}__mutmut_orig"]


@cache
def shapes_of(source: str) -> dict[str, str]:
    """The code of each function without its name and the texts of its errors and logs."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "__mutmut_" in node.name:
            name, node.name = node.name, ""
            for inner in ast.walk(node):
                if isinstance(inner, ast.Raise) and isinstance(inner.exc, ast.Call):
                    inner.exc.args = [a for a in inner.exc.args if not is_text(a)]
                elif isinstance(inner, ast.Expr) and ast.unparse(inner).startswith(LOGS):
                    inner.value = ast.Constant(None)
            found[name] = ast.dump(node)
    return found


def is_text(argument: ast.expr) -> bool:
    """Return whether an error's argument is its message, or the None that a mutant puts there."""
    constant = isinstance(argument, ast.Constant) and (
        argument.value is None or isinstance(argument.value, str)
    )
    return constant or isinstance(argument, ast.JoinedStr | ast.BinOp)


if __name__ == "__main__":
    main()
