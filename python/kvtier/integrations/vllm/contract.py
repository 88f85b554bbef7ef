"""What kvtier uses of vLLM's tiering contract, and the versions of it that are tested.

vLLM renames parts of this contract from one minor version to the next. What is missing is found here, when the tier is
loaded, and said in one sentence; everything else of the package relies on what it imports from here.
"""

import dataclasses
import logging
from typing import Final

__all__ = [
    "DEFAULT_NONE_HASH_SEED",
    "TESTED",
    "BackpressureDetector",
    "JobResult",
    "Locality",
    "LookupResult",
    "Medium",
    "OffloadKey",
    "OffloadingConnectorStats",
    "OffloadingCounterMetadata",
    "OffloadingEvent",
    "OffloadingGaugeMetadata",
    "OffloadingHistogramMetadata",
    "OffloadingMetricMetadata",
    "OffloadingSpec",
    "ReqContext",
    "RequestOffloadingContext",
    "ScheduleEndContext",
    "SecondaryTierManager",
    "TieringOffloadingManager",
    "TransferJob",
    "blocks_in_an_object",
    "check_complete",
    "get_none_hash_seed",
    "installed",
    "resets_drain_tiers",
    "say_if_untested",
]

_log = logging.getLogger(__name__)

TESTED: Final = ("0.32", "0.33")
"""The minor versions of vLLM that kvtier's tests run on."""


def installed() -> str:
    """The version of vLLM that is installed, whatever its package is called."""
    import vllm  # noqa: PLC0415 - only when something is wrong

    return str(getattr(vllm, "__version__", "(unknown version)"))


def _unusable(what: str) -> ImportError:
    tested = " and ".join(TESTED)
    return ImportError(
        f"kvtier's tier can't be used in vLLM {installed()}: {what}. It was tested with vLLM {tested}; install one of "
        "these, or a newer kvtier"
    )


try:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
    from vllm.v1.core.kv_cache_utils import DEFAULT_NONE_HASH_SEED, get_none_hash_seed
    from vllm.v1.kv_offload.base import (
        Locality,
        LookupResult,
        Medium,
        OffloadingCounterMetadata,
        OffloadingEvent,
        OffloadingGaugeMetadata,
        OffloadingHistogramMetadata,
        OffloadingMetricMetadata,
        OffloadingSpec,
        OffloadKey,
        ReqContext,
        RequestOffloadingContext,
        ScheduleEndContext,
    )
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
    from vllm.v1.kv_offload.tiering.manager import TieringOffloadingManager
except ImportError as error:
    raise _unusable(str(error)) from error

_FIELDS: Final = {
    TransferJob: ("job_id", "keys", "chunk_ids"),
    JobResult: ("job_id", "success", "successful_keys", "transfer_time", "transfer_bytes"),
    OffloadingEvent: ("keys", "medium", "removed", "locality"),
    ReqContext: ("req_id",),
}
for _class, _names in _FIELDS.items():
    if _missing := set(_names) - {field.name for field in dataclasses.fields(_class)}:
        raise _unusable(f"its {_class.__name__} has no {' and no '.join(sorted(_missing))}")


def check_complete(tier_class: type[SecondaryTierManager]) -> type[SecondaryTierManager]:
    """Refuses to load a tier that lacks a method which this vLLM asks for."""
    if missing := getattr(tier_class, "__abstractmethods__", None):
        raise _unusable(f"it asks for {' and '.join(sorted(missing))}, which this kvtier doesn't know")
    return tier_class


def say_if_untested() -> None:
    """Warns about a version of vLLM that has all that is needed and was not there yet to be tested."""
    if not installed().startswith(tuple(f"{version}." for version in TESTED)):
        _log.warning("kvtier was tested with vLLM %s; this is %s", " and ".join(TESTED), installed())


def resets_drain_tiers() -> bool:
    """Whether a reset of this vLLM's offloading drains its tiers, which is how they learn of it."""
    return "drain_jobs" in TieringOffloadingManager.reset_cache.__code__.co_names


def blocks_in_an_object(blocks_per_chunk: int) -> int:
    """How many blocks this vLLM's own tier counts in an object, which its naming covers: 0.32 forgets those of a chunk."""
    return 1 if installed().startswith("0.32.") else blocks_per_chunk
