"""kvtier beside what a user would write without it, in one run.

    make bench                                     # release build, all of it
    python benches/vs_peer.py --quick              # a minute
    python benches/vs_peer.py --root /mnt/nvme --rounds 9 --json figures.json

Every round gives each way a fresh directory, in changing order, and nothing is deleted before the end: file systems are
slower at making files while they forget others. Stores are timed until all blocks can be loaded; what is in the page
cache then is flushed and dropped, untimed and for all alike, so that every load comes from the device. Ratios are made
within a round and shown as their median, since the machine's mood changes from one round to the next.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

import kvtier
from costs import counting_share, memory_growth, per_key_costs
from kvtier.cli.roots import Root
from kvtier.cli.units import parse_size, show_size
from page_cache import drop_from_page_cache, flush
from passes import WAYS, Pass, Passes, Way, timed
from peers import BUFFERED, BUFFERED_RAW, KVTIER, PEERS, POOL_BUFFERED, POOL_DIRECT, RAW, Buffer
from targets import Target, print_targets, table

ROUND_BYTES = {64 << 10: 48 << 20, 256 << 10: 128 << 20, 2 << 20: 256 << 20}
"""What each way stores and loads in a round, by the bytes of a row."""

COUNTING_ROUNDS = 3
DIRECTORIES = 32
"""Two levels of directories are made before the clock runs, as in a tier that has been in use."""


Rounds = list[Passes]
Figure = Callable[[Passes], float]
"""A number that a round gives."""


def main() -> None:
    """Runs everything and prints it."""
    options = _options()
    console = Console(highlight=False)
    root = Path(tempfile.mkdtemp(prefix="kvtier-bench-", dir=options.root))
    try:
        _run(console, root, options)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", default=tempfile.gettempdir(), help="directory on the file system to measure")
    parser.add_argument("--quick", action="store_true", help="a third of the rounds and a quarter of the bytes")
    parser.add_argument("--rounds", type=int, help="rounds for each row size (5, quick: 3)")
    parser.add_argument("--row-bytes", type=parse_size, action="append", help="only rows of this size, such as 2MiB")
    parser.add_argument("--threads", type=int, default=8, help="IO threads of kvtier and of the thread pools")
    parser.add_argument(
        "--memory-bytes", type=parse_size, help="what passes while memory is watched (4GiB, quick: 1GiB)"
    )
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.memory_bytes = options.memory_bytes or (1 << 30 if options.quick else 4 << 30)
    return options


def _run(console: Console, root: Path, options: argparse.Namespace) -> None:
    place = Root.look_at(str(root))
    share = 4 if options.quick else 1
    sizes = options.row_bytes or list(ROUND_BYTES)
    counting_bytes = (1 << 30) // share
    plan = {row_bytes: ROUND_BYTES.get(row_bytes, 256 << 20) // share for row_bytes in sizes}
    round_bytes = sum(total + DIRECTORIES * row_bytes for row_bytes, total in plan.items())
    # Half of what passes through a tier is stored; a tenth more for trailers and directories.
    needed = (
        options.rounds * len(PEERS) * round_bytes + (options.memory_bytes + COUNTING_ROUNDS * counting_bytes) / 2
    ) * 1.1
    if needed > place.free_bytes:
        raise SystemExit(f"{root} has {show_size(place.free_bytes)} free, and {show_size(needed)} are needed")
    console.print(
        f"kvtier {kvtier.__version__}, {options.threads} IO threads, {os.cpu_count()} cores, {place.file_system} "
        f"({place.transfers}), {platform.release()}; medians of {options.rounds} rounds\n"
    )
    costs = per_key_costs(jobs=200 if options.quick else 1000)
    _print_costs(console, costs)
    rounds = _measure_all(root, plan, options)
    for row_bytes, measured in rounds.items():
        _print_rounds(console, row_bytes, measured, plan[row_bytes])
    with console.status("memory, and a thread that counts …"):
        growth = memory_growth(_made(root / "memory"), options.memory_bytes)
        kept = counting_share(_made(root / "counting"), counting_bytes, COUNTING_ROUNDS)
    targets = _targets(costs, rounds, growth, kept)
    print_targets(console, targets)
    if options.json:
        options.json.write_text(json.dumps(_as_json(options, place, costs, rounds, targets), indent=2))


def _measure_all(root: Path, plan: dict[int, int], options: argparse.Namespace) -> dict[int, Rounds]:
    with Progress(transient=True) as progress:
        task = progress.add_task("rounds", total=len(plan) * options.rounds * len(PEERS))
        return {
            row_bytes: _measure(_made(root / str(row_bytes)), row_bytes, total, options, lambda: progress.advance(task))
            for row_bytes, total in plan.items()
        }


def _measure(root: Path, row_bytes: int, total: int, options: argparse.Namespace, done: Callable[[], None]) -> Rounds:
    buffer = Buffer(DIRECTORIES + total // row_bytes, row_bytes)
    names = list(PEERS)
    rounds: Rounds = []
    for number in range(options.rounds):
        first = number % len(names)
        passes: Passes = {}
        for name in names[first:] + names[:first]:
            passes[name] = _one_pass(name, _made(root / f"{number}-{names.index(name)}"), buffer, options.threads)
            done()
        rounds.append(passes)
    return rounds


def _one_pass(name: str, root: Path, buffer: Buffer, threads: int) -> Pass:
    numbers, keys = list(range(buffer.count)), [_key(number) for number in range(buffer.count)]
    rest = slice(DIRECTORIES, None)
    total = (buffer.count - DIRECTORIES) * buffer.row_bytes
    buffer.forget_loaded()
    peer = PEERS[name](root, buffer, threads)
    peer.store(numbers[:DIRECTORIES], keys[:DIRECTORIES])
    flush(root)
    stored = timed(total, lambda: peer.store(numbers[rest], keys[rest]))
    begun = time.perf_counter()
    flush(root)
    stored = replace(stored, flush_seconds=time.perf_counter() - begun)
    drop_from_page_cache(root)
    loaded = timed(total, lambda: peer.load(numbers[rest], keys[rest]))
    peer.load(numbers[:DIRECTORIES], keys[:DIRECTORIES])
    if not buffer.is_loaded():
        raise SystemExit(f"{name} loaded other bytes than it stored")
    peer.close()
    return Pass(stored, loaded)


def _key(number: int) -> bytes:
    """The first blocks make the directories that all others go to."""
    directory = hashlib.sha256(b"directory %d" % (number % DIRECTORIES)).digest()[:3]
    return directory + hashlib.sha256(b"block %d" % number).digest()[3:] + bytes(4)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _rate(name: str, way: Way) -> Figure:
    return lambda passes: passes[name].of(way).rate


def _flushed_rate(name: str) -> Figure:
    return lambda passes: passes[name].store.flushed_rate


def _cpu(name: str, way: Way) -> Figure:
    return lambda passes: passes[name].of(way).cpu


def _over(figure: Figure, other: Figure) -> Figure:
    return lambda passes: figure(passes) / other(passes)


def _minus(figure: Figure, other: Figure) -> Figure:
    return lambda passes: figure(passes) - other(passes)


def _median(rounds: Rounds, figure: Figure) -> float:
    return statistics.median(figure(passes) for passes in rounds)


def _targets(costs: dict[str, float], rounds: dict[int, Rounds], growth: int, kept: float) -> list[Target]:
    return [
        Target("submit, jobs of 32", max(costs["submit a store"], costs["submit a load"]), 0.3, "us a key"),
        Target("lookup of a resident key", costs["lookup"], 0.25, "us"),
        Target("the same for a request", costs["lookup for a request"], 0.25, "us"),
        *(target for row_bytes, measured in rounds.items() for target in _targets_of_framing(row_bytes, measured)),
        *(_targets_beside_the_pool(rounds[2 << 20]) if 2 << 20 in rounds else []),
        Target("memory beyond the rows", growth / (1 << 20), 64, "MiB"),
        Target("a counting thread's rate", kept, 0.5, "of its solo rate", at_least=True),
    ]


def _targets_of_framing(row_bytes: int, rounds: Rounds) -> Iterator[Target]:
    for way in WAYS:
        more = _median(rounds, _minus(_cpu(KVTIER, way), _cpu(RAW, way)))
        yield Target(f"framing, {way}, {show_size(row_bytes)}", more, 0.1, "CPU s/GB over raw")


def _targets_beside_the_pool(rounds: Rounds) -> Iterator[Target]:
    """The pool writes bare rows, so its CPU is compared with that of raw blocks; framing has a target of its own."""
    for ours, raw, pool, how in (
        (KVTIER, RAW, POOL_DIRECT, "direct"),
        (BUFFERED, BUFFERED_RAW, POOL_BUFFERED, "buffered"),
    ):
        for way in WAYS:
            rate = _median(rounds, _over(_rate(ours, way), _rate(pool, way)))
            cpu = _median(rounds, _over(_cpu(raw, way), _cpu(pool, way)))
            yield Target(f"{way} of 2 MiB, {how}", rate, 1, "x the pool's rate", at_least=True)
            yield Target(f"{way} of 2 MiB, {how}, raw", cpu, 1, "x the pool's CPU")


def _print_costs(console: Console, costs: dict[str, float]) -> None:
    shown = table("the caller's time, from Python", "us a key")
    for call, cost in costs.items():
        shown.add_row(call, f"{cost:.3f}")
    console.print(shown)


def _print_rounds(console: Console, row_bytes: int, rounds: Rounds, total: int) -> None:
    console.print(
        f"\n[bold]rows of {show_size(row_bytes)}[/], {show_size(total)} a round: GB/s, CPU s/GB; kvtier's GB/s over it\n"
    )
    shown = table("way", "store", "flushed", "CPU", "ratio", "load", "CPU", "ratio")
    for name in PEERS:
        figures = [
            _rate(name, "store"),
            _flushed_rate(name),
            _cpu(name, "store"),
            _over(_rate(KVTIER, "store"), _rate(name, "store")),
            _rate(name, "load"),
            _cpu(name, "load"),
            _over(_rate(KVTIER, "load"), _rate(name, "load")),
        ]
        shown.add_row(name, *(f"{_median(rounds, figure):.2f}" for figure in figures))
    console.print(shown)


def _as_json(
    options: argparse.Namespace, place: Root, costs: dict[str, float], rounds: dict[int, Rounds], targets: list[Target]
) -> dict[str, Any]:
    return {
        "version": kvtier.__version__,
        "threads": options.threads,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "root": place.as_json(),
        "us_per_key": costs,
        "rounds": {
            size: [{name: asdict(done) for name, done in passes.items()} for passes in measured]
            for size, measured in rounds.items()
        },
        "targets": [{**asdict(target), "is_met": target.is_met} for target in targets],
    }


if __name__ == "__main__":
    main()
