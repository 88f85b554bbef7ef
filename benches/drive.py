"""Drives a secondary tier as vLLM's tiering manager does, with a clock at each call."""

import mmap
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, ScheduleEndContext
from vllm.v1.kv_offload.tiering.base import TransferJob

from passes import Moved, Way

IN_FLIGHT = 16
"""Jobs under way at the same time: as many as vLLM's own tier on files has threads for."""

STEP = 0.0005
"""Seconds from one step to the next while blocks move."""

MODEL_STEP = 0.01
"""The same while blocks are looked up: what a small model takes, and time enough to ask a file system."""


class HostBuffer:
    """Rows as vLLM has them: shared memory, page-aligned, each with other bytes."""

    def __init__(self, count: int, row_bytes: int) -> None:
        self.count, self.row_bytes = count, row_bytes
        self._rows = np.frombuffer(mmap.mmap(-1, count * row_bytes), dtype=np.uint8).reshape(count, row_bytes)
        self.view = self._rows.data
        page = np.random.default_rng(1).integers(0, 256, row_bytes, dtype=np.uint8)
        for number, row in enumerate(self._rows):
            row[:] = np.roll(page, number * 7)
        self._sums = self._sums_of_rows()

    def clear(self) -> None:
        """Zeroes all rows."""
        self._rows[:] = 0

    def is_as_made(self) -> bool:
        """Whether all rows have their bytes again."""
        return self._sums_of_rows() == self._sums

    def _sums_of_rows(self) -> list[int]:
        return [int(row[::61].sum()) for row in self._rows]


@dataclass
class Asked:
    """What lookups cost the scheduler's thread."""

    us_per_key: float
    """All asks for a key and its share of the step's end, until it was answered."""

    at_first_ask: float
    """Share of keys that were answered when they were asked for first."""


class Drive:
    """Drives one tier."""

    def __init__(self, tier: Any) -> None:
        self.tier = tier
        self._requests = iter(range(1 << 30))
        self._jobs = iter(range(1 << 30))

    def move(self, way: Way, keys: list[bytes], row_bytes: int, per_job: int, step: float = STEP) -> Moved:
        """Moves block `i` between `keys[i]` and row `i`, in jobs, some at a time."""
        submit: Callable[[TransferJob], None] = getattr(self.tier, f"submit_{way}")
        waiting = self._jobs_of(way, keys, per_job)
        latencies, begun_at = list[float](), dict[int, float]()
        begun, cpu_begun = time.perf_counter(), time.process_time()
        left = -(-len(keys) // per_job)
        while left:
            for job in self._some(waiting, IN_FLIGHT - len(begun_at)):
                begun_at[job.job_id] = time.perf_counter()
                submit(job)
            self.tier.on_schedule_end(ScheduleEndContext((), ()))
            time.sleep(step)
            for result in self.tier.get_finished_jobs():
                if not result.success:
                    raise SystemExit(f"{type(self.tier).__name__}: a {way} failed")
                latencies.append(time.perf_counter() - begun_at.pop(result.job_id))
                left -= 1
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
        return Moved(len(keys) * row_bytes, seconds, cpu_seconds, latencies=latencies)

    def submit(self, way: Way, keys: list[bytes], per_job: int) -> float:
        """Microseconds per key of the scheduler's thread for submitting a job and ending its step: the median of jobs.

        Each job ends before the next begins.
        """
        submit: Callable[[TransferJob], None] = getattr(self.tier, f"submit_{way}")
        times = []
        for job in self._jobs_of(way, keys, per_job):
            begun = time.perf_counter()
            submit(job)
            self.tier.on_schedule_end(ScheduleEndContext((), ()))
            times.append((time.perf_counter() - begun) / len(job.keys) * 1e6)
            while not list(self.tier.get_finished_jobs()):
                time.sleep(STEP)
        return statistics.median(times)

    def ask(self, keys: list[bytes]) -> Asked:
        """Looks all keys up for a new request."""
        request = ReqContext(f"request {next(self._requests)}")
        self.tier.on_new_request(request)
        spent, first, left = 0.0, None, keys
        while left:
            begun = time.perf_counter()
            answers = [self.tier.lookup(key, request) for key in left]
            self.tier.on_schedule_end(ScheduleEndContext((), ()))
            spent += time.perf_counter() - begun
            left = [key for key, answer in zip(left, answers, strict=True) if answer is LookupResult.RETRY]
            first = len(left) if first is None else first
            time.sleep(MODEL_STEP)
        self.tier.on_request_finished(request)
        return Asked(spent / len(keys) * 1e6, 1 - (first or 0) / len(keys))

    def _jobs_of(self, way: Way, keys: list[bytes], per_job: int) -> Iterator[TransferJob]:
        request = ReqContext(f"request {next(self._requests)}")
        self.tier.on_new_request(request)
        for begin in range(0, len(keys), per_job):
            some = [OffloadKey(key) for key in keys[begin : begin + per_job]]
            rows = np.arange(begin, begin + len(some), dtype=np.int32)
            yield TransferJob(next(self._jobs), some, rows, way == "load", request)

    @staticmethod
    def _some(waiting: Iterator[TransferJob], most: int) -> Iterator[TransferJob]:
        for _ in range(most):
            job = next(waiting, None)
            if job is None:
                return
            yield job
