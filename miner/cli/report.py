"""`python -m miner report`: one page about a run, to open in a browser."""

from pathlib import Path
from typing import Annotated

import typer


def report_command(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Folder of a training run or evaluation.")
    ],
) -> None:
    """Write RUN_DIR/report.html with curve, scores, replays and warnings, and print the scores.

    It may be run at any time, also during the run.
    """
    from rich.console import Console

    from miner.reporting.page import table_evaluations, write_report
    from miner.reporting.progress import print_line
    from miner.reporting.run_folder import RunFolder, check_run_dir
    from miner.reporting.run_warnings import run_warnings
    from miner.reporting.tables import print_scores

    check_run_dir(run_dir)
    page = write_report(run_dir)
    run = RunFolder(run_dir).read()
    console = Console()
    if run.evaluations:
        print_scores(console, table_evaluations(run))
    for warning in run_warnings(run):
        print_line(console, f"note: {warning}")
    print_line(console, f"written to {page}")
