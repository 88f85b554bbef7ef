"""The interpreter's lock: others run while blocks move, and calls don't hold it for long."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtier
from kvtier.testing import make_key

ROW_BYTES = 2 << 20
NUM_ROWS = 64
JOBS = 8


class Counter(threading.Thread):
    """Counts as fast as it gets the interpreter's lock."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self.stopped = False
        self.start()

    def run(self) -> None:
        while not self.stopped:
            self.count += 1

    def rate_during(self, work: Callable[[], object]) -> float:
        """Counts per second, without the seconds for which other threads of the machine had the processors."""
        count, queued, started = self.count, self._queued_for_a_processor(), time.perf_counter()
        work()
        seconds = time.perf_counter() - started - (self._queued_for_a_processor() - queued)
        return (self.count - count) / seconds

    def _queued_for_a_processor(self) -> float:
        numbers = Path(f"/proc/self/task/{self.native_id}/schedstat").read_text(encoding="ascii").split()
        return int(numbers[1]) / 1e9


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel keeps no schedstat")
def test_a_counting_thread_goes_on_while_1_gib_moves(
    identity: kvtier.Identity, url: str, place_options: dict[str, Any]
) -> None:
    """Whoever moved blocks with the interpreter's lock held would leave the counter next to nothing.

    How much of its rate it keeps, on a machine whose processors and memory the blocks use as well, is a figure for
    `benches/vs_peer.py`.
    """
    rows = kvtier.HostRows(NUM_ROWS, ROW_BYTES)
    np.asarray(rows)[:] = np.arange(NUM_ROWS, dtype=np.uint8)[:, None]
    keys = [[make_key(job * NUM_ROWS + row) for row in range(NUM_ROWS)] for job in range(JOBS)]
    counter = Counter()
    with kvtier.open(url, identity=identity, rows=rows, **place_options) as tier:

        def move(submit: Callable[[int, list[bytes], range], None]) -> None:
            for job in range(JOBS):
                submit(job, keys[job], range(NUM_ROWS))
                assert tier.wait(job, timeout=60)
                assert tier.get_finished_jobs()[0].success

        alone = counter.rate_during(lambda: time.sleep(1))
        storing = counter.rate_during(lambda: move(tier.submit_store))
        loading = counter.rate_during(lambda: move(tier.submit_load))
        counter.stopped = True
        assert tier.stats().stores.bytes == tier.stats().loads.bytes == 1 << 30
    assert storing > alone / 20
    assert loading > alone / 20
