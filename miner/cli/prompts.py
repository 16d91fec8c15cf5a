"""`python -m miner prompts`: the tournament's own sentences, from a copy of its files."""

import shutil
from pathlib import Path
from typing import Annotated

import typer


def prompts_command(
    folder: Annotated[
        Path,
        typer.Option("--from", help="A clone of the tournament's repository, or a copy of it."),
    ],
    to: Annotated[Path, typer.Option(help="Where the copy goes that duels read.")] = Path(
        "tournament"
    ),
) -> None:
    """Copy the tournament's own files into this repository, unchanged, and read their sentences.

    They are not ours to ship: put them beside LICENSE and NOTICE and commit them. Without them
    duels are played with prompts in our own words, which are not what is graded.

    Example:
      python -m miner prompts --from ../G.O.D
    """
    from miner.duel.tournament_files import FILES, read_wording, tournament_files
    from miner.recorded import intercode_form
    from miner.rollout.base_templates import FILES as TEMPLATE_FILES
    from miner.rollout.base_templates import FOLDER as TEMPLATES

    wording = read_wording(folder)
    copied = {to / FILES[kind][0]: path for kind, path in tournament_files(folder).items()}
    others = [TEMPLATES / name for name in TEMPLATE_FILES] + [intercode_form.FILE]
    missing = [folder / name for name in others if not (folder / name).is_file()]
    copied |= {to / name: folder / name for name in others if folder / name not in missing}
    intercode_form.read_words(folder)
    for copy, path in copied.items():
        if not copy.exists() or not copy.samefile(path):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        print(f"{copy}: read")
    for path in missing:
        print(f"{path}: not found; our own words take its place")
    games = ", ".join(f"{name} {len(head):,}" for name, head in wording.heads.items())
    print(f"characters of rules: {games}")
    print(f"duels now use {to}: commit it beside LICENSE and NOTICE")
