"""The ``kvtier`` command: one subcommand a module, joined here."""

import io
import sys
from typing import Annotated

import typer

import kvtier
from kvtier.cli import identity, pool
from kvtier.cli.bench import bench
from kvtier.cli.demo import demo
from kvtier.cli.doctor import doctor

app = typer.Typer(
    name="kvtier",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,  # locals may hold credentials
)

app.command()(bench)
app.command()(demo)
app.command()(doctor)
app.add_typer(identity.app, name="identity")
app.add_typer(pool.app, name="pool")


def main() -> None:
    """Entry point of the ``kvtier`` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to fail
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvtier {kvtier.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The storage tier for the KV caches of LLM engines."""
