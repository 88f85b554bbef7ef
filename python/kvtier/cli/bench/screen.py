"""The benchmark on a terminal: 80 columns are enough, and none is needed."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from kvtier.cli.bench.plan import Case, Plan
from kvtier.cli.bench.runs import Advance, Result, Speed
from kvtier.cli.places import Place
from kvtier.cli.roots import Root
from kvtier.cli.units import show_count, show_size


def show_plan(console: Console, place: Place, plan: Plan) -> None:
    """What is about to be done, and how much it writes."""
    console.print(Text.assemble(("kvtier bench", "bold"), f" · {place.name}\n", overflow="fold"))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("place", Text(f"{place.medium}, {place.transfers}"))
    each = f"{show_size(plan.bytes)} each" + (f" after {plan.warm} times as much to warm up" if plan.warm else "")
    facts.add_row("measured", f"{show_count(len(plan.cases), 'way')}, {show_count(plan.rounds, 'round')}, {each}")
    facts.add_row("written", f"{show_size(plan.total_bytes)} at most, removed at the end")
    for what, why in plan.left_out.items():
        facts.add_row("left out", Text(f"{what}: {why}"))
    _print_indented(console, facts)
    console.print()


@contextmanager
def progress_of(console: Console, plan: Plan) -> Iterator[Advance]:
    """A bar while it lasts; the function given moves it on."""
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("measuring", total=len(plan.cases) * plan.rounds)

        def advance(case: Case) -> None:
            bars.update(task, advance=1, description=f"{show_size(case.row_bytes)} {' '.join(_way(case))}")

        yield advance


def show_results(console: Console, place: Place, results: list[Result]) -> None:
    """One table for each direction, then what failed."""
    for heading, speeds in (("Store", [r.store for r in results]), ("Load", [r.load for r in results])):
        console.print(f"[bold]{heading}[/]\n")
        _print_indented(console, _table([r.case for r in results], speeds))
        console.print()
    console.print(Text("  GB/s and CPU with many blocks under way, p50 and p99 of one block alone", style="dim"))
    if isinstance(place, Root) and not place.direct_io_alignment:
        console.print(Text("  loads may have come out of the page cache", style="dim"))
    for result in results:
        what = " ".join([show_size(result.case.row_bytes), *_way(result.case)])
        if result.refused:
            console.print(Text(f"· {what}: {result.refused}", style="yellow", overflow="fold"))
        if result.failure:
            console.print(Text(f"✗ {what}: {result.failure}", style="bold red", overflow="fold"))


def _table(cases: list[Case], speeds: list[Speed | None]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    with_ways = any(_way(case) for case in cases)
    table.add_column("rows", justify="right", no_wrap=True)
    for heading in ("layout", "IO") if with_ways else ():
        table.add_column(heading, no_wrap=True)
    for heading in ("GB/s", "blocks/s", "CPU s/GB", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for case, speed in zip(cases, speeds, strict=True):
        table.add_row(show_size(case.row_bytes), *_way(case), *_cells(case, speed))
    return table


def _cells(case: Case, speed: Speed | None) -> list[str]:
    if speed is None:
        return ["-"] * 5
    return [
        f"{speed.bytes_per_second / 1e9:.2f}",
        f"{speed.bytes_per_second / case.row_bytes:,.0f}",
        f"{speed.cpu_seconds_per_gb:.2f}",
        f"{speed.median_seconds * 1e3:.2f}",
        f"{speed.p99_seconds * 1e3:.2f}",
    ]


def _way(case: Case) -> list[str]:
    return [name for name in (case.layout, case.io_engine) if name]


def _print_indented(console: Console, what: RenderableType) -> None:
    console.print(Padding(what, (0, 0, 0, 2), expand=False))
