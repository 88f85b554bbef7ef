"""kvtier in a bucket beside obstore's async client, on one S3 server of this machine, in one run.

    make bench-s3                                    # release build, all of it
    make bench-s3 ARGS="--rounds 3 --row-bytes 2MiB --json figures.json"

obstore (object_store for Python) is what a user would write a tier with; it runs at whichever number of requests at a
time is quickest for it, which is found out first. Both move the same rows between one buffer and one bucket, in
alternating order, under fresh prefixes. kvtier's blocks carry a trailer and are verified; obstore's are the bare rows.
The server runs on the same cores: compare the ratios.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from obstore.store import S3Store
from rich import box
from rich.console import Console
from rich.table import Table

import kvtier
from costs import per_key_costs
from kvtier.cli.units import parse_size, show_size
from kvtier.testing import make_key
from passes import WAYS, Moved, Pass, Way, timed
from s3_server import KEY, SECRET, S3Server

ROUND_BYTES = {64 << 10: 24 << 20, 256 << 10: 64 << 20, 2 << 20: 192 << 20}
"""What each stores and loads in a round, by the bytes of a row."""

BLOCKS_PER_JOB = 32
REQUESTS_AT_A_TIME = (4, 8, 16, 32, 64)
_prefixes = itertools.count()


class Rows:
    """Rows of one size: the first half is stored, the second half is loaded into."""

    def __init__(self, row_bytes: int, total: int) -> None:
        self.row_bytes, self.count = row_bytes, total // row_bytes
        self.memory = kvtier.HostRows(2 * self.count, row_bytes)
        flat = memoryview(self.memory).cast("B")
        self.views = [flat[row * row_bytes : (row + 1) * row_bytes] for row in range(2 * self.count)]
        for view in self.views[: self.count]:
            view[:] = os.urandom(row_bytes)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Makes sure that every byte came back."""
        for view in self.views[self.count :]:
            view[:8] = bytes(8)
        yield
        for stored, loaded in zip(self.views[: self.count], self.views[self.count :], strict=True):
            if stored != loaded:
                raise SystemExit("a row did not come back as it was stored")

    def timed(self, move: Callable[[], None]) -> Moved:
        """Moves them all, and says what it took."""
        return timed(self.count * self.row_bytes, move)


def fresh_place(server: S3Server) -> str:
    """A prefix that nothing has used."""
    return f"s3://{server.bucket}/{next(_prefixes)}"


def reaching(server: S3Server) -> dict[str, Any]:
    """The options of a tier there."""
    return {"endpoint": server.endpoint, "allow_http": True, "access_key": KEY, "secret_key": SECRET}


def with_kvtier(server: S3Server, rows: Rows, tier_options: dict[str, Any]) -> Pass:
    """Through a tier, in jobs as an engine gives them."""
    identity = kvtier.Identity("bench/model", 16, dtype="uint8")
    keys = [make_key(number) for number in range(rows.count)]

    def run(submit: Callable[..., None], first_row: int) -> None:
        for job, first in enumerate(range(0, rows.count, BLOCKS_PER_JOB)):
            part = keys[first : first + BLOCKS_PER_JOB]
            submit(job, part, range(first_row + first, first_row + first + len(part)))
        tier.drain_jobs()
        for result in tier.get_finished_jobs():
            result.raise_for_failures()

    options = {**reaching(server), "max_queued_store_bytes": "64GiB", **tier_options}
    with kvtier.open(fresh_place(server), identity=identity, rows=rows.memory, **options) as tier:
        stored = rows.timed(lambda: run(tier.submit_store, 0))
        with rows.loading():
            return Pass(stored, rows.timed(lambda: run(tier.submit_load, rows.count)))


def with_obstore(server: S3Server, rows: Rows, at_a_time: int) -> Pass:
    """Through obstore's async client."""
    bucket = S3Store(
        server.bucket, prefix=f"{next(_prefixes)}", endpoint=server.endpoint, access_key_id=KEY,
        secret_access_key=SECRET, region="us-east-1", unsigned_payload=True, client_options={"allow_http": True},
    )  # fmt: skip

    async def put(number: int) -> None:
        await bucket.put_async(str(number), rows.views[number], use_multipart=False)

    async def get(number: int) -> None:
        answer = await bucket.get_async(str(number))
        rows.views[rows.count + number][:] = memoryview(await answer.bytes_async())

    async def run(request: Callable[[int], Any]) -> None:
        turns = iter(range(rows.count))

        async def worker() -> None:
            for number in turns:
                await request(number)

        await asyncio.gather(*(worker() for _ in range(at_a_time)))

    stored = rows.timed(lambda: asyncio.run(run(put)))
    with rows.loading():
        return Pass(stored, rows.timed(lambda: asyncio.run(run(get))))


def best_concurrency(server: S3Server, rows: Rows) -> dict[Way, int]:
    """How many requests at a time are quickest for obstore, each way."""
    passes = {at_a_time: with_obstore(server, rows, at_a_time) for at_a_time in REQUESTS_AT_A_TIME}
    return {way: max(passes, key=lambda n: passes[n].of(way).rate) for way in WAYS}


def measure(server: S3Server, rows: Rows, rounds: int, tier_options: dict[str, Any]) -> dict[str, Any]:
    """Both, in alternating order."""
    best = best_concurrency(server, rows)
    ours: list[Pass] = []
    theirs: list[Pass] = []

    def obstore() -> None:
        passes = {n: with_obstore(server, rows, n) for n in set(best.values())}
        theirs.append(Pass(passes[best["store"]].store, passes[best["load"]].load))

    steps: list[Callable[[], None]] = [lambda: ours.append(with_kvtier(server, rows, tier_options)), obstore]
    for number in range(rounds):
        for step in steps if number % 2 == 0 else reversed(steps):
            step()
    found: dict[str, Any] = {"row_bytes": rows.row_bytes}
    for way in WAYS:
        pairs = [(mine.of(way), their.of(way)) for mine, their in zip(ours, theirs, strict=True)]
        found[way] = {
            "kvtier_gb_per_s": statistics.median(mine.rate for mine, _ in pairs),
            "obstore_gb_per_s": statistics.median(their.rate for _, their in pairs),
            "rate_ratio": statistics.median(mine.rate / their.rate for mine, their in pairs),
            "kvtier_cpu_s_per_gb": statistics.median(mine.cpu for mine, _ in pairs),
            "obstore_cpu_s_per_gb": statistics.median(their.cpu for _, their in pairs),
            "cpu_ratio": statistics.median(mine.cpu / their.cpu for mine, their in pairs),
            "obstore_requests_at_a_time": best[way],
        }
    return found


def main() -> None:
    """Runs everything and prints it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each row size")
    parser.add_argument("--row-bytes", type=parse_size, action="append", help="only rows of this size, such as 2MiB")
    parser.add_argument("--round-bytes", type=parse_size, help="bytes that each moves in a round")
    parser.add_argument("--concurrency", type=int, help="requests at a time of kvtier, instead of its default")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    tier_options = {"concurrency": options.concurrency} if options.concurrency else {}
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("rows", "", "kvtier", "obstore", "ratio", "CPU s/GB", "ratio", "requests"):
        table.add_column(heading, justify="right", no_wrap=True)
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory, S3Server(Path(directory)) as server:
        costs = per_key_costs(60, fresh_place(server), stepwise=True, **reaching(server))
        for row_bytes in options.row_bytes or ROUND_BYTES:
            total = options.round_bytes or ROUND_BYTES.get(row_bytes, 64 << 20)
            with console.status(f"rows of {show_size(row_bytes)} …"):
                found = measure(server, Rows(row_bytes, total), options.rounds, tier_options)
            figures.append(found)
            for way in WAYS:
                one = found[way]
                table.add_row(
                    show_size(row_bytes), way, f"{one['kvtier_gb_per_s']:.2f} GB/s", f"{one['obstore_gb_per_s']:.2f} GB/s",
                    f"{one['rate_ratio']:.2f}", f"{one['kvtier_cpu_s_per_gb']:.2f}, {one['obstore_cpu_s_per_gb']:.2f}",
                    f"{one['cpu_ratio']:.2f}", str(one["obstore_requests_at_a_time"]),
                )  # fmt: skip
    console.print(table)
    console.print(f"\nmedians of {options.rounds} rounds; `requests`: at a time, the best for obstore")
    shown = ", ".join(f"{call} {cost:.2f}" for call, cost in costs.items())
    console.print(f"the caller's time, with stepwise=True, us a key: {shown}")
    if options.json:
        options.json.write_text(json.dumps({"us_per_key": costs, "rows": figures}, indent=2))


if __name__ == "__main__":
    main()
