"""What is said of vLLM's tiers that were measured: figures, their ratios, what must hold, and all of it as JSON."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console

from drive import WAYS, Way
from kvtier.cli.units import show_size
from rounds import Measured, Pass, Passes
from targets import Target, table
from tiers import KVTIER, NATIVE, UNVERIFIED

Figure = Callable[[Pass], float]
"""A number that a pass gives."""


def _rate(way: Way) -> Figure:
    return lambda done: done.of(way).bytes / done.of(way).seconds / 1e9


def _cpu(way: Way) -> Figure:
    return lambda done: done.of(way).cpu_seconds / done.of(way).bytes * 1e9


def _submit(way: Way) -> Figure:
    return lambda done: statistics.median(done.of(way).submit_us)


def _latency(way: Way, percent: int) -> Figure:
    return lambda done: statistics.quantiles(done.of(way).latencies * 2, n=100)[percent - 1] * 1000


FIGURES: dict[str, Callable[[Way], Figure]] = {
    "GB/s": _rate,
    "CPU s/GB": _cpu,
    "submit us/key": _submit,
    "p50 ms": lambda way: _latency(way, 50),
    "p99 ms": lambda way: _latency(way, 99),
}

PLOTTED = ("GB/s", "CPU s/GB", "submit us/key", "p99 ms")


def median_of(name: str, rounds: list[Passes], figure: Figure) -> float:
    """A tier's figure."""
    return statistics.median(figure(passes[name]) for passes in rounds)


def ratio_of(rounds: list[Passes], figure: Figure, name: str = KVTIER) -> float:
    """A tier's figure over that of vLLM's own: made in each round, since the machine's mood changes between them."""
    return statistics.median(figure(passes[name]) / figure(passes[NATIVE]) for passes in rounds)


def ratios(measured: Measured) -> dict[str, dict[tuple[int, int], float]]:
    """Kvtier over vLLM's own, by figure and by row size and job size."""
    return {
        f"{measured.kind}, {way}: {name}": {key: ratio_of(rounds, of(way)) for key, rounds in measured.moved.items()}
        for way in WAYS
        for name, of in FIGURES.items()
    }


def targets(measured: Measured) -> Iterator[Target]:
    """What must hold, of files and of objects."""
    of_files = measured.kind == "files"
    for (row_bytes, per_job), rounds in measured.moved.items():
        for way in WAYS:
            what = f"{measured.kind}, {way} {show_size(row_bytes)} x {per_job}"
            yield Target(f"{what}: submit", ratio_of(rounds, _submit(way)), 1 / (4 if of_files else 20), "x its time")
            if not of_files:
                yield Target(f"{what}: rate", ratio_of(rounds, _rate(way)), 1, "x its rate", at_least=True)
                yield Target(f"{what}: CPU", ratio_of(rounds, _cpu(way)), 0.5, "x its CPU")
            elif row_bytes >= 256 << 10:
                yield Target(f"{what}: rate", ratio_of(rounds, _rate(way)), 1, "x its rate", at_least=True)
                more = (_cpu(way)(passes[KVTIER]) - _cpu(way)(passes[NATIVE]) for passes in rounds)
                yield Target(f"{what}: CPU with checksums", statistics.median(more), 0.1, "s/GB more")
                yield Target(f"{what}: CPU without", ratio_of(rounds, _cpu(way), UNVERIFIED), 1, "x its CPU")
    for where in measured.asked[0][KVTIER]:
        costs = (asked[KVTIER][where].us_per_key / asked[NATIVE][where].us_per_key for asked in measured.asked)
        yield Target(f"{measured.kind}, lookups, {where}", statistics.median(costs), 1 / 3, "x its time")
    first = min(asked[KVTIER]["there"].at_first_ask for asked in measured.asked)
    yield Target(f"{measured.kind}, lookups, there: at the first ask", first, 1, "of all", at_least=True)
    if of_files:
        lone = statistics.median(times[KVTIER] / times[NATIVE] for times in measured.lone_job)
        yield Target("one job of 32 x 256 KiB from memory", lone, 0.5, "x its time")


def print_measured(console: Console, measured: Measured) -> None:
    """Prints all figures."""
    for (row_bytes, per_job), rounds in measured.moved.items():
        console.print(f"\n[bold]{measured.kind}, rows of {show_size(row_bytes)}, jobs of {per_job}[/]\n")
        shown = table("tier", *FIGURES)
        for way in WAYS:
            for name in measured.names:
                medians = (median_of(name, rounds, of(way)) for of in FIGURES.values())
                shown.add_row(f"{way}: {name}", *(f"{value:.2f}" for value in medians))
            over = (ratio_of(rounds, of(way)) for of in FIGURES.values())
            shown.add_row("kvtier over it", *(f"{value:.2f}" for value in over), style="bold", end_section=True)
        console.print(shown)
    wheres = list(measured.asked[0][NATIVE])
    console.print(
        f"\n[bold]{measured.kind}, lookups[/]: us per key until it is answered, and the share answered at the first "
        "ask; one job of 32 x 256 KiB by itself\n"
    )
    shown = table("tier", *(heading for where in wheres for heading in (where, "first")), "job ms")
    for name in measured.names:
        cells = []
        for where in wheres:
            of_tier = [asked[name][where] for asked in measured.asked]
            cells.append(f"{statistics.median(one.us_per_key for one in of_tier):.2f}")
            cells.append(f"{statistics.median(one.at_first_ask for one in of_tier):.0%}")
        shown.add_row(name, *cells, f"{statistics.median(times[name] for times in measured.lone_job) * 1000:.2f}")
    console.print(shown)


def as_json(measured: Measured) -> dict[str, Any]:
    """All figures of a storage."""
    return {
        "moved": [
            {
                "row_bytes": row_bytes,
                "blocks_per_job": per_job,
                "medians": {
                    name: {
                        f"{way} {figure}": median_of(name, rounds, of(way))
                        for way in WAYS
                        for figure, of in FIGURES.items()
                    }
                    for name in measured.names
                },
                "ratios": {
                    f"{way} {figure}": ratio_of(rounds, of(way)) for way in WAYS for figure, of in FIGURES.items()
                },
            }
            for (row_bytes, per_job), rounds in measured.moved.items()
        ],
        "lookups": [
            {name: {where: asdict(one) for where, one in of_tier.items()} for name, of_tier in asked.items()}
            for asked in measured.asked
        ],
        "lone_job_seconds": measured.lone_job,
    }
