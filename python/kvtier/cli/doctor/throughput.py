"""What a root can move, measured through a real tier in a directory of its own."""

import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import kvtier
from kvtier import Identity, Lookup, TierManager
from kvtier._kvtier import remove_trial
from kvtier.cli.buckets import Bucket
from kvtier.cli.mover import Mover, filled_rows, key_of
from kvtier.cli.places import Place

JOBS_AT_ONCE = 8
BLOCKS_PER_JOB = 8
BUFFER_BYTES = 128 << 20
"""Rows at most; fewer jobs of fewer blocks for large rows, two of one at least."""

MOST_BYTES = 1 << 30
"""Written for each row size at most, and never more than a part of what is free."""

MOST_BYTES_IN_BUCKETS = 256 << 20
"""There somebody may pay for traffic."""


@dataclass(frozen=True)
class Throughput:
    """How rows of one size move."""

    row_bytes: int
    stored: int = 0
    """Blocks that were stored."""

    store_bytes_per_second: float = 0
    store_cpu_seconds_per_gb: float = 0
    loaded: int = 0
    """Blocks that were loaded; one block may count several times."""

    load_bytes_per_second: float = 0
    load_cpu_seconds_per_gb: float = 0
    probe_seconds: float = 0
    """Time for a block that has to be looked for, while many are asked for at once."""

    failure: str | None = None
    """Why it ended early."""

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def measure(place: Place, row_sizes: tuple[int, ...], seconds: float) -> list[Throughput]:
    """Stores and loads rows of each size below `place`, for so many seconds together, and removes all of it.

    A tier at the root itself would delete there what resets have set aside, and a doctor deletes nothing of others.
    """
    if isinstance(place, Bucket):
        return _measure_bucket(place, row_sizes, seconds)
    try:
        directory = tempfile.mkdtemp(prefix=".kvtier-doctor-", dir=place.path)
    except OSError as error:
        return [Throughput(row_sizes[0], failure=str(error))]
    try:
        # All is removed at the end: file systems are slower at making files while they forget others.
        most_bytes = min(MOST_BYTES, place.free_bytes // (10 * len(row_sizes)))
        return _measure_each(directory, place.options, row_sizes, most_bytes, seconds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measure_bucket(bucket: Bucket, row_sizes: tuple[int, ...], seconds: float) -> list[Throughput]:
    url = f"{bucket.url}/.kvtier-doctor-{uuid.uuid4().hex}"
    left: list[Throughput] = []
    try:
        measured = _measure_each(url, bucket.options, row_sizes, MOST_BYTES_IN_BUCKETS, seconds)
    finally:
        try:
            remove_trial(url, bucket.options)
        except kvtier.KvTierError as error:
            left = [Throughput(row_sizes[0], failure=f"objects are left below {url}: {error}")]
    return measured + left


def _measure_each(
    url: str, options: dict[str, Any], row_sizes: tuple[int, ...], most_bytes: int, seconds: float
) -> list[Throughput]:
    return [_measure(url, options, row_bytes, most_bytes, seconds / len(row_sizes)) for row_bytes in row_sizes]


def _measure(url: str, options: dict[str, Any], row_bytes: int, most_bytes: int, seconds: float) -> Throughput:
    try:
        return _measure_tier(url, options, row_bytes, most_bytes, seconds)
    except kvtier.KvTierError as error:
        return Throughput(row_bytes, failure=str(error))


def _measure_tier(url: str, options: dict[str, Any], row_bytes: int, most_bytes: int, seconds: float) -> Throughput:
    rows_at_most = max(2, BUFFER_BYTES // row_bytes)
    jobs_at_once = min(JOBS_AT_ONCE, rows_at_most)
    blocks_per_job = min(BLOCKS_PER_JOB, rows_at_most // jobs_at_once)
    rows = filled_rows(jobs_at_once * blocks_per_job, row_bytes)
    identity = Identity("kvtier-doctor", 16, dtype="uint8")
    with kvtier.open(url, identity=identity, rows=rows, **options) as tier:
        mover = Mover(tier, jobs_at_once, blocks_per_job)
        keys = [key_of(number) for number in range(max(1, most_bytes // row_bytes))]
        stored = mover.move(tier.submit_store, iter(mover.in_jobs(keys)), seconds / 2)
        there = keys[: stored.blocks]
        probe_seconds = _probe(tier, there)
        loaded = mover.move(tier.submit_load, _again_and_again(mover.in_jobs(there)), seconds / 2)
    return Throughput(
        row_bytes=row_bytes,
        stored=stored.blocks,
        store_bytes_per_second=stored.rate,
        store_cpu_seconds_per_gb=stored.cpu_per_gb,
        loaded=loaded.blocks,
        load_bytes_per_second=loaded.rate,
        load_cpu_seconds_per_gb=loaded.cpu_per_gb,
        probe_seconds=probe_seconds,
        failure=stored.failure or loaded.failure,
    )


def _probe(tier: TierManager, keys: list[bytes]) -> float:
    tier.forget()
    begun = time.monotonic()
    while Lookup.RETRY in tier.lookup_many(keys, request="doctor"):
        time.sleep(0.0005)
    tier.release("doctor")
    return (time.monotonic() - begun) / max(1, len(keys))


def _again_and_again(jobs: list[list[bytes]]) -> Iterator[list[bytes]]:
    while jobs:
        yield from jobs
