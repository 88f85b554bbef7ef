"""Blocks through a tier, as many at a time as it takes, with the time and the CPU that they cost."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvtier import HostRows, TierManager


@dataclass
class Moved:
    """What has moved, and what it cost."""

    blocks: int = 0
    bytes: int = 0
    seconds: float = 0
    cpu_seconds: float = 0
    """Of all threads of the process."""

    job_seconds: list[float] = field(default_factory=list)
    """From a job's submission to its result, for each."""

    failure: str | None = None
    """Why it ended early."""

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds if self.seconds else 0

    @property
    def cpu_per_gb(self) -> float:
        """Seconds of CPU for a GB."""
        return self.cpu_seconds / self.bytes * 1e9 if self.bytes else 0


class Mover:
    """Keeps a tier busy: each job has rows of its own, and the next one begins when one ends."""

    def __init__(self, tier: TierManager, jobs_at_once: int, blocks_per_job: int) -> None:
        self.tier = tier
        self.slots = range(jobs_at_once)
        self.blocks_per_job = blocks_per_job

    def in_jobs(self, keys: list[bytes]) -> list[list[bytes]]:
        """The keys, as many for each job as it has rows."""
        return [keys[first : first + self.blocks_per_job] for first in range(0, len(keys), self.blocks_per_job)]

    def move(self, submit: Callable[..., None], jobs: Iterator[list[bytes]], seconds: float) -> Moved:
        """Moves the blocks of `jobs` in their order, until there are no more or the time is over."""
        moved = Moved()
        free = list(self.slots)
        submitted: dict[int, float] = {}
        begun, cpu_begun = time.monotonic(), time.process_time()
        while True:
            is_over = moved.failure or time.monotonic() - begun >= seconds
            while free and not is_over and (keys := next(jobs, None)):
                slot = free.pop()
                first_row = slot * self.blocks_per_job
                submitted[slot] = time.monotonic()
                submit(slot, keys, range(first_row, first_row + len(keys)))
            if len(free) == len(self.slots):
                break
            self.tier.wait()
            for result in self.tier.get_finished_jobs():
                moved.job_seconds.append(time.monotonic() - submitted[result.job_id])
                free.append(result.job_id)
                moved.blocks += len(result.successful_keys)
                moved.bytes += result.transfer_bytes
                for error in result.failures.values():
                    moved.failure = moved.failure or error.message
        moved.seconds = time.monotonic() - begun
        moved.cpu_seconds = time.process_time() - cpu_begun
        return moved


def filled_rows(num_rows: int, row_bytes: int) -> HostRows:
    """Rows of what no storage can compress."""
    rows = HostRows(num_rows, row_bytes)
    once = os.urandom(row_bytes)
    memory = memoryview(rows).cast("B")
    for first in range(0, len(memory), row_bytes):
        memory[first : first + row_bytes] = once
    return rows


def key_of(number: int) -> bytes:
    """A block's key: a hash and a group, as engines make them."""
    return hashlib.sha256(b"%d" % number).digest() + bytes(4)
