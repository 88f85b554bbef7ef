"""The doctor's findings on a terminal: 80 columns are enough, and none is needed."""

from contextlib import AbstractContextManager

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvtier.cli.doctor.findings import Finding, State
from kvtier.cli.doctor.survey import Blocks, Namespace, Survey
from kvtier.cli.doctor.throughput import Throughput
from kvtier.cli.places import Place
from kvtier.cli.roots import Root
from kvtier.cli.units import show_count, show_size

_MARKS = {State.FINE: ("✓", "green"), State.NOTE: ("·", "yellow"), State.PROBLEM: ("✗", "bold red")}

_TELLING_FIELDS = ("dtype", "row_bytes", "payload_bytes", "tp_size", "pp_size", "replicated_layout", "namespace")
"""What tells namespaces of one model apart, mostly; `kvtier identity show` has all."""


def measuring(console: Console, seconds: float) -> AbstractContextManager[object]:
    """What is shown while throughput is measured."""
    return console.status(f"measuring throughput for {seconds:g} s …")


def show(console: Console, place: Place, findings: list[Finding], survey: Survey, measured: list[Throughput]) -> None:
    """Everything, the verdict last."""
    console.print(Text.assemble(("kvtier doctor", "bold"), f" · {place.name}\n", overflow="fold"))
    of_namespaces = {namespace.base_dir for namespace in survey.namespaces}
    _print_indented(console, _findings_table([f for f in findings if f.subject not in of_namespaces]))
    if survey.namespaces:
        console.print("\n[bold]Namespaces[/]\n")
        for namespace in survey.namespaces:
            _show_namespace(console, namespace, [f for f in findings if f.subject == namespace.base_dir])
    if measured:
        options = "the given options" if place.options else "its defaults"
        console.print(f"\n[bold]Throughput[/] of a tier with {options}\n")
        _print_indented(console, _throughput_table(measured))
        if isinstance(place, Root) and not place.direct_io_alignment:
            _print_indented(console, "loads may have come out of the page cache")
    problems = sum(finding.state is State.PROBLEM for finding in findings)
    if problems:
        console.print(f"\n[bold red]✗[/] {show_count(problems, 'problem')}")
    else:
        console.print("\n[bold green]✓[/] tiers can be opened here")


def _findings_table(findings: list[Finding], *, subjects: bool = True) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    if subjects:
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = _MARKS[finding.state]
        lines = Text(finding.found)
        if finding.used:
            lines.append(f"\n{finding.used}", "dim")
        if finding.change:
            lines.append(f"\nto do: {finding.change}", style)
        subject = [Text(finding.subject)] if subjects else []
        table.add_row(Text(mark, style), *subject, lines)
    return table


def _show_namespace(console: Console, namespace: Namespace, findings: list[Finding]) -> None:
    _print_indented(console, Text(namespace.base_dir, "cyan", overflow="fold"))
    if config := namespace.config:
        stated = [f"{name} {config.fields[name]}" for name in _TELLING_FIELDS if name in config.fields]
        _print_indented(console, Text(f"{config.kind}: {', '.join(stated)}", "dim"), 4)
    ranks_with: dict[str, list[str]] = {}
    for rank in namespace.ranks:
        ranks_with.setdefault(_contents(rank), []).append(rank.blocks_dir.rpartition("_")[2])
    for contents, ranks in ranks_with.items():
        _print_indented(console, f"{', '.join(ranks)}: {contents}", 4)
    if findings:
        _print_indented(console, _findings_table(findings, subjects=False), 4)


def _contents(rank: Blocks) -> str:
    if rank.unreadable:
        return "can't be listed"
    if not rank.blocks and not rank.being_written:
        return "no blocks"
    about = "" if rank.exact else "about "
    writing = f", {rank.being_written} being written" if rank.being_written else ""
    return f"{about}{show_count(rank.blocks, 'block')}, {show_size(rank.bytes)}{writing}"


def _throughput_table(measured: list[Throughput]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("rows", "store", "blocks/s", "load", "blocks/s", "CPU s/GB", "probe"):
        table.add_column(heading, justify="right", no_wrap=True)
    for t in measured:
        table.add_row(
            show_size(t.row_bytes),
            f"{t.store_bytes_per_second / 1e9:.2f} GB/s",
            f"{t.store_bytes_per_second / t.row_bytes:,.0f}",
            f"{t.load_bytes_per_second / 1e9:.2f} GB/s",
            f"{t.load_bytes_per_second / t.row_bytes:,.0f}",
            f"{t.store_cpu_seconds_per_gb:.2f}, {t.load_cpu_seconds_per_gb:.2f}",
            f"{t.probe_seconds * 1e6:.0f} µs",
        )
    return table


def _print_indented(console: Console, what: RenderableType, columns: int = 2) -> None:
    console.print(Padding(what, (0, 0, 0, columns), expand=False))
