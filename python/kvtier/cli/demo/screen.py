"""The demo on a terminal: 80 columns are enough, and none is needed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from kvtier.cli.demo.outcome import Outcome, Part
from kvtier.cli.demo.ranks import DTYPE, LAYERS, ROW_BYTES, TOKENS_PER_BLOCK, Plan, Rank, RowsKind
from kvtier.cli.places import Place
from kvtier.cli.units import show_rate, show_size

_ROWS = {
    RowsKind.TORCH: f"torch tensors of {DTYPE}",
    RowsKind.NUMPY: "numpy arrays",
    RowsKind.HOST_ROWS: "kvtier's own memory (no torch, no numpy here)",
}

Advance = Callable[[Rank, int], None]


def show_start(console: Console, plan: Plan, root: Place, *, root_is_kept: bool) -> None:
    """What is about to be done, and where."""
    console.print("[bold]kvtier demo[/] · what TP=2 wrote, TP=4 hits\n")
    shape = f" ({LAYERS} layers of {TOKENS_PER_BLOCK} tokens)" if plan.row_bytes == ROW_BYTES else ""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("model", Text(_shortened(plan.model)))
    facts.add_row("", "latent attention (MLA): each rank holds the same rows")
    facts.add_row("rows", f"{plan.shared_blocks} of {show_size(plan.row_bytes)}{shape}, {_ROWS[plan.rows]}")
    facts.add_row("root", Text(f"{root.name} ({'kept' if root_is_kept else 'removed at the end'})"))
    facts.add_row("", Text(f"{root.medium}, {root.transfers}"))
    _print_indented(console, facts)
    console.print("\n[bold]1 · Stated to be replicated[/]: one namespace for every TP size and rank\n")


@contextmanager
def progress_of(console: Console, totals: dict[str, int]) -> Iterator[dict[str, Advance]]:
    """A bar for each of these tasks, while they last; the functions given move them on."""
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("blocks"))
    with Progress(*columns, console=console) as bars:
        # A bar pulses until its first block has moved: interpreters start, torch is imported.
        tasks = {name: bars.add_task(name, total=total, start=False) for name, total in totals.items()}

        def advance(name: str) -> Advance:
            def move(_rank: Rank, blocks: int) -> None:
                bars.start_task(tasks[name])
                bars.advance(tasks[name], blocks)

            return move

        yield {name: advance(name) for name in totals}


def show_outcome(console: Console, outcome: Outcome) -> None:
    """What became of both parts, and the verdict."""
    _show_shared(console, outcome.shared)
    _show_unshared(console, outcome)
    if outcome.problems:
        for problem in outcome.problems:
            console.print(Text(f"✗ {problem}", style="bold red"))
    else:
        shared, unshared = outcome.shared, outcome.unshared
        console.print(f"[bold green]✓[/] {shared.hits} of {shared.asked} lookups hit, and each byte of each block is")
        console.print(
            f"  right. Without the statement {unshared.hits} of {unshared.asked} hit. ({outcome.seconds:.1f} s)"
        )
    if outcome.root_is_kept:
        _show_what_is_left(console, outcome)


def _show_shared(console: Console, part: Part) -> None:
    table = _table("rank")
    for heading in ("process", "stored", "hits", "bytes equal", "throughput"):
        table.add_column(heading, justify="right", no_wrap=True)
    for rank, report in (part.writers | part.readers).items():
        moved = "there before" if report.already_there else show_rate(report.moved_bytes, report.moving_seconds)
        if rank.role == "writer":
            counts = (str(report.stored + report.already_there), "", "")
        else:
            counts = ("", f"{report.hits} of {report.asked}", f"{report.equal} of {report.hits}")
        table.add_row(str(rank), str(report.pid), *counts, moved)
    console.print()
    _print_indented(console, table)
    console.print()
    for name in part.namespaces:
        _print_indented(console, Text.assemble("all below ", (f"{name}/", "cyan"), overflow="fold"))


def _show_unshared(console: Console, outcome: Outcome) -> None:
    part = outcome.unshared
    console.print("\n[bold]2 · The same without that statement[/]: rows belong to one TP size and rank\n")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    stored = sum(report.stored + report.already_there for report in part.writers.values())
    for reports, what in ((part.writers, f"stored {stored}"), (part.readers, f"{part.hits} of {part.asked} hits")):
        names = [report.namespace for report in reports.values()]
        below = (f"{names[0]} … {names[-1].removeprefix(names[-1].rsplit('_', 1)[0])}", "cyan")
        facts.add_row(f"TP={next(iter(reports)).tp_size}  {what}", Text.assemble("below ", below))
    _print_indented(console, facts)
    console.print("\n  Why (what `kvtier identity diff` tells of the two):\n")
    table = _table("field")
    for heading in ("writers", "readers", "kept apart, since this would mix up"):
        table.add_column(heading, overflow="fold")
    for d in outcome.differences:
        table.add_row(d.field, d.left_shown, d.right_shown, outcome.reasons.get(d.field, ""))
    _print_indented(console, table)
    console.print()


def _show_what_is_left(console: Console, outcome: Outcome) -> None:
    names = [name.rsplit("_r", 1)[0] for part in (outcome.shared, outcome.unshared) for name in part.namespaces]
    console.print(Text(f"\nTo remove the blocks, delete what begins with these names in {outcome.root}:"))
    for name in dict.fromkeys(names):
        _print_indented(console, Text(name, overflow="fold"))


def _table(first_heading: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first_heading, no_wrap=True)
    return table


def _print_indented(console: Console, what: RenderableType) -> None:
    console.print(Padding(what, (0, 0, 0, 2), expand=False))


def _shortened(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:40]}… ({len(name)} characters)"
