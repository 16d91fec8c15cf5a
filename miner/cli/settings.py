"""`python -m miner settings`."""

import typer

from miner.config.reference import settings_reference


def settings_command() -> None:
    """Print the settings reference as Markdown: each setting's default, values and meaning."""
    typer.echo(settings_reference(), nl=False)
