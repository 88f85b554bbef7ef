"""kvtier's tier for vLLM beside vLLM's own, in one run.

    make bench-vllm                                  # release build, on files and on an S3 server started for it
    make bench-vllm ARGS=--quick                     # a few minutes
    python benches/vs_vllm.py --root /mnt/nvme --rounds 9 --json figures.json --plot figures.png
    python benches/vs_vllm.py --objects s3://bucket/prefix   # on the service that the AWS variables name

All tiers are driven as vLLM's tiering manager drives them, in changing order, each round in a fresh place, and nothing is
deleted before the end: file systems are slower at making files while they forget others. What a store has left in the
page cache is flushed and dropped, untimed and for all alike, before the blocks are loaded. Ratios are made within a round
and shown as their median, since the machine's mood changes from one round to the next.
"""

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path

import vllm
from rich.console import Console
from rich.progress import Progress

import kvtier
from kvtier.cli.roots import Root
from kvtier.cli.units import parse_size, show_size
from report import PLOTTED, as_json, print_measured, ratios, targets
from rounds import JOBS, Measured, measure, measure_calls, plan, steps_of
from targets import print_targets
from tiers import Files, Objects, Storage


def main() -> None:
    """Runs everything and prints it."""
    options = _options()
    console = Console(highlight=False)
    root, memory = (
        Path(tempfile.mkdtemp(prefix="kvtier-bench-", dir=at)) for at in (options.root, options.memory_root)
    )
    files, in_memory = Files(root, options.layouts), Files(memory, options.layouts)
    try:
        _run(console, root, files, in_memory, options)
    finally:
        files.remove()
        in_memory.remove()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", default=tempfile.gettempdir(), help="directory on the file system to measure")
    parser.add_argument("--memory-root", default="/dev/shm", help="directory in memory, for lookups and one job")  # noqa: S108
    parser.add_argument("--objects", metavar="URL", help="s3://bucket/prefix to measure too; see AWS_ENDPOINT_URL")
    parser.add_argument("--layouts", nargs="+", default=["files"], help="layouts of kvtier; the first is judged")
    parser.add_argument("--quick", action="store_true", help="a third of the rounds and a quarter of the bytes")
    parser.add_argument("--rounds", type=int, help="rounds of each (5, quick: 3)")
    parser.add_argument("--row-bytes", type=parse_size, action="append", help="only rows of this size, such as 2MiB")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--plot", type=Path, help="file for a picture of the ratios (PNG)")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.quick else 5)
    return options


def _run(console: Console, root: Path, files: Files, in_memory: Files, options: argparse.Namespace) -> None:
    place = Root.look_at(str(root))
    share = 4 if options.quick else 1
    # Where blocks move, and where calls are measured: for files in memory, so that no disk is in it.
    storages: list[tuple[Storage, Storage]] = [(files, in_memory)]
    if options.objects:
        objects = Objects(options.objects)
        storages.append((objects, objects))
    planned = [plan(storage, options.row_bytes, share) for storage, _ in storages]
    needed = options.rounds * len(files.names) * len(JOBS) * sum(planned[0].values()) * 1.5 + (1 << 30)
    if needed > place.free_bytes:
        raise SystemExit(f"{root} has {show_size(place.free_bytes)} free, and {show_size(needed)} are needed")
    console.print(
        f"kvtier {kvtier.__version__}, vLLM {vllm.__version__}, {os.cpu_count()} cores, {place.file_system} "
        f"({place.transfers}), {platform.release()}; medians of {options.rounds} rounds"
    )
    found: list[Measured] = []
    with Progress(transient=True) as progress:
        task = progress.add_task("rounds", total=sum(steps_of(sizes, options.rounds) for sizes in planned))
        for (storage, for_calls), sizes in zip(storages, planned, strict=True):
            measured = measure(storage, sizes, options.rounds, lambda: progress.advance(task))
            measure_calls(measured, for_calls, options.rounds, lambda: progress.advance(task))
            found.append(measured)
    for measured in found:
        print_measured(console, measured)
    judged = [target for measured in found for target in targets(measured)]
    print_targets(console, judged)
    if options.json:
        figures = {
            "version": kvtier.__version__,
            "vllm": vllm.__version__,
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "root": place.as_json(),
            **{measured.kind: as_json(measured) for measured in found},
            "targets": [{"what": t.what, "value": t.value, "bound": t.bound, "is_met": t.is_met} for t in judged],
        }
        options.json.write_text(json.dumps(figures, indent=2))
    if options.plot:
        from plots import plot_ratios  # noqa: PLC0415 - matplotlib takes a second

        every = {name: by_size for measured in found for name, by_size in ratios(measured).items()}
        plot_ratios(
            options.plot,
            every,
            len(PLOTTED) + 1,
            f"kvtier {kvtier.__version__} over vLLM {vllm.__version__}'s own tiers",
        )


if __name__ == "__main__":
    main()
