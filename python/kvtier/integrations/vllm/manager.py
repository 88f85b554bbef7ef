"""The tier itself: vLLM's calls, turned into those of `kvtier.TierManager`."""

import itertools
import logging
import os
import sys
import weakref
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Final, cast
from uuid import uuid4

import kvtier
from kvtier import Lookup
from kvtier.integrations.vllm import contract
from kvtier.integrations.vllm.contract import (
    BackpressureDetector,
    JobResult,
    Locality,
    LookupResult,
    Medium,
    OffloadingConnectorStats,
    OffloadingEvent,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    SecondaryTierManager,
    TransferJob,
)
from kvtier.integrations.vllm.entry import Entry
from kvtier.integrations.vllm.identity import covered, identity_of, not_stated, row_layout
from kvtier.integrations.vllm.metrics import DEFINITIONS, Observer
from kvtier.integrations.vllm.options import VllmOptions

__all__ = ["KvTierSecondaryTierManager"]

_log = logging.getLogger(__name__)

# Attributes of modules cost less than attributes of enumerations, at every lookup.
_HERE, _ABSENT = Lookup.HIT, Lookup.MISS
_HIT, _MISS, _RETRY = LookupResult.HIT, LookupResult.MISS, LookupResult.RETRY

SUSPICIOUS_BYTES: Final = 1 << 30
"""After so much was stored, and four times the host buffer, nothing loaded means that something is wrong."""

# Tiers that were not shut down.
_open: "weakref.WeakSet[KvTierSecondaryTierManager]" = weakref.WeakSet()

# Seconds.
_DRAIN_WARNING: Final = 5.0
_SHUTDOWN_TIMEOUT: Final = 10.0
_INFO_KEYS: Final = ("kvtier_version", "kvtier_place", "kvtier_kind", "kvtier_rows", "kvtier_verify")


@contract.check_complete
class KvTierSecondaryTierManager(SecondaryTierManager):
    """A secondary tier that keeps blocks in kvtier.

    vLLM makes it from an entry of `secondary_tiers`; the entry's options are those of `VllmOptions`.

    Args:
        offloading_spec: vLLM's description of the engine.
        primary_kv_view: The rows of the host buffer. They are the tier's to read and write until `shutdown`.
        tier_type: What the entry calls the tier.
        backpressure_detector: Passed on to the base class; vLLM's manager drives it.
        **rest: The entry's options. Keywords that newer versions of vLLM add are ignored.

    Raises:
        ConfigError: Options that are unknown or can't work; the message lists all of them.
        KvTierError: As `kvtier.open`.
    """

    medium: ClassVar[Medium] = Medium.STORAGE
    _label: str

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        _log_where_vllm_does()
        contract.say_if_untested()
        taken = [tier._label for tier in _open if tier._offloading_spec is offloading_spec]  # noqa: SLF001 - its own class
        entry = Entry.of(offloading_spec, tier_type, rest, taken)
        self._options = options = VllmOptions.of(entry.options)
        if options.on_reset != "keep" and not contract.resets_drain_tiers():
            raise kvtier.ConfigError(
                f'on_reset={options.on_reset!r}: vLLM {contract.installed()} doesn\'t tell its tiers of a reset; take "keep"'
            )
        self.locality = Locality(options.locality) if options.locality is not None else None
        self._events = options.enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._label = entry.label
        identity = self._identity()
        # vLLM can release its own view only if nobody else holds it, so the tier holds one derived from it.
        self._rows = primary_kv_view[:]
        try:
            self._tier = self._open_tier(identity)
        except BaseException:
            self._rows.release()
            raise
        self._observer = Observer(self._label, identity.payload_bytes or self._block_size_bytes)
        self._results: list[JobResult] = []
        self._stored_bytes = 0
        self._watches_for_loads = True
        self._knows_the_seed = False
        _open.add(self)
        self._say_what_is_shared(identity)

    # Per key and request: called hundreds of times in a step.

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT or MISS, or RETRY until the next step where the storage has to be asked."""
        answer = self._tier.lookup(key, req_context.req_id)
        return _HIT if answer is _HERE else _MISS if answer is _ABSENT else _RETRY

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: ARG002 - vLLM's
        """These blocks were used just now."""
        self._tier.touch(keys)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:  # noqa: ARG002 - vLLM's
        """Asks for no other policy than vLLM's usual one."""
        if not self._knows_the_seed:
            self._knows_the_seed = True
            self._warn_of_a_random_seed()
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """What the request was told is forgotten."""
        self._tier.release(req_context.req_id)

    # Per job.

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Stores rows, beginning when the step ends."""
        if self._options.tier.read_only:
            self._results.append(JobResult(job_metadata.job_id, success=False, transfer_time=0.0, transfer_bytes=0))
            return
        self._tier.submit_store(job_metadata.job_id, job_metadata.keys, job_metadata.chunk_ids)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Loads rows, beginning when the step ends."""
        self._tier.submit_load(job_metadata.job_id, job_metadata.keys, job_metadata.chunk_ids)

    def get_finished_jobs(self) -> list[JobResult]:
        """The jobs that have ended since the last call. A block that could not be loaded is a MISS from now on."""
        results, self._results = self._results, []
        return results + self._take_results()

    # Per step.

    def on_schedule_end(self, context: ScheduleEndContext) -> None:  # noqa: ARG002 - vLLM's
        """Begins what the step has submitted, and asks the storage for all that its lookups left open, in one go."""
        self._tier.end_step()

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What has happened to blocks, where the operator and the engine want to know."""
        if not self._events:
            return ()
        taken = itertools.groupby(self._tier.take_events(), key=lambda event: event.kind)
        # The engine announces its resets itself, for all of its tiers.
        return [
            OffloadingEvent(
                keys=[OffloadKey(event.key) for event in alike if event.key],
                medium=self.medium,
                removed=kind == "removed",
                locality=self.locality,
            )
            for kind, alike in taken
            if kind != "cleared"
        ]

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What has changed in the metrics since the last call."""
        return self._observer.changes(self._tier._stats())  # noqa: SLF001 - see Observer.changes

    # Beginnings and ends.

    def drain_jobs(self) -> None:
        """Waits until every job has its result; then, where the engine drains in order to reset, does as `on_reset` says.

        Raises:
            KvTierError: The blocks could not be taken away. They are still there, so the engine must not go on as if
                they were not.
        """
        while not self._tier.drain_jobs(timeout=_DRAIN_WARNING):
            _log.warning("%s: still waiting for the storage, before the caches can be reset", self._label)
        if self._options.on_reset == "keep" or not _is_part_of_a_reset():
            return
        if self._options.on_reset == "delete":
            self._tier.reset()
            _log.info("%s: the engine was reset, and all blocks here are gone, for everybody", self._label)
        else:
            self._begin_epoch()

    def shutdown(self) -> None:
        """Ends the tier and gives the rows back. Nothing is deleted; calling it again is harmless.

        Raises:
            DeadlineExceededError: The storage still reads or writes rows, so their memory must stay where it is.
        """
        self._tier.shutdown(_SHUTDOWN_TIMEOUT)
        self._rows.release()
        _open.discard(self)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:  # noqa: ARG003
        """The metrics that `get_stats` speaks of."""
        return dict(DEFINITIONS)

    @classmethod
    def config_info_keys(cls, tier_config: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG003 - vLLM's
        """The names of what `config_info` says."""
        return _INFO_KEYS

    def config_info(self) -> Mapping[str, str]:
        """What is fixed about this tier."""
        tier = self._options.tier
        rows = "vllm" if tier.compat else row_layout(self._offloading_spec, self._options.replicated).value
        values = (kvtier.__version__, self._tier.place, tier.compat or "kvtier", rows, tier.verify)
        return dict(zip(_INFO_KEYS, values, strict=True))

    def _take_results(self) -> list[JobResult]:
        results = []
        for job in self._tier.get_finished_jobs():
            self._observer.job_took(job.kind, job.transfer_time)
            if self._watches_for_loads:
                self._watch_for_loads(job)
            partly = not job.success and job.kind == "load" and job.successful_keys
            keys = cast("Collection[OffloadKey]", job.successful_keys) if partly else None
            results.append(JobResult(job.job_id, job.success, keys, job.transfer_time, job.transfer_bytes))
        return results

    def _identity(self, epoch: str | None = None) -> kvtier.Identity:
        spec, options = self._offloading_spec, self._options
        in_file = contract.blocks_in_an_object(spec.blocks_per_chunk) if options.in_objects else None
        return identity_of(spec, options, self._block_size_bytes, epoch, in_file)

    def _open_tier(self, identity: kvtier.Identity) -> kvtier.TierManager:
        return kvtier.open(
            self._options.url,
            identity=identity,
            rows=self._rows,
            config=self._options.tier,
            stepwise=True,
            events=self._events,
        )

    def _begin_epoch(self) -> None:
        """From now on this engine's blocks are under a name that nobody else has."""
        epoch = f"epoch-{uuid4()}"
        identity = self._identity(epoch)
        opened = self._open_tier(identity)
        self._results += self._take_results()
        self._observer.restart(self._tier._stats())  # noqa: SLF001 - see Observer.changes
        earlier, self._tier = self._tier, opened
        earlier.shutdown()
        _log.info("%s: the engine was reset; its blocks are in a namespace of their own now: %s", self._label, epoch)

    def _say_what_is_shared(self, identity: kvtier.Identity) -> None:
        compat = self._options.tier.compat
        fields = covered(identity, compat)
        _log.info("%s: blocks are in %s, shared with engines that agree in %s", self._label, self._tier.place, fields)
        if compat is None:
            if missing := not_stated(identity):
                _log.warning(
                    "%s: not stated, so engines that differ in it read each other's blocks: %s; state what applies in "
                    "the tier's options",
                    self._label,
                    ", ".join(missing),
                )
        elif identity.parallel_agnostic and not identity.replicated_layout and identity.canonical_format is None:
            _log.warning(
                "%s: vLLM's own naming shares these rows between parallel layouts, and wrong output has been seen where "
                'engines do; don\'t change the TP size on this root, or leave out compat="vllm"',
                self._label,
            )
        if self._options.enable_kv_events and not self._events:
            _log.warning("%s: enable_kv_events has no effect: KV cache events are off in the engine", self._label)

    def _warn_of_a_random_seed(self) -> None:
        """Once the engine has chosen the seed, which is after its tiers are made."""
        if "PYTHONHASHSEED" not in os.environ and contract.get_none_hash_seed() != contract.DEFAULT_NONE_HASH_SEED:
            _log.warning(
                "%s: block hashes are seeded at random, so no other process can find what this one stores, and neither "
                "can this engine after a restart; take a cryptographic --prefix-caching-hash-algo, or set PYTHONHASHSEED",
                self._label,
            )

    def _watch_for_loads(self, job: kvtier.JobResult) -> None:
        """Warns once when far more was stored than the host buffer holds, and nothing ever came back."""
        if job.kind == "load":
            self._watches_for_loads = not job.successful_keys
            return
        self._stored_bytes += job.transfer_bytes
        if self._stored_bytes > max(4 * self._rows.nbytes, SUSPICIOUS_BYTES):
            self._watches_for_loads = False
            _log.warning(
                "%s: %.1f GiB were stored, and nothing was ever loaded: no request has asked for what is here. Are block "
                "hashes seeded at random, do prompts share nothing, does each change what all have in common?",
                self._label,
                self._stored_bytes / (1 << 30),
            )


def _is_part_of_a_reset() -> bool:
    """Whether vLLM's manager is resetting its caches: there is no other way to learn of it than who drains the tier."""
    frame = sys._getframe(2)  # noqa: SLF001 - as `logging` does
    while frame.f_code.co_name != "reset_cache":
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return True


def _log_where_vllm_does() -> None:
    """Sends kvtier's log records to where vLLM's go, unless somebody has seen to them already."""
    ours, theirs = logging.getLogger("kvtier"), logging.getLogger("vllm")
    if not ours.hasHandlers():
        ours.handlers = list(theirs.handlers)
        ours.setLevel(theirs.getEffectiveLevel())
