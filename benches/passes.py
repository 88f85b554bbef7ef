"""What it took to store and to load all blocks once, by whatever means."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Way = Literal["store", "load"]
WAYS: tuple[Way, Way] = ("store", "load")


@dataclass(frozen=True)
class Moved:
    """One pass over all blocks, in one direction."""

    bytes: int
    seconds: float
    cpu_seconds: float
    """Of this process, all threads; the kernel's own threads, which flush the page cache, are not in it."""

    flush_seconds: float = 0
    """Until the file system had written what a store left to it, where that was waited for."""

    latencies: list[float] = field(default_factory=list)
    """Seconds from each job's submission until its result was handed out, where there were jobs."""

    @property
    def rate(self) -> float:
        """GB/s."""
        return self.bytes / self.seconds / 1e9

    @property
    def flushed_rate(self) -> float:
        """GB/s, the flush included."""
        return self.bytes / (self.seconds + self.flush_seconds) / 1e9

    @property
    def cpu(self) -> float:
        """CPU seconds per GB."""
        return self.cpu_seconds / self.bytes * 1e9


@dataclass(frozen=True)
class Pass:
    """What one way of keeping blocks did in one round."""

    store: Moved
    load: Moved

    def of(self, way: Way) -> Moved:
        """One of the two by its name."""
        return self.store if way == "store" else self.load


Passes = dict[str, Pass]
"""A round: the pass of each way of keeping blocks, by its name."""


def timed(total: int, move: Callable[[], None]) -> Moved:
    """Moves `total` bytes, and says what it took."""
    begun, cpu_begun = time.perf_counter(), time.process_time()
    move()
    return Moved(total, time.perf_counter() - begun, time.process_time() - cpu_begun)
