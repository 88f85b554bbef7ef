"""``kvtier doctor``: what a root is like, what a tier there will do, and what would make it better."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from kvtier.cli.doctor import screen
from kvtier.cli.doctor.findings import Finding, State, of_namespaces, of_root, of_throughput
from kvtier.cli.doctor.survey import Survey
from kvtier.cli.doctor.throughput import Throughput, measure
from kvtier.cli.ending import PROBLEMS, ended_by_signals
from kvtier.cli.roots import Root
from kvtier.cli.units import parse_size

ROW_BYTES = (64 << 10, 256 << 10, 2 << 20)
"""Rows that throughput is measured with where none is given: small, usual, large."""

PATIENCE = 2.0
"""Seconds for counting blocks, in all namespaces together; what is left is estimated."""


def doctor(
    root: Annotated[str, typer.Argument(help="Directory or file:// URL that tiers are opened at.")],
    *,
    row_bytes: Annotated[
        int | None,
        typer.Option(parser=parse_size, metavar="SIZE", help="Bytes of a row, such as 256KiB.", show_default=False),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, max=600, help="Time for measuring throughput; 0 to leave it.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Look at a root: what is there, what will be used, what to change. Changes nothing, leaves nothing behind.

    Exit code 0: fine. 1: there are problems. 2: it is no directory.
    """
    console = Console(quiet=as_json, highlight=False)
    with ended_by_signals():
        found = Root.look_at(root)
        survey = Survey.of(found, PATIENCE)
        findings = of_root(found, row_bytes) + of_namespaces(survey)
        sizes = (row_bytes,) if row_bytes else ROW_BYTES
        measured: list[Throughput] = []
        if seconds and not found.refused:
            with screen.measuring(console, seconds):
                measured = measure(found, sizes, seconds)
            findings += of_throughput(measured)
    if as_json:
        typer.echo(json.dumps(_as_json(found, findings, survey, measured), indent=2))
    else:
        screen.show(console, found, findings, survey, measured)
    if any(finding.state is State.PROBLEM for finding in findings):
        raise typer.Exit(PROBLEMS)


def _as_json(root: Root, findings: list[Finding], survey: Survey, measured: list[Throughput]) -> dict[str, Any]:
    return {
        "ok": not any(finding.state is State.PROBLEM for finding in findings),
        "root": root.as_json(),
        "findings": [finding.as_json() for finding in findings],
        "namespaces": [namespace.as_json() for namespace in survey.namespaces],
        "reset_and_not_deleted_yet": survey.in_trash,
        "throughput": [throughput.as_json() for throughput in measured],
    }
