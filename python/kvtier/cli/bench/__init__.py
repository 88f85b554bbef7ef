"""``kvtier bench``: how fast rows move at a root, by row size, layout and IO engine, side by side."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from kvtier.cli.bench import screen
from kvtier.cli.bench.plan import Plan, plan_for
from kvtier.cli.bench.runs import Result, run
from kvtier.cli.ending import PROBLEMS, ended_by_signals
from kvtier.cli.options import TierOptions, parse_options
from kvtier.cli.places import Place, look_at
from kvtier.cli.units import parse_size


def bench(
    root: Annotated[str, typer.Argument(help="Directory, file:// URL or bucket (s3://, gs://, az://) to measure.")],
    *,
    row_bytes: Annotated[
        list[int] | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            show_default=False,
            help="Bytes of a row; may be repeated. By default 64KiB, 256KiB and 2MiB.",
        ),
    ] = None,
    layout: Annotated[
        list[str] | None, typer.Option(help="Measure this layout only; may be repeated.", show_default=False)
    ] = None,
    io_engine: Annotated[
        list[str] | None, typer.Option(help="Measure this IO engine only; may be repeated.", show_default=False)
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            parser=parse_size,
            metavar="SIZE",
            show_default=False,
            help="Bytes that each measurement stores at most. By default 256MiB, in buckets 32MiB.",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=99, show_default=False, help="How often all is measured, by turns; by default 3."),
    ] = None,
    warm: Annotated[
        int, typer.Option(min=0, max=9, help="As many bytes are stored first, unmeasured, so many times over.")
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="One round of 32MiB each.")] = False,
    option: TierOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Measure how fast rows are stored and loaded at a root, for each row size, layout and IO engine that it has.

    Works below a directory or prefix of its own, which goes at the end, and says first how much it will write.

    Exit code 0: measured. 1: something failed. 2: it can't be measured here.
    """  # fmt: skip
    console = Console(quiet=as_json, highlight=False)
    options = parse_options(option)
    with ended_by_signals():
        place = look_at(root, options)
        plan = plan_for(
            place, row_sizes=row_bytes, layouts=layout, io_engines=io_engine, size=size, rounds=rounds, warm=warm,
            quick=quick,
        )  # fmt: skip
        screen.show_plan(console, place, plan)
        with screen.progress_of(console, plan) as advance:
            results = run(place, plan, advance)
    if as_json:
        typer.echo(json.dumps(_as_json(place, plan, results), indent=2))
    else:
        screen.show_results(console, place, results)
    if any(result.failure for result in results):
        raise typer.Exit(PROBLEMS)


def _as_json(place: Place, plan: Plan, results: list[Result]) -> dict[str, Any]:
    return {
        "ok": not any(result.failure for result in results),
        "place": place.as_json(),
        "plan": plan.as_json(),
        "results": [result.as_json() for result in results],
    }
