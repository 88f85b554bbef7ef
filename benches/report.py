"""What is said of vLLM's tiers that were measured: figures, their ratios, what must hold, and all of it as JSON."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console

from kvtier.cli.units import show_size
from passes import WAYS, Pass, Passes, Way
from rounds import JOBS, Measured
from targets import Target, table
from tiers import KVTIER, NATIVE, UNVERIFIED

Figure = Callable[[Pass], float]
"""A number that a pass gives."""


def _rate(way: Way) -> Figure:
    return lambda done: done.of(way).rate


def _cpu(way: Way) -> Figure:
    return lambda done: done.of(way).cpu


def _latency(way: Way, percent: int) -> Figure:
    return lambda done: statistics.quantiles(done.of(way).latencies * 2, n=100)[percent - 1] * 1000


FIGURES: dict[str, Callable[[Way], Figure]] = {
    "GB/s": _rate,
    "CPU s/GB": _cpu,
    "p50 ms": lambda way: _latency(way, 50),
    "p99 ms": lambda way: _latency(way, 99),
}

PLOTTED = ("GB/s", "CPU s/GB", "p99 ms")
CALLS = "us/key of the scheduler"


def median_of(name: str, rounds: list[Passes], figure: Figure) -> float:
    """A tier's figure."""
    return statistics.median(figure(passes[name]) for passes in rounds)


def ratio_of(rounds: list[Passes], figure: Figure, name: str = KVTIER) -> float:
    """A tier's figure over that of vLLM's own: made in each round, since the machine's mood changes between them."""
    return statistics.median(figure(passes[name]) / figure(passes[NATIVE]) for passes in rounds)


def call_ratios(measured: Measured, way: Way) -> dict[str, float]:
    """What calls of the scheduler cost, kvtier's over vLLM's own; lookups count to the loads."""
    found = {
        f"submit\nx {per_job}": statistics.median(
            submitted[KVTIER][way, per_job] / submitted[NATIVE][way, per_job] for submitted in measured.submitted
        )
        for per_job in JOBS
    }
    if way == "load":
        for where in measured.asked[0][KVTIER]:
            costs = (asked[KVTIER][where].us_per_key / asked[NATIVE][where].us_per_key for asked in measured.asked)
            found[f"lookup,\n{where}"] = statistics.median(costs)
    return found


def ratios(measured: Measured) -> dict[str, dict[str, float]]:
    """Over the tiers of vLLM, by figure, and by row size and job size or by call: what a plot shows, column by column."""
    found: dict[str, dict[str, float]] = {}
    for way in WAYS:
        for name in PLOTTED:
            found[f"{measured.kind}, {way}: {name}"] = {
                f"{show_size(row_bytes)}\nx {per_job}": ratio_of(rounds, FIGURES[name](way))
                for (row_bytes, per_job), rounds in measured.moved.items()
            }
        found[f"{measured.kind}, {way}: {CALLS}"] = call_ratios(measured, way)
    return found


def targets(measured: Measured) -> Iterator[Target]:
    """What must hold, of files and of objects."""
    of_files = measured.kind == "files"
    for (row_bytes, per_job), rounds in measured.moved.items():
        for way in WAYS:
            what = f"{measured.kind}, {way} {show_size(row_bytes)} x {per_job}"
            if not of_files:
                yield Target(f"{what}: rate", ratio_of(rounds, _rate(way)), 1, "x its rate", at_least=True)
                yield Target(f"{what}: CPU", ratio_of(rounds, _cpu(way)), 0.5, "x its CPU")
            elif row_bytes >= 256 << 10:
                yield Target(f"{what}: rate", ratio_of(rounds, _rate(way)), 1, "x its rate", at_least=True)
                more = (_cpu(way)(passes[KVTIER]) - _cpu(way)(passes[NATIVE]) for passes in rounds)
                yield Target(f"{what}: CPU with checksums", statistics.median(more), 0.1, "s/GB more")
                yield Target(f"{what}: CPU without", ratio_of(rounds, _cpu(way), UNVERIFIED), 1, "x its CPU")
    for way in WAYS:
        for call, ratio in call_ratios(measured, way).items():
            bound = 1 / 3 if call.startswith("lookup") else 1 / (4 if of_files else 20)
            what = call.replace("\n", " ").replace("submit", f"submit a {way},")
            yield Target(f"{measured.kind}, {what}", ratio, bound, "x its time")
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
    console.print(
        f"\n[bold]{measured.kind}[/]: us per key of the scheduler's thread; one job of 32 x 256 KiB by itself\n"
    )
    wheres = list(measured.asked[0][NATIVE])
    shown = table("", *measured.names, "kvtier over it")
    for way in WAYS:
        for per_job, ratio in zip(JOBS, call_ratios(measured, way).values(), strict=False):
            costs = [
                statistics.median(one[name][way, per_job] for one in measured.submitted) for name in measured.names
            ]
            shown.add_row(f"submit a {way}, jobs of {per_job}", *(f"{cost:.2f}" for cost in costs), f"{ratio:.2f}")
    for where in wheres:
        costs = [statistics.median(one[name][where].us_per_key for one in measured.asked) for name in measured.names]
        ratio = call_ratios(measured, "load")[f"lookup,\n{where}"]
        shown.add_row(f"lookup, {where}", *(f"{cost:.2f}" for cost in costs), f"{ratio:.2f}")
        firsts = [statistics.median(one[name][where].at_first_ask for one in measured.asked) for name in measured.names]
        shown.add_row("  answered at the first ask", *(f"{share:.0%}" for share in firsts), "")
    times = [statistics.median(one[name] for one in measured.lone_job) * 1000 for name in measured.names]
    lone = statistics.median(one[KVTIER] / one[NATIVE] for one in measured.lone_job)
    shown.add_row("one job, ms", *(f"{time:.2f}" for time in times), f"{lone:.2f}")
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
        "submit_us_per_key": [
            {
                name: {f"{way} x {per_job}": cost for (way, per_job), cost in of_tier.items()}
                for name, of_tier in submitted.items()
            }
            for submitted in measured.submitted
        ],
        "lone_job_seconds": measured.lone_job,
    }
