"""kvtier's tier for vLLM beside vLLM's own, in one run.

    make bench-vllm                                  # release build, all of it
    python benches/vs_vllm.py --quick                # two minutes
    python benches/vs_vllm.py --root /mnt/nvme --rounds 9 --json figures.json --plot figures.png

Both are driven as vLLM's tiering manager drives them, in changing order, each round on a fresh directory, and nothing is
deleted before the end: file systems are slower at making files while they forget others. What a store has left in the
page cache is flushed and dropped, untimed and for all alike, before the blocks are loaded. Ratios are made within a round
and shown as their median, since the machine's mood changes from one round to the next.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import vllm
from rich.console import Console
from rich.progress import Progress

import kvtier
from kvtier.cli.roots import Root
from kvtier.cli.units import parse_size, show_size
from page_cache import drop_from_page_cache, flush
from targets import Target, print_targets, table
from tiers import KVTIER, NATIVE, UNVERIFIED, Asked, Drive, HostBuffer, Moved, make_on_files

NAMES = (NATIVE, KVTIER, UNVERIFIED)
JOBS = (1, 8, 32)
ROUND_BYTES = {64 << 10: 32 << 20, 256 << 10: 96 << 20, 2 << 20: 256 << 20}
"""What each tier stores and loads in a round, by the bytes of a row."""

LONE_JOB = (256 << 10, 32)
"""Bytes of a row and blocks of the one job that is loaded from memory."""

LOOKUPS = 1000
DIRECTORIES = 32
"""Two levels of directories are made before the clock runs, as in a tier that has been in use."""

Way = Literal["store", "load"]
WAYS: tuple[Way, Way] = ("store", "load")


@dataclass(frozen=True)
class Pass:
    """What one tier did in one round."""

    store: Moved
    load: Moved

    def of(self, way: Way) -> Moved:
        """One of the two by its name."""
        return self.store if way == "store" else self.load


Passes = dict[str, Pass]
"""A round: each tier's pass, by its name."""

Figure = Callable[[Pass], float]
"""A number that a pass gives."""


@dataclass(frozen=True)
class Measured:
    """All that was measured."""

    moved: dict[tuple[int, int], list[Passes]]
    """Rounds by the bytes of a row and the blocks of a job."""

    asked: list[dict[str, dict[str, Asked]]]
    """Rounds of lookups: by tier, and whether the keys are there."""

    lone_job: list[dict[str, float]]
    """Rounds of one job loaded from memory: seconds, by tier."""


def main() -> None:
    """Runs everything and prints it."""
    options = _options()
    console = Console(highlight=False)
    root = Path(tempfile.mkdtemp(prefix="kvtier-bench-", dir=options.root))
    memory = Path(tempfile.mkdtemp(prefix="kvtier-bench-", dir=options.memory_root))
    try:
        _run(console, root, memory, options)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", default=tempfile.gettempdir(), help="directory on the file system to measure")
    parser.add_argument("--memory-root", default="/dev/shm", help="directory in memory, for one job")  # noqa: S108
    parser.add_argument("--quick", action="store_true", help="a third of the rounds and a quarter of the bytes")
    parser.add_argument("--rounds", type=int, help="rounds of each (5, quick: 3)")
    parser.add_argument("--row-bytes", type=parse_size, action="append", help="only rows of this size, such as 2MiB")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--plot", type=Path, help="file for a picture of the ratios (PNG)")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 5)
    return options


def _run(console: Console, root: Path, memory: Path, options: argparse.Namespace) -> None:
    place = Root.look_at(str(root))
    share = 4 if options.quick else 1
    plan = {size: ROUND_BYTES.get(size, 128 << 20) // share for size in options.row_bytes or ROUND_BYTES}
    needed = options.rounds * len(NAMES) * len(JOBS) * sum(plan.values()) * 1.2 + (1 << 30)
    if needed > place.free_bytes:
        raise SystemExit(f"{root} has {show_size(place.free_bytes)} free, and {show_size(needed)} are needed")
    console.print(
        f"kvtier {kvtier.__version__}, vLLM {vllm.__version__}, {os.cpu_count()} cores, {place.file_system} "
        f"({place.transfers}), {platform.release()}; medians of {options.rounds} rounds\n"
    )
    measured = _measure_all(root, memory, plan, options.rounds)
    for (row_bytes, per_job), rounds in measured.moved.items():
        _print_rounds(console, row_bytes, per_job, rounds)
    _print_lookups(console, measured.asked)
    targets = list(_targets(measured))
    print_targets(console, targets)
    if options.json:
        options.json.write_text(json.dumps(_as_json(place, measured, targets), indent=2))
    if options.plot:
        from plots import plot_ratios  # noqa: PLC0415 - matplotlib takes a second

        plot_ratios(options.plot, _ratios(measured), f"kvtier {kvtier.__version__} over vLLM {vllm.__version__}'s fs tier")


def _measure_all(root: Path, memory: Path, plan: dict[int, int], rounds: int) -> Measured:
    with Progress(transient=True) as progress:
        task = progress.add_task("rounds", total=rounds * (len(plan) * len(JOBS) + 2))
        moved: dict[tuple[int, int], list[Passes]] = {}
        for row_bytes, total in plan.items():
            buffer = HostBuffer(total // row_bytes, row_bytes)
            for per_job in JOBS:
                for number in range(rounds):
                    directory = _made(root / f"{row_bytes}-{per_job}-{number}")
                    passes = {name: _pass(name, directory, buffer, per_job) for name in _in_turn(number)}
                    moved.setdefault((row_bytes, per_job), []).append(passes)
                    progress.advance(task)
        asked = []
        for number in range(rounds):
            asked.append({name: _ask(name, _made(memory / f"asked-{number}-{name}")) for name in _in_turn(number)})
            progress.advance(task)
        lone_job = []
        for number in range(rounds):
            lone_job.append({name: _lone_job(name, _made(memory / f"lone-{number}-{name}")) for name in _in_turn(number)})
            progress.advance(task)
    return Measured(moved, asked, lone_job)


def _in_turn(number: int) -> tuple[str, ...]:
    first = number % len(NAMES)
    return NAMES[first:] + NAMES[:first]


def _pass(name: str, directory: Path, buffer: HostBuffer, per_job: int) -> Pass:
    root = _made(directory / name)
    keys = [_key(number) for number in range(buffer.count)]
    drive = Drive(make_on_files(name, root, buffer.view))
    drive.move("store", [_key(-number - 1) for number in range(DIRECTORIES)], buffer.row_bytes, per_job)
    flush(root)
    stored = drive.move("store", keys, buffer.row_bytes, per_job)
    flush(root)
    drop_from_page_cache(root)
    buffer.clear()
    loaded = drive.move("load", keys, buffer.row_bytes, per_job)
    drive.tier.shutdown()
    if not buffer.is_as_made():
        raise SystemExit(f"{name} loaded other bytes than it stored")
    return Pass(stored, loaded)


def _ask(name: str, root: Path) -> dict[str, Asked]:
    buffer = HostBuffer(LOOKUPS, 4096)
    keys = [_key(number) for number in range(LOOKUPS)]
    drive = Drive(make_on_files(name, root, buffer.view))
    drive.move("store", keys, buffer.row_bytes, 32)
    others = [_key(number) for number in range(LOOKUPS, 2 * LOOKUPS)]
    asked = {"there": drive.ask(keys), "not there": drive.ask(others), "mixed": drive.ask(_mixed(keys, others))}
    drive.tier.shutdown()
    return asked


def _lone_job(name: str, root: Path) -> float:
    row_bytes, blocks = LONE_JOB
    buffer = HostBuffer(blocks, row_bytes)
    keys = [_key(number) for number in range(blocks)]
    drive = Drive(make_on_files(name, root, buffer.view))
    drive.move("store", keys, row_bytes, blocks)
    times = [drive.move("load", keys, row_bytes, blocks).seconds for _ in range(5)]
    drive.tier.shutdown()
    return statistics.median(times)


def _mixed(keys: list[bytes], others: list[bytes]) -> list[bytes]:
    return [key for pair in zip(keys, others, strict=True) for key in pair][: len(keys)]


def _key(number: int) -> bytes:
    """A few directories hold all blocks."""
    directory = hashlib.sha256(b"directory %d" % (number % DIRECTORIES)).digest()[:3]
    return directory + hashlib.sha256(b"block %d" % number).digest()[3:] + bytes(4)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


# What a pass gives.


def _rate(way: Way) -> Figure:
    return lambda done: done.of(way).bytes / done.of(way).seconds / 1e9


def _cpu(way: Way) -> Figure:
    return lambda done: done.of(way).cpu_seconds / done.of(way).bytes * 1e9


def _submit(way: Way) -> Figure:
    return lambda done: statistics.median(done.of(way).submit_us)


def _latency(way: Way, percent: int) -> Figure:
    return lambda done: statistics.quantiles(sorted(done.of(way).latencies) * 2, n=100)[percent - 1] * 1000


FIGURES: dict[str, Callable[[Way], Figure]] = {
    "GB/s": _rate,
    "CPU s/GB": _cpu,
    "submit us/key": _submit,
    "p50 ms": lambda way: _latency(way, 50),
    "p99 ms": lambda way: _latency(way, 99),
}


def _median(rounds: list[Passes], figure: Callable[[Passes], float]) -> float:
    return statistics.median(figure(passes) for passes in rounds)


def _of(name: str, figure: Figure) -> Callable[[Passes], float]:
    return lambda passes: figure(passes[name])


def _ratio(figure: Figure, name: str = KVTIER) -> Callable[[Passes], float]:
    return lambda passes: figure(passes[name]) / figure(passes[NATIVE])


def _targets(measured: Measured) -> Iterator[Target]:
    for (row_bytes, per_job), rounds in measured.moved.items():
        what = f"of {show_size(row_bytes)}, jobs of {per_job}"
        for way in WAYS:
            yield Target(f"submit a {way} {what}", _median(rounds, _ratio(_submit(way))), 0.25, "x vLLM's time")
            if row_bytes < 256 << 10:
                continue
            yield Target(f"{way} {what}", _median(rounds, _ratio(_rate(way))), 1, "x vLLM's rate", at_least=True)
            more = _median(rounds, lambda passes, cpu=_cpu(way): cpu(passes[KVTIER]) - cpu(passes[NATIVE]))
            yield Target(f"{way} {what}, checksums", more, 0.1, "CPU s/GB over vLLM's")
            cpu = _median(rounds, _ratio(_cpu(way), UNVERIFIED))
            yield Target(f"{way} {what}, unverified", cpu, 1, "x vLLM's CPU")
    for where in ("there", "not there", "mixed"):
        costs = [asked[KVTIER][where].us_per_key / asked[NATIVE][where].us_per_key for asked in measured.asked]
        yield Target(f"lookup of what is {where}", statistics.median(costs), 1 / 3, "x vLLM's time")
    first = min(asked[KVTIER]["there"].at_first_ask for asked in measured.asked)
    yield Target("answered at the first ask", first, 1, "of what is there", at_least=True)
    lone = statistics.median(times[KVTIER] / times[NATIVE] for times in measured.lone_job)
    yield Target("one job of 32 x 256 KiB from memory", lone, 0.5, "x vLLM's time")


def _ratios(measured: Measured) -> dict[str, dict[tuple[int, int], float]]:
    """kvtier over vLLM's own, by figure and by row size and job size."""
    return {
        f"{way}: {name}": {
            key: _median(rounds, _ratio(figure(way))) for key, rounds in measured.moved.items()
        }
        for way in WAYS
        for name, figure in FIGURES.items()
    }


def _print_rounds(console: Console, row_bytes: int, per_job: int, rounds: list[Passes]) -> None:
    console.print(f"\n[bold]rows of {show_size(row_bytes)}, jobs of {per_job}[/]\n")
    shown = table("tier", *(f"{way} {name}" for way in WAYS for name in FIGURES))
    for name in NAMES:
        medians = (_median(rounds, _of(name, figure(way))) for way in WAYS for figure in FIGURES.values())
        shown.add_row(name, *(f"{value:.2f}" for value in medians))
    ratios = (_median(rounds, _ratio(figure(way))) for way in WAYS for figure in FIGURES.values())
    shown.add_row("kvtier / vLLM's", *(f"{value:.2f}" for value in ratios), style="bold")
    console.print(shown)


def _print_lookups(console: Console, asked: list[dict[str, dict[str, Asked]]]) -> None:
    console.print("\n[bold]lookups[/]: us per key until it is answered, and the share answered at the first ask\n")
    shown = table("tier", *(f"{where}{what}" for where in ("there", "not there", "mixed") for what in ("", ", at first")))
    for name in NAMES:
        of_tier = [found[name] for found in asked]
        cells = []
        for where in ("there", "not there", "mixed"):
            cells.append(f"{statistics.median(found[where].us_per_key for found in of_tier):.2f}")
            cells.append(f"{statistics.median(found[where].at_first_ask for found in of_tier):.0%}")
        shown.add_row(name, *cells)
    console.print(shown)


def _as_json(place: Root, measured: Measured, targets: list[Target]) -> dict[str, Any]:
    return {
        "version": kvtier.__version__,
        "vllm": vllm.__version__,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "root": place.as_json(),
        "moved": [
            {
                "row_bytes": row_bytes,
                "blocks_per_job": per_job,
                "medians": {
                    name: {
                        f"{way} {figure}": _median(rounds, _of(name, of(way)))
                        for way in WAYS
                        for figure, of in FIGURES.items()
                    }
                    for name in NAMES
                },
                "ratios": {
                    f"{way} {figure}": _median(rounds, _ratio(of(way))) for way in WAYS for figure, of in FIGURES.items()
                },
            }
            for (row_bytes, per_job), rounds in measured.moved.items()
        ],
        "lookups": [
            {name: {where: asdict(one) for where, one in of_tier.items()} for name, of_tier in asked.items()}
            for asked in measured.asked
        ],
        "lone_job_seconds": measured.lone_job,
        "targets": [{**asdict(target), "is_met": target.is_met} for target in targets],
    }


if __name__ == "__main__":
    main()
