"""What a tier counts. Reading all of it takes constant time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from kvtier._kvtier import LATENCY_BUCKETS as _LATENCY_BUCKETS

LATENCY_BUCKETS: Final[tuple[float, ...]] = _LATENCY_BUCKETS
"""Upper bounds in seconds of the buckets in `TrafficStats.latency_counts`; one more bucket holds what was slower."""


@final
@dataclass(frozen=True, slots=True)
class TrafficStats:
    """Counters of one direction since the tier was opened."""

    blocks: int
    """Blocks that succeeded."""

    bytes: int
    """Payload bytes that moved."""

    jobs: int
    """Jobs that have their result."""

    failures: Mapping[str, int]
    """Blocks that failed, by kind; kinds that never occurred are left out."""

    latency_counts: tuple[int, ...]
    """Jobs by their time from submission to result, in the buckets of `LATENCY_BUCKETS` (not cumulative)."""

    latency_seconds: float
    """Sum of those times."""


@final
@dataclass(frozen=True, slots=True)
class TierStats:
    """Counters of one tier since it was opened, and the moment's numbers."""

    stores: TrafficStats
    loads: TrafficStats

    already_stored: int
    """Stores that found their block there already and moved nothing; counted in `stores.blocks` as well."""

    hits: int
    """Lookups answered HIT, once per key and request."""

    misses: int
    """Lookups answered MISS, once per key and request."""

    retries: int
    """Lookups first answered RETRY, once per key and request."""

    probes: int
    """Keys that the storage was asked for."""

    probe_failures: int
    """Keys that it could not answer for."""

    events_lost: int
    """Events that nobody took in time."""

    resident_blocks: int
    """Blocks known to be here."""

    open_requests: int
    """Requests that hold verdicts."""

    open_jobs: int
    """Jobs without a result."""

    queued_loads: int
    """Blocks that wait to be loaded."""

    queued_stores: int
    """Blocks that wait to be stored."""

    inflight_ops: int
    """Blocks under way."""

    degraded: bool
    """Whether a read past its deadline still holds a row: new lookups are MISS, new stores are refused."""

    index_complete: bool
    """Whether blocks that are not known to be here are answered MISS without asking the storage."""

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> "TierStats":
        """Puts names to what the native half counts."""
        directions = {name: TrafficStats(**numbers[name]) for name in ("stores", "loads")}
        return cls(**{**numbers, **directions})
