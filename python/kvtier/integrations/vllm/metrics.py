"""What a tier counts, as metrics of vLLM: names, documentation, and what has changed since the last look."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvtier.integrations.vllm.contract import (
    OffloadingConnectorStats,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)
from kvtier.metrics import LATENCY_BUCKETS

__all__ = ["DEFINITIONS", "Observer"]

_TIER = ("tier",)

_COUNTERS: Final = {
    "lookup_hits": "Lookups answered HIT, once per key and request.",
    "lookup_misses": "Lookups answered MISS, once per key and request.",
    "lookup_retries": "Lookups first answered RETRY, once per key and request.",
    "probed_blocks": "Blocks that the storage was asked for.",
    "probe_failures": "Blocks that the storage could not answer for; they count as misses.",
    "stored_blocks": "Blocks that were stored, those that were there already included.",
    "stored_bytes": "Bytes that were written.",
    "already_stored_blocks": "Blocks that were there already, so that nothing was written.",
    "dropped_blocks": "Blocks that were not stored because too much was waiting.",
    "loaded_blocks": "Blocks that were loaded and, unless verification is off, verified.",
    "loaded_bytes": "Bytes that were read into the host buffer.",
    "lost_events": "Events that the engine did not take in time.",
}
_GAUGES: Final = {
    "resident_blocks": "Blocks that are known to be in the storage.",
    "resident_bytes": "Their payload bytes.",
    "queued_load_blocks": "Blocks that wait to be loaded.",
    "queued_store_blocks": "Blocks that wait to be stored.",
    "inflight_blocks": "Blocks under way.",
    "degraded": "1 while the storage doesn't answer: an overdue read holds a row, lookups miss and stores are refused.",
}
_FAILURES: Final = "kvtier:failed_blocks"
_SECONDS: Final = "kvtier:job_seconds"

DEFINITIONS: Final[Mapping[str, OffloadingMetricMetadata]] = {
    **{f"kvtier:{name}": OffloadingCounterMetadata(text, _TIER) for name, text in _COUNTERS.items()},
    **{f"kvtier:{name}": OffloadingGaugeMetadata(text, _TIER) for name, text in _GAUGES.items()},
    _FAILURES: OffloadingCounterMetadata(
        "Blocks that failed, by direction (store, load) and kind (docs/operations.md).", (*_TIER, "direction", "kind")
    ),
    _SECONDS: OffloadingHistogramMetadata(
        "Seconds from a job's submission to the end of its last block, by direction (store, load).",
        (*_TIER, "direction"),
        buckets=LATENCY_BUCKETS,
    ),
}
"""All metrics by name, with the label `tier` that keeps several tiers apart."""


class Observer:
    """Says what has changed in a tier's counters since the last time.

    Args:
        tier: The value of the label `tier`.
        block_bytes: Payload bytes of a block.
    """

    def __init__(self, tier: str, block_bytes: int) -> None:
        self._tier = tier
        self._block_bytes = block_bytes
        self._counters: dict[str, int] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._gauges: dict[str, int] = {}
        self._seconds: dict[str, list[float]] = {"store": [], "load": []}
        self._untold: OffloadingConnectorStats | None = None

    def job_took(self, direction: str, seconds: float) -> None:
        """Counts a job among the latencies."""
        self._seconds[direction].append(seconds)

    def restart(self, last: Mapping[str, Any]) -> None:
        """The tier's counters begin anew at zero, after these."""
        self._untold = self.changes(last)
        self._counters.clear()
        self._failures.clear()

    def changes(self, stats: Mapping[str, Any]) -> OffloadingConnectorStats | None:
        """The changes since the last call; None where there are none.

        Args:
            stats: The fields of `TierStats` as plain numbers, which are quicker to make: this happens at every step.
        """
        changes, self._untold = self._untold or OffloadingConnectorStats(), None
        label = (self._tier,)
        for name, count in _counters(stats):
            if grown := count - self._counters.get(name, 0):
                self._counters[name] = count
                changes.increase_counter(f"kvtier:{name}", grown, label)
        for direction, traffic in (("store", stats["stores"]), ("load", stats["loads"])):
            for kind, count in traffic["failures"].items():
                if kind != "dropped" and (grown := count - self._failures.get((direction, kind), 0)):
                    self._failures[direction, kind] = count
                    changes.increase_counter(_FAILURES, grown, (self._tier, direction, kind))
            for seconds in self._seconds[direction]:
                changes.observe_histogram(_SECONDS, seconds, (self._tier, direction))
            self._seconds[direction].clear()
        for name, value in _gauges(stats, self._block_bytes):
            if value != self._gauges.get(name):
                self._gauges[name] = value
                changes.set_gauge(f"kvtier:{name}", value, label)
        return None if changes.is_empty() else changes


def _counters(stats: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    stores, loads = stats["stores"], stats["loads"]
    yield "lookup_hits", stats["hits"]
    yield "lookup_misses", stats["misses"]
    yield "lookup_retries", stats["retries"]
    yield "probed_blocks", stats["probes"]
    yield "probe_failures", stats["probe_failures"]
    yield "stored_blocks", stores["blocks"]
    yield "stored_bytes", stores["bytes"]
    yield "already_stored_blocks", stats["already_stored"]
    yield "dropped_blocks", stores["failures"].get("dropped", 0)
    yield "loaded_blocks", loads["blocks"]
    yield "loaded_bytes", loads["bytes"]
    yield "lost_events", stats["events_lost"]


def _gauges(stats: Mapping[str, Any], block_bytes: int) -> Iterator[tuple[str, int]]:
    yield "resident_blocks", stats["resident_blocks"]
    yield "resident_bytes", stats["resident_blocks"] * block_bytes
    yield "queued_load_blocks", stats["queued_loads"]
    yield "queued_store_blocks", stats["queued_stores"]
    yield "inflight_blocks", stats["inflight_ops"]
    yield "degraded", int(stats["degraded"])
