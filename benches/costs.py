"""What a tier costs the process that uses it, beside throughput: time of the caller, memory, the interpreter's lock."""

import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kvtier
from kvtier.testing import make_key

BLOCKS_PER_JOB = 32
CALLS_AT_ONCE = 256


def per_key_costs(jobs: int, place: str = "memory://", **options: Any) -> dict[str, float]:
    """Microseconds per key of the calls that a scheduler makes, from Python: medians.

    Rows are small and the store is memory by default, so that nothing but the call is measured; jobs end between two
    calls.
    """
    rows = kvtier.HostRows(BLOCKS_PER_JOB, 4096)
    row_ids = list(range(BLOCKS_PER_JOB))
    parts = [[make_key(job * BLOCKS_PER_JOB + n) for n in range(BLOCKS_PER_JOB)] for job in range(jobs)]
    keys = [key for part in parts for key in part]
    with _open(place, rows, **options) as tier:
        costs = {"submit a store": _of_jobs(tier, tier.submit_store, parts, row_ids)}
        costs["submit a load"] = _of_jobs(tier, tier.submit_load, parts, row_ids)
        repeats = range(21)
        costs["lookup"] = _of_calls(keys, repeats, lambda _: tier.lookup)
        requests = [f"request {n}" for n in repeats]
        costs["lookup for a request"] = _of_calls(keys, requests, lambda request: lambda key: tier.lookup(key, request))
        costs["lookup again"] = _of_calls(keys, requests, lambda request: lambda key: tier.lookup(key, request))
        at_once = [keys[first : first + CALLS_AT_ONCE] for first in range(0, len(keys), CALLS_AT_ONCE)]
        many = [_of_calls([part], repeats, lambda _: tier.lookup_many) / len(part) for part in at_once]
        costs["lookup_many"] = statistics.median(many)
    return costs


def _of_jobs(
    tier: kvtier.TierManager, submit: Callable[..., None], parts: list[list[bytes]], row_ids: list[int]
) -> float:
    times = []
    for job, keys in enumerate(parts):
        begun = time.perf_counter()
        submit(job, keys, row_ids)
        times.append(time.perf_counter() - begun)
        tier.drain_jobs()
        for result in tier.get_finished_jobs():
            result.raise_for_failures()
    return statistics.median(times) / BLOCKS_PER_JOB * 1e6


def _of_calls(arguments: list[Any], repeats: Any, call_of: Callable[[Any], Callable[[Any], object]]) -> float:
    times = []
    for repeat in repeats:
        call = call_of(repeat)
        # Parts that are short beside a time slice: those in which others had the processor don't move the median.
        for first in range(0, len(arguments), CALLS_AT_ONCE):
            part = arguments[first : first + CALLS_AT_ONCE]
            begun = time.perf_counter()
            for argument in part:
                call(argument)
            times.append((time.perf_counter() - begun) / len(part))
    return statistics.median(times) * 1e6


def memory_growth(root: Path, total_bytes: int) -> int:
    """Bytes by which a process grows at its peak, beyond its rows, while so many bytes are stored and loaded."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    child = spawn.Process(target=_grow, args=(root, total_bytes, sender))
    child.start()
    sender.close()
    growth: int = receiver.recv()
    child.join()
    return growth


def _grow(root: Path, total_bytes: int, sender: Any) -> None:
    row_bytes, count = 256 << 10, 256
    rows = kvtier.HostRows(count, row_bytes)
    memoryview(rows).cast("B")[:] = b"\1" * (count * row_bytes)
    with _open(root, rows) as tier:
        blocks = total_bytes // 2 // row_bytes
        Path("/proc/self/clear_refs").write_text("5")  # the peak is now
        before = _peak_bytes()
        for submit in (tier.submit_store, tier.submit_load):
            for first in range(0, blocks, count):
                _move(tier, submit, range(first, min(first + count, blocks)))
        sender.send(_peak_bytes() - before)


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def counting_share(root: Path, total_bytes: int, rounds: int) -> float:
    """Share of its solo rate that a thread keeps which only counts, while so many bytes are stored and loaded."""
    row_bytes, count = 2 << 20, 128
    rows = kvtier.HostRows(count, row_bytes)
    blocks = total_bytes // 2 // row_bytes
    shares = []
    with _open(root, rows) as tier, _counter() as counted:
        for number in range(rounds):
            solo = _rate(counted, lambda: time.sleep(0.5))

            def move(offset: int = number * blocks) -> None:
                for submit in (tier.submit_store, tier.submit_load):
                    for first in range(0, blocks, count):
                        _move(tier, submit, range(offset + first, offset + min(first + count, blocks)))

            shares.append(_rate(counted, move) / solo)
    return statistics.median(shares)


@contextmanager
def _counter() -> Iterator[Callable[[], int]]:
    """A thread that counts, and what it has counted so far."""
    count, is_over = 0, False

    def run() -> None:
        nonlocal count
        while not is_over:
            count += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: count
    finally:
        is_over = True
        thread.join()


def _rate(counted: Callable[[], int], work: Callable[[], None]) -> float:
    begun, before = time.perf_counter(), counted()
    work()
    return (counted() - before) / (time.perf_counter() - begun)


def _open(place: str | Path, rows: kvtier.HostRows, **options: Any) -> kvtier.TierManager:
    return kvtier.open(place, identity=kvtier.Identity("bench/costs", 16, dtype="uint8"), rows=rows, **options)


def _move(tier: kvtier.TierManager, submit: Callable[..., None], numbers: range) -> None:
    for first in range(0, len(numbers), BLOCKS_PER_JOB):
        keys = [make_key(number) for number in numbers[first : first + BLOCKS_PER_JOB]]
        submit(first, keys, range(first, first + len(keys)))
    tier.drain_jobs()
    for result in tier.get_finished_jobs():
        result.raise_for_failures()
