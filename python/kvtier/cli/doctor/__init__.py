"""``kvtier doctor``: what a root is like, what a tier there will do, and what would make it better."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from kvtier.cli.buckets import Bucket
from kvtier.cli.doctor import screen
from kvtier.cli.doctor.buckets import of_bucket
from kvtier.cli.doctor.findings import Finding, State, of_namespaces, of_root, of_throughput
from kvtier.cli.doctor.survey import Survey
from kvtier.cli.doctor.throughput import Throughput, measure
from kvtier.cli.ending import PROBLEMS, ended_by_signals
from kvtier.cli.options import TierOptions, parse_options
from kvtier.cli.places import Place, look_at
from kvtier.cli.units import parse_size

ROW_BYTES = (64 << 10, 256 << 10, 2 << 20)
"""Rows that throughput is measured with where none is given: small, usual, large."""

PATIENCE = 2.0
"""Seconds for counting blocks, in all namespaces together; what is left is estimated."""


def doctor(
    root: Annotated[str, typer.Argument(help="Directory, file:// URL or bucket (s3://, gs://, az://) of tiers.")],
    *,
    row_bytes: Annotated[
        int | None,
        typer.Option(parser=parse_size, metavar="SIZE", help="Bytes of a row, such as 256KiB.", show_default=False),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, max=600, help="Time for measuring throughput; 0 to leave it.")] = 2,
    option: TierOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Look at a root: what is there, what will be used, what to change. Changes nothing, leaves nothing behind.

    Exit code 0: fine. 1: there are problems. 2: no tier can be there.
    """
    console = Console(quiet=as_json, highlight=False)
    options = parse_options(option)
    with ended_by_signals():
        found = look_at(root, options)
        survey = Survey.of(found, PATIENCE)
        of_place = of_bucket(found, row_bytes) if isinstance(found, Bucket) else of_root(found, row_bytes)
        findings = of_place + of_namespaces(survey)
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


def _as_json(place: Place, findings: list[Finding], survey: Survey, measured: list[Throughput]) -> dict[str, Any]:
    return {
        "ok": not any(finding.state is State.PROBLEM for finding in findings),
        "bucket" if isinstance(place, Bucket) else "root": place.as_json(),
        "findings": [finding.as_json() for finding in findings],
        "namespaces": [namespace.as_json() for namespace in survey.namespaces],
        "reset_and_not_deleted_yet": survey.in_trash,
        "throughput": [throughput.as_json() for throughput in measured],
    }
