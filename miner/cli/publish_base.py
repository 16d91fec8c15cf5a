"""`python -m miner publish-base`: publishes the base for a job whose games cannot be trained."""

from pathlib import Path
from typing import Annotated

import typer


def publish_base_command(
    model: Annotated[Path, typer.Argument(help="Folder of the base model.")],
    output: Annotated[Path, typer.Argument(help="Folder to publish into.")],
) -> None:
    """Publish a base model untrained; its chat template is fixed where it cannot hold a game."""
    from miner.publishing.output_path import check_apart
    from miner.publishing.publisher import Publisher
    from miner.training.preparation import publish_base  # imports torch: seconds

    check_apart(output, model)
    publish_base(Publisher(output, in_process=True), model)
    typer.echo(f"published the base model at {output}")
