"""The measurements, each through a real tier at a place of its own."""

import shutil
import statistics
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import kvtier
from kvtier import Identity, Lookup, TierManager
from kvtier._kvtier import remove_trial
from kvtier.cli.bench.plan import Case, Plan
from kvtier.cli.buckets import Bucket
from kvtier.cli.ending import give_up
from kvtier.cli.mover import Moved, Mover, filled_rows, key_of
from kvtier.cli.places import Place

JOBS_AT_ONCE = 8
BLOCKS_PER_JOB = 8
BUFFER_BYTES = 256 << 20
"""Rows at most; fewer jobs of fewer blocks for large rows, two of one at least."""

LONGEST = 20.0
"""Seconds for one measurement at most."""

Advance = Callable[[Case], None]


@dataclass(frozen=True)
class Speed:
    """How rows move in one direction."""

    bytes_per_second: float
    cpu_seconds_per_gb: float
    median_seconds: float
    """For one block while nothing else moves."""

    p99_seconds: float
    """The same, for the slowest of a hundred."""

    @classmethod
    def of(cls, many: Moved, single: Moved) -> "Speed":
        """Throughput of many blocks at once, latency of single ones."""
        times = sorted(single.job_seconds)
        last = len(times) - 1
        return cls(many.rate, many.cpu_per_gb, statistics.median(times), times[round(0.99 * last)])

    @classmethod
    def median_of(cls, speeds: list["Speed"]) -> "Speed":
        """Of each number, its median over several rounds."""
        return cls(*(statistics.median(numbers) for numbers in zip(*(asdict(s).values() for s in speeds), strict=True)))


@dataclass
class Result:
    """What was found out about one case."""

    case: Case
    stores: list[Speed] = field(default_factory=list)
    loads: list[Speed] = field(default_factory=list)
    """One for each round."""

    failure: str | None = None
    """Why a round ended early."""

    refused: str | None = None
    """Why no tier can be opened like this here, such as a layout that the file system can't have."""

    @property
    def store(self) -> Speed | None:
        """The medians of the rounds."""
        return Speed.median_of(self.stores) if self.stores else None

    @property
    def load(self) -> Speed | None:
        """The same for loads."""
        return Speed.median_of(self.loads) if self.loads else None

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            **asdict(self.case),
            "store": asdict(self.store) if self.store else None,
            "load": asdict(self.load) if self.load else None,
            "rounds": [
                {"store": asdict(store), "load": asdict(load)}
                for store, load in zip(self.stores, self.loads, strict=True)
            ],
            "failure": self.failure,
            "refused": self.refused,
        }


def run(place: Place, plan: Plan, advance: Advance) -> list[Result]:
    """Measures everything in its turn, and removes what that has written."""
    results = {case: Result(case) for case in plan.cases}
    with _sub_roots(place) as sub_root:
        for case in plan.turns():
            result = results[case]
            if result.refused:
                advance(case)
                continue
            try:
                store, load = _measure(sub_root(), place.options, plan, case)
            except kvtier.ConfigError as error:
                result.refused = str(error)
            except (kvtier.KvTierError, _FailedError) as error:
                result.failure = result.failure or str(error)
            else:
                result.stores.append(store)
                result.loads.append(load)
            advance(case)
    return list(results.values())


@contextmanager
def _sub_roots(place: Place) -> Iterator[Callable[[], str]]:
    """What makes a new place for a tier, as often as needed.

    All go at the end, not one by one: file systems are slower at making files while they forget others.
    """
    if isinstance(place, Bucket):
        prefix = f"{place.url}/.kvtier-bench-{uuid.uuid4().hex}"
        try:
            yield lambda: f"{prefix}/{uuid.uuid4().hex}"
        finally:
            try:
                remove_trial(prefix, place.options)
            except kvtier.KvTierError as error:
                give_up(f"objects are left below {prefix}: {error}")
        return
    try:
        directory = tempfile.mkdtemp(prefix=".kvtier-bench-", dir=place.path)
    except OSError as error:
        give_up(f"nothing can be made at {place.path}: {error.strerror}")
    try:
        yield lambda: tempfile.mkdtemp(dir=directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if Path(directory).is_dir():
            give_up(f"{directory} could not be removed")


class _FailedError(Exception):
    """A block failed."""


def _measure(url: str, options: dict[str, Any], plan: Plan, case: Case) -> tuple[Speed, Speed]:
    rows_at_most = max(2, BUFFER_BYTES // case.row_bytes)
    jobs_at_once = min(JOBS_AT_ONCE, rows_at_most)
    blocks_per_job = min(BLOCKS_PER_JOB, rows_at_most // jobs_at_once)
    rows = filled_rows(jobs_at_once * blocks_per_job, case.row_bytes)
    identity = Identity("kvtier-bench", 16, dtype="uint8")
    options = {**options, **case.options(plan.stored(case))}
    with kvtier.open(url, identity=identity, rows=rows, **options) as tier:
        many, single = Mover(tier, jobs_at_once, blocks_per_job), Mover(tier, 1, 1)
        count, samples = plan.blocks(case), plan.samples(case)
        keys = [key_of(number) for number in range(count * (1 + plan.warm) + samples)]
        for first in range(0, count * plan.warm, count):
            _moved(many, tier.submit_store, keys[first : first + count])
        measured, sampled = keys[count * plan.warm : -samples], keys[-samples:]
        store = Speed.of(_moved(many, tier.submit_store, measured), _moved(single, tier.submit_store, sampled))
        load = Speed.of(
            _moved(many, tier.submit_load, _there(tier, measured)),
            _moved(single, tier.submit_load, _there(tier, sampled)),
        )
    return store, load


def _there(tier: TierManager, keys: list[bytes]) -> list[bytes]:
    """The blocks that can be loaded: time may have been over before all were stored, and pools make room."""
    return [key for key, found in zip(keys, tier.lookup_many(keys), strict=True) if found is Lookup.HIT]


def _moved(mover: Mover, submit: Callable[..., None], keys: list[bytes]) -> Moved:
    moved = mover.move(submit, iter(mover.in_jobs(keys)), LONGEST)
    if moved.failure or not moved.blocks:
        raise _FailedError(moved.failure or "no block was there")
    return moved
