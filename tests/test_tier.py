"""The tier manager's interface: what goes in, what comes out, what is refused."""

import array
import asyncio
import contextlib
import gc
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kvtier
from kvtier import Lookup
from kvtier.testing import Faults, make_key

OpenTier = Callable[..., kvtier.TierManager]
KEYS = [make_key(i) for i in range(64)]

ROW_IDS = {
    "list": [3, 4],
    "tuple": (3, 4),
    "range": range(3, 5),
    "keys": {3: None, 4: None},
    "int32": np.array([3, 4], dtype=np.int32),
    "int64": np.array([3, 4], dtype=np.int64),
    "uint32": np.array([3, 4], dtype=np.uint32),
    "uint64": np.array([3, 4], dtype=np.uint64),
    "int16": np.array([3, 4], dtype=np.int16),
    "big-endian": np.array([3, 4], dtype=">i4"),
    "with gaps": np.array([3, 0, 4, 0], dtype=np.int32)[::2],
    "backwards": np.array([4, 3], dtype=np.int64)[::-1],
    "array of int": array.array("i", [3, 4]),
    "array of long long": array.array("q", [3, 4]),
    "memoryview": memoryview(array.array("l", [3, 4])),
    "tensor": torch.tensor([3, 4]),
    "tensor of int32": torch.tensor([3, 4], dtype=torch.int32),
    "bytes": bytes([3, 4]),
    "numpy scalars": [np.int32(3), np.int64(4)],
}


def finish(tier: kvtier.TierManager) -> list[kvtier.JobResult]:
    """The results of all jobs, in the order of their numbers."""
    assert tier.drain_jobs(timeout=60)
    return sorted(tier.get_finished_jobs(), key=lambda result: result.job_id)


def class_name(value: object) -> str:
    return type(value).__name__


def answer(tier: kvtier.TierManager, key: bytes, request: Any = None) -> Lookup:
    """What a lookup says once it knows."""
    until = time.monotonic() + 30
    while (found := tier.lookup(key, request)) is Lookup.RETRY:
        assert time.monotonic() < until
        time.sleep(0.001)
    return found


class TestJobs:
    def test_what_was_stored_is_loaded(self, tier: kvtier.TierManager, rows: kvtier.HostRows) -> None:
        tier.submit_store(1, KEYS[:8], range(8))
        tier.submit_load(2, [make_key(99)], [50])
        (stored, missing) = finish(tier)
        assert (stored.job_id, stored.kind, stored.success) == (1, "store", True)
        assert (stored.successful_keys, stored.failures) == (tuple(KEYS[:8]), {})
        assert stored.transfer_bytes == 8 * 4096
        assert 0 < stored.transfer_time < 60
        assert (missing.kind, missing.success, missing.successful_keys) == ("load", False, ())
        assert missing.failures[make_key(99)].kind == "missing"

        tier.submit_load(3, KEYS[:8], range(63, 55, -1))
        assert finish(tier)[0].success
        assert np.asarray(rows)[63:55:-1, 0].tolist() == list(range(8))

    def test_success_is_per_key(self, tier: kvtier.TierManager, rows: kvtier.HostRows) -> None:
        tier.submit_store(1, KEYS[:8], range(8))
        finish(tier)
        tier.submit_load(2, [*KEYS[:3], make_key(99), *KEYS[3:8]], range(20, 29))
        (result,) = finish(tier)
        assert not result.success
        assert result.successful_keys == tuple(KEYS[:8])
        assert list(result.failures) == [make_key(99)]
        assert np.asarray(rows)[[20, 21, 22, 24, 25, 26, 27, 28], 0].tolist() == list(range(8))

    def test_a_key_that_is_given_twice_succeeds_when_both_of_its_rows_are_good(
        self, faulty: kvtier.TierManager, faults: Faults
    ) -> None:
        faulty.submit_store(1, KEYS[:2], [0, 1])
        finish(faulty)
        faulty.submit_load(2, [KEYS[0], KEYS[0]], [10, 11])
        assert finish(faulty)[0].successful_keys == (KEYS[0], KEYS[0])
        faults.inject("load", "fail", key=KEYS[0], kind="io")
        faulty.submit_load(3, [KEYS[0], KEYS[1], KEYS[0]], [10, 11, 12])
        (result,) = finish(faulty)
        assert (result.successful_keys, list(result.failures)) == ((KEYS[1],), [KEYS[0]])

    def test_a_block_that_is_there_moves_nothing(self, tier: kvtier.TierManager) -> None:
        tier.submit_store(1, KEYS[:1], [1])
        finish(tier)
        tier.submit_store(2, KEYS[:1], [1])
        (result,) = finish(tier)
        assert (result.success, result.transfer_bytes) == (True, 0)

    def test_each_result_comes_once(self, tier: kvtier.TierManager) -> None:
        assert tier.get_finished_jobs() == []
        for job_id in range(100):
            tier.submit_store(job_id, KEYS, range(64))
        taken: list[int] = []
        while len(taken) < 100:
            assert tier.wait(timeout=60)
            taken += [result.job_id for result in tier.get_finished_jobs()]
        assert sorted(taken) == list(range(100))
        assert tier.get_finished_jobs() == []

    def test_an_empty_job_has_a_result_too(self, tier: kvtier.TierManager) -> None:
        tier.submit_store(1, [], [])
        (result,) = finish(tier)
        assert (result.success, result.successful_keys) == (True, ())

    @pytest.mark.parametrize("row_ids", ROW_IDS.values(), ids=ROW_IDS.keys())
    def test_row_ids_are_any_integers(self, tier: kvtier.TierManager, rows: kvtier.HostRows, row_ids: Any) -> None:
        tier.submit_store(1, KEYS[:2], row_ids)
        finish(tier)
        tier.submit_load(2, KEYS[:2], [10, 11])
        finish(tier)
        assert np.asarray(rows)[10:12, 0].tolist() == [3, 4]

    @pytest.mark.parametrize("make", [list, tuple, dict.fromkeys, iter])
    def test_keys_are_any_iterable(self, tier: kvtier.TierManager, make: Callable[[list[bytes]], Any]) -> None:
        tier.submit_store(1, make(KEYS[:2]), [0, 1])
        assert finish(tier)[0].successful_keys == tuple(KEYS[:2])

    @pytest.mark.parametrize("length", [7, 68])
    def test_shortest_and_longest_key(self, tier: kvtier.TierManager, length: int) -> None:
        tier.submit_store(1, [bytes(length)], [0])
        assert finish(tier)[0].success
        assert tier.lookup(bytes(length)) is Lookup.HIT

    def test_highest_job_id(self, tier: kvtier.TierManager) -> None:
        tier.submit_store(2**64 - 1, KEYS[:1], [0])
        assert finish(tier)[0].job_id == 2**64 - 1

    def test_scattered_rows(self, open_tier: OpenTier) -> None:
        layers = [torch.randn(8, 16, dtype=torch.bfloat16) for _ in range(3)]
        before = [layer.clone() for layer in layers]
        tier = open_tier(rows=layers)
        tier.submit_store(1, KEYS[:4], range(4))
        assert finish(tier)[0].transfer_bytes == 4 * 96
        tier.submit_load(2, KEYS[:4], [7, 6, 5, 4])
        assert finish(tier)[0].success
        for layer, old in zip(layers, before, strict=True):
            assert torch.equal(layer[[7, 6, 5, 4]], old[:4])
            assert torch.equal(layer[:4], old[:4])

    def test_padding_between_rows_is_left_alone(self, open_tier: OpenTier) -> None:
        memory = torch.full((8, 64), 9, dtype=torch.uint8)
        memory[:, :48] = torch.arange(8, dtype=torch.uint8)[:, None]
        tier = open_tier(rows=memory[:, :48])
        tier.submit_store(1, KEYS[:4], range(4))
        finish(tier)
        tier.submit_load(2, KEYS[:4], range(4, 8))
        finish(tier)
        assert memory[4:, :48].tolist() == [[i] * 48 for i in range(4)]
        assert bool((memory[:, 48:] == 9).all())

    def test_payload_bytes_leave_the_rest_of_a_row_alone(self, open_tier: OpenTier, rows: kvtier.HostRows) -> None:
        identity = kvtier.Identity("org/model", 16, dtype="bfloat16", payload_bytes=4000)
        tier = open_tier(identity=identity)
        tier.submit_store(1, KEYS[:1], [3])
        assert finish(tier)[0].transfer_bytes == 4000
        tier.submit_load(2, KEYS[:1], [5])
        finish(tier)
        assert np.asarray(rows)[5].tolist() == [3] * 4000 + [5] * 96


class TestLookups:
    def test_members_are_singletons(self, tier: kvtier.TierManager, place_options: dict[str, Any]) -> None:
        tier.submit_store(1, KEYS[:1], [0])
        finish(tier)
        assert tier.lookup(KEYS[0]) is Lookup.HIT
        assert answer(tier, KEYS[1]) is Lookup.MISS
        unknown = Lookup.MISS if place_options else Lookup.RETRY  # a pool always knows
        assert tier.lookup_many([KEYS[0], KEYS[1]], "request") == [Lookup.HIT, unknown]

    def test_a_first_question_is_not_waited_for(self, tier: kvtier.TierManager, place_options: dict[str, Any]) -> None:
        first = tier.lookup(make_key(1), "request")
        assert first is (Lookup.MISS if place_options else Lookup.RETRY)
        assert answer(tier, make_key(1), "request") is Lookup.MISS

    @pytest.mark.parametrize("request_id", ["text", 7, (1, "x"), frozenset([1]), object()], ids=class_name)
    def test_verdicts_last_until_release(self, tier: kvtier.TierManager, request_id: Any) -> None:
        tier.submit_store(1, KEYS[:1], [0])
        finish(tier)
        assert tier.lookup(KEYS[0], request_id) is Lookup.HIT
        tier.forget()
        tier.release(request_id)
        tier.release(request_id)
        assert answer(tier, KEYS[0], request_id) is Lookup.HIT
        assert tier.stats().open_requests == 1
        tier.release(request_id)
        assert tier.stats().open_requests == 0

    def test_equal_requests_are_one(self, tier: kvtier.TierManager) -> None:
        tier.lookup(KEYS[0], ("a", 1))
        tier.lookup(KEYS[0], ("a", 1))
        assert tier.stats().open_requests == 1

    def test_threads_that_come_with_one_request_share_its_verdicts(self, tier: kvtier.TierManager) -> None:
        class Request:
            def __hash__(self) -> int:
                return 1

            def __eq__(self, other: object) -> bool:
                time.sleep(0.01)  # lets another thread come by
                return isinstance(other, Request)

        def ask() -> None:
            barrier.wait()
            tier.lookup(KEYS[0], Request())

        def release() -> None:
            barrier.wait()
            tier.release(Request())

        def all_of(work: Callable[[], None]) -> None:
            with ThreadPoolExecutor(4) as pool:
                for done in [pool.submit(work) for _ in range(4)]:
                    done.result()

        barrier = threading.Barrier(4)
        tier.lookup(KEYS[0], 1)  # has the same hash, so each request is compared with it
        for _ in range(5):
            all_of(ask)
            assert tier.stats().open_requests == 2
            all_of(release)
            assert tier.stats().open_requests == 1

    @pytest.mark.parametrize("method", ["__hash__", "__eq__"])
    def test_what_comparing_a_request_raises_is_raised(self, tier: kvtier.TierManager, method: str) -> None:
        def fail(*_: object) -> int:
            raise ZeroDivisionError

        request: Any = type("Request", (), {"__hash__": lambda _: 1, method: fail})()
        tier.lookup(KEYS[0], 1)
        for call in (lambda: tier.lookup(KEYS[0], request), lambda: tier.release(request)):
            with pytest.raises(ZeroDivisionError):
                call()
        assert tier.stats().open_requests == 1

    def test_comparing_a_request_may_call_the_tier(self, tier: kvtier.TierManager) -> None:
        class Request:
            def __hash__(self) -> int:
                tier.lookup_many(KEYS[:2], 1)
                return 1

            def __eq__(self, other: object) -> bool:
                tier.submit_store(1, [], [])
                tier.get_finished_jobs()
                tier.lookup(KEYS[1], 2)
                tier.release(2)
                return self is other

        request = Request()
        for _ in range(3):
            tier.lookup(KEYS[0], request)
        tier.release(request)
        tier.release(1)
        assert tier.stats().open_requests == 0

    def test_a_failed_load_turns_the_verdict_to_miss(self, faulty: kvtier.TierManager, faults: Faults) -> None:
        faulty.submit_store(1, KEYS[:1], [0])
        finish(faulty)
        assert faulty.lookup(KEYS[0], "request") is Lookup.HIT
        faults.inject("load", "fail", kind="io")
        faulty.submit_load(2, KEYS[:1], [1])
        assert finish(faulty)[0].failures[KEYS[0]].kind == "io"
        assert faulty.lookup(KEYS[0], "request") is Lookup.MISS


class TestWaiting:
    def test_for_one_job(self, faulty: kvtier.TierManager, faults: Faults) -> None:
        faults.inject("store", "stall", key=KEYS[0])
        faulty.submit_store(1, KEYS[:1], [0])
        faulty.submit_store(2, KEYS[1:2], [1])
        assert faulty.wait(2, timeout=30)
        started = time.monotonic()
        assert not faulty.wait(1, timeout=0.2)
        assert not faulty.drain_jobs(timeout=0)
        assert 0.2 <= time.monotonic() - started < 5
        faults.release()
        assert faulty.wait(1)
        assert faulty.drain_jobs()

    def test_for_an_unknown_job(self, tier: kvtier.TierManager) -> None:
        with pytest.raises(kvtier.InvalidInputError, match="no job 7 is open"):
            tier.wait(7)

    def test_the_descriptor_is_readable_while_results_wait(self, tier: kvtier.TierManager) -> None:
        def readable(timeout: float) -> bool:
            return bool(select.select([tier], [], [], timeout)[0])

        assert not readable(0)
        tier.submit_store(1, KEYS[:1], [0])
        assert readable(30)
        tier.get_finished_jobs()
        assert not readable(0)

    def test_asyncio_waits_for_the_descriptor(self, tier: kvtier.TierManager) -> None:
        async def store() -> list[kvtier.JobResult]:
            ready = asyncio.Event()
            asyncio.get_running_loop().add_reader(tier.fileno(), ready.set)
            tier.submit_store(1, KEYS[:1], [0])
            await asyncio.wait_for(ready.wait(), 30)
            asyncio.get_running_loop().remove_reader(tier.fileno())
            return tier.get_finished_jobs()

        assert [result.job_id for result in asyncio.run(store())] == [1]

    @pytest.mark.parametrize("waiting", ["wait", "drain_jobs"])
    def test_ctrl_c_ends_it(self, faulty: kvtier.TierManager, faults: Faults, waiting: str) -> None:
        faults.inject("store", "stall")
        faulty.submit_store(1, KEYS[:1], [0])
        main = threading.main_thread().ident
        assert main is not None
        interrupt = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            getattr(faulty, waiting)()
        faults.release()
        assert faulty.drain_jobs(timeout=30)

    def test_others_run_meanwhile(self, faulty: kvtier.TierManager, faults: Faults) -> None:
        faults.inject("store", "stall")
        faulty.submit_store(1, KEYS[:1], [0])
        threading.Timer(0.1, faults.release).start()
        assert faulty.wait(1), "the timer's thread got the interpreter"


class TestSteps:
    def test_nothing_begins_before_a_step_ends(self, open_tier: OpenTier) -> None:
        tier = open_tier(stepwise=True)
        for job in range(20):
            tier.submit_store(job, [KEYS[job]], [job])
            if job == 0:  # what has worked on the last step may still be looking for more
                time.sleep(0.02)
                assert tier.stats().open_jobs == 1
            tier.end_step()
            until = time.monotonic() + 30
            while tier.stats().open_jobs:
                assert time.monotonic() < until
                time.sleep(0.001)
            [result] = tier.get_finished_jobs()
            assert result.job_id == job

    def test_an_idle_tier_sleeps(self, open_tier: OpenTier) -> None:
        others = clock_sleeps()
        tier = open_tier(stepwise=True)
        for job in range(20):
            tier.submit_store(job, [KEYS[job]], [job])
            tier.end_step()
            time.sleep(0.002)
        [clock] = clock_sleeps().keys() - others.keys()
        # The thread that begins steps wakes at least 300 times in so long if it doesn't stop looking for them.
        until = time.monotonic() + 60
        while True:
            before = clock_sleeps()[clock]
            time.sleep(0.3)
            if clock_sleeps()[clock] == before:
                break
            assert time.monotonic() < until, "it goes on looking for steps"


def clock_sleeps() -> dict[str, int]:
    """How often each thread that minds deadlines has gone to sleep, by the thread's number."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().strip() == "kvtier-clock":
                status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
                found[task.name] = int(status["voluntary_ctxt_switches"])
    return found


class TestStoreAndLoad:
    def test_a_tensor_per_block(self, tier: kvtier.TierManager) -> None:
        blocks = [
            torch.randn(16, 128, dtype=torch.bfloat16),
            torch.ones(4096, dtype=torch.uint8),
            torch.zeros(8, 8, 16),
        ]
        assert tier.store(KEYS[:3], blocks).success
        into = [torch.empty_like(block) for block in blocks]
        result = tier.load(KEYS[:3], into)
        assert (result.kind, result.success, result.successful_keys) == ("load", True, tuple(KEYS[:3]))
        assert result.transfer_bytes == 3 * 4096
        assert all(map(torch.equal, blocks, into))

    def test_an_array_whose_rows_are_blocks(self, tier: kvtier.TierManager) -> None:
        blocks = np.random.default_rng(0).integers(0, 256, (5, 4096), dtype=np.uint8)
        tier.store(KEYS[:5], blocks).raise_for_failures()
        into = bytearray(5 * 4096)
        tier.load(KEYS[4::-1], into).raise_for_failures()
        assert into == blocks[::-1].tobytes()

    def test_they_meet_jobs_on_the_tiers_rows(self, tier: kvtier.TierManager) -> None:
        tier.submit_store(1, KEYS[:1], [7])
        finish(tier)
        into = bytearray(4096)
        tier.load(KEYS[:1], [into]).raise_for_failures()
        assert into == bytes([7]) * 4096
        assert tier.get_finished_jobs() == []

    def test_failures_are_in_the_result(self, tier: kvtier.TierManager) -> None:
        tier.store(KEYS[:1], [bytes(4096)])
        result = tier.load([KEYS[0], make_key(99)], np.zeros((2, 4096), "u1"))
        assert (result.success, result.successful_keys) == (False, (KEYS[0],))
        with pytest.raises(kvtier.BlockNotFoundError):
            result.raise_for_failures()

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ([bytearray(4095)], r"tensors\[0\]: a block has 4095 bytes, but row_bytes is 4096"),
            ([torch.zeros(64, 128).t()], r"tensors\[0\]: the bytes of each row must be in one piece"),
            ([], "1 keys but 0 rows: each block has one of both"),
            (bytearray(8192), "1 keys but 2 rows"),
            (["text"], r"tensors\[0\]: an object of type str has no memory to share"),
            (torch.zeros(1, 1000), "tensors: a row has 4000 bytes, but row_bytes is 4096"),
        ],
    )
    def test_refusals(self, tier: kvtier.TierManager, tensors: Any, message: str) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=message):
            tier.load(KEYS[:1], tensors)

    def test_read_only_memory_is_not_loaded_into(self, tier: kvtier.TierManager) -> None:
        with pytest.raises(kvtier.ReadOnlyError, match="the rows are read-only memory"):
            tier.load(KEYS[:1], [bytes(4096)])

    def test_the_memory_is_free_afterwards(self, tier: kvtier.TierManager) -> None:
        memory = bytearray(4096)
        tier.store(KEYS[:1], [memory])
        memory.extend(b"more")

    @pytest.mark.parametrize("stall", ["stall", "stall_in_row"])
    def test_ctrl_c_ends_it(self, faulty: kvtier.TierManager, faults: Faults, stall: Any) -> None:
        faulty.store(KEYS[:1], [bytes(4096)])
        faults.inject("load", stall)
        memory = bytearray(4096)
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
        threading.Timer(0.6, faults.release).start()
        with pytest.raises(KeyboardInterrupt):
            faulty.load(KEYS[:1], [memory])
        while faults.stalled:
            time.sleep(0.01)
        assert faulty.load(KEYS[:1], [memory]).success

    def test_shutdown_from_another_thread_ends_it(self, faulty: kvtier.TierManager, faults: Faults) -> None:
        def shut_down() -> None:
            with pytest.raises(kvtier.DeadlineExceededError):
                faulty.shutdown(0.1)

        faults.inject("store", "stall")
        threading.Timer(0.1, shut_down).start()
        threading.Timer(0.5, faults.release).start()
        result = faulty.store(KEYS[:1], [bytes(4096)])
        assert result.failures[KEYS[0]].kind == "shutdown"

    def test_a_closed_tier_says_so(self, tier: kvtier.TierManager) -> None:
        tier.shutdown()
        with pytest.raises(kvtier.TierClosedError):
            tier.store(KEYS[:1], [bytes(4096)])


class TestEnds:
    def test_shutdown_gives_back_the_rows(self, open_tier: OpenTier) -> None:
        memory = bytearray(64 * 4096)
        tier = open_tier(rows=memoryview(memory).cast("B", (64, 4096)))
        tier.submit_store(1, KEYS, range(64))
        tier.shutdown()
        memory.extend(b"more")
        assert tier.closed
        assert [result.job_id for result in tier.get_finished_jobs()] == [1]

    @pytest.mark.parametrize("timeout", [None, 1e9, 1e18])
    def test_no_timeout_is_too_long(self, tier: kvtier.TierManager, timeout: float | None) -> None:
        tier.submit_store(1, KEYS, range(64))
        assert tier.wait(1, timeout)
        tier.reset(timeout)
        assert tier.drain_jobs(timeout)
        tier.shutdown(timeout)
        assert tier.closed

    @pytest.mark.parametrize("waiting", ["shutdown", "reset"])
    def test_ctrl_c_ends_the_wait_for_storage(self, faulty: kvtier.TierManager, faults: Faults, waiting: str) -> None:
        faults.inject("store", "stall")
        faulty.submit_store(1, KEYS[:1], [0])
        while not faults.stalled:
            time.sleep(0.001)
        main = threading.main_thread().ident
        assert main is not None
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            getattr(faulty, waiting)(timeout=None)
        assert time.monotonic() - started < 10
        assert faulty.closed == (waiting == "shutdown")
        assert [result.failures[KEYS[0]].kind for result in faulty.get_finished_jobs()] == [waiting]
        faults.release()

    def test_shutdown_twice(self, tier: kvtier.TierManager) -> None:
        tier.shutdown()
        tier.shutdown()

    def test_a_closed_tier_says_so(self, tier: kvtier.TierManager) -> None:
        tier.shutdown()
        calls: list[Callable[[], object]] = [
            lambda: tier.lookup(KEYS[0]),
            lambda: tier.submit_store(1, KEYS[:1], [0]),
            lambda: tier.submit_load(1, KEYS[:1], [0]),
            lambda: tier.touch(KEYS[:1]),
            lambda: tier.pin(KEYS[:1]),
            lambda: tier.unpin(KEYS[:1]),
            tier.reset,
            tier.forget,
        ]
        for call in calls:
            with pytest.raises(kvtier.TierClosedError, match="shut down"):
                call()
        assert tier.get_finished_jobs() == []
        assert tier.take_events() == []
        tier.release("request")
        assert "closed" in repr(tier)

    def test_what_waits_fails_with_its_reason(self, open_tier: OpenTier, faults: Faults) -> None:
        faults.inject("store", "stall", times=1000)
        tier = open_tier(faults=faults, max_inflight_ops=1)
        for job_id in range(10):
            tier.submit_store(job_id, KEYS, range(64))
        threading.Timer(0.2, faults.release).start()
        tier.shutdown()
        results = finish(tier)
        assert [result.job_id for result in results] == list(range(10))
        assert {error.kind for result in results for error in result.failures.values()} == {"shutdown"}

    def test_shutdown_says_when_the_storage_keeps_the_rows(self, open_tier: OpenTier, faults: Faults) -> None:
        faults.inject("load", "stall_in_row")
        tier = open_tier(faults=faults)
        tier.submit_store(1, KEYS[:1], [0])
        finish(tier)
        tier.submit_load(2, KEYS[:1], [1])
        while not faults.stalled:
            time.sleep(0.001)
        with pytest.raises(kvtier.DeadlineExceededError, match="1 operations are still stuck"):
            tier.shutdown(timeout=0.1)
        faults.release()
        assert finish(tier)[0].job_id == 2

    def test_rows_held_by_a_stuck_operation_are_released_on_a_python_thread(
        self, open_tier: OpenTier, faults: Faults
    ) -> None:
        released_on: list[str] = []

        class Memory(bytearray):
            def __del__(self) -> None:
                released_on.append(threading.current_thread().name)

        faults.inject("store", "stall")
        rows = kvtier._kvtier.Rows(Memory(8 * 4096), 4096)
        tier = open_tier(faults=faults, rows=rows)
        del rows
        tier.submit_store(1, KEYS[:1], [0])
        while not faults.stalled:
            time.sleep(0.001)
        with pytest.raises(kvtier.DeadlineExceededError):
            tier.shutdown(timeout=0)
        assert released_on == []
        faults.release()
        until = time.monotonic() + 30
        while not released_on:
            assert time.monotonic() < until
            tier.get_finished_jobs()
        assert released_on == [threading.current_thread().name]

    def test_leaving_the_with_block_shuts_down(self, open_tier: OpenTier) -> None:
        with open_tier() as tier:
            assert not tier.closed
        assert tier.closed

    def test_dropping_a_tier_with_jobs_in_flight(
        self, identity: kvtier.Identity, url: str, place_options: dict[str, Any]
    ) -> None:
        memory = np.ones((64, 4096), "u1")
        gone = weakref.ref(memory)
        tier = kvtier.open(url, identity=identity, rows=memory, **place_options)
        for job_id in range(100):
            tier.submit_store(job_id, KEYS, range(64))
        del memory, tier
        gc.collect()
        assert gone() is None, "the last operation has ended and gave up the rows"

    def test_a_tier_in_a_cycle_is_collected(self, identity: kvtier.Identity, rows: kvtier.HostRows) -> None:
        class Request:
            pass

        tier = kvtier.open("memory://", identity=identity, rows=rows)
        request: Any = Request()
        request.tier = tier
        tier.lookup(KEYS[0], request)
        gone = weakref.ref(tier)
        del tier, request
        gc.collect()
        assert gone() is None

    def test_reset_takes_all_blocks_away(self, tier: kvtier.TierManager) -> None:
        tier.submit_store(1, KEYS[:4], range(4))
        finish(tier)
        tier.reset()
        assert {answer(tier, key) for key in KEYS[:4]} == {Lookup.MISS}
        assert tier.take_events()[-1] == kvtier.Event("cleared")

    def test_forget_leaves_storage_alone(self, tier: kvtier.TierManager, place_options: dict[str, Any]) -> None:
        tier.submit_store(1, KEYS[:4], range(4))
        finish(tier)
        tier.forget()
        if not place_options:  # a pool always knows
            assert tier.lookup(KEYS[0]) is Lookup.RETRY
        assert answer(tier, KEYS[0]) is Lookup.HIT


class TestPins:
    def test_harmless_everywhere(self, tier: kvtier.TierManager) -> None:
        tier.submit_store(1, KEYS[:2], range(2))
        finish(tier)
        assert tier.pin(iter(KEYS[:3])) == [True, True, False]
        assert tier.pin(KEYS[:1], until=time.time() + 60) == [True]
        tier.unpin(KEYS)
        tier.unpin([])
        assert tier.pin([], None) == []
        assert answer(tier, KEYS[0]) is Lookup.HIT

    def test_they_keep_blocks_and_have_a_bound(self, open_tier: OpenTier, tmp_path: Path) -> None:
        options = {"layout": "packed", "max_bytes": "4200KiB", "segment_bytes": "1MiB"}
        rows = kvtier.HostRows(16, 60 << 10)
        tier = open_tier(url=tmp_path, rows=rows, **options)

        def store(numbers: range) -> None:
            for n in numbers:
                tier.submit_store(n, [make_key(1000 + n)], [n % 16])
                assert tier.wait(n, timeout=60)
            assert all(result.success for result in tier.get_finished_jobs())

        keys = [make_key(1000 + n) for n in range(40)]
        store(range(40))
        refusal = r"2621440 bytes of pinned blocks, and half of the pool is 2150400 bytes"
        with pytest.raises(kvtier.OverloadedError, match=refusal) as refused:
            tier.pin(keys)
        assert refused.value.kind == "capacity"
        assert tier.pin(keys[:10]) == [True] * 10
        tier.unpin(keys[:5])
        store(range(100, 400))
        assert [tier.lookup(key) for key in keys[:10]] == [Lookup.MISS] * 5 + [Lookup.HIT] * 5
        dropped = {event.key for event in tier.take_events() if event.kind == "removed"}
        assert dropped.isdisjoint(keys[5:10])
        assert dropped.issuperset(keys[:5])


class TestEventsAndStats:
    def test_events_name_blocks_and_reasons(self, faulty: kvtier.TierManager, faults: Faults) -> None:
        faulty.submit_store(1, KEYS[:2], [0, 1])
        finish(faulty)
        assert {(event.kind, event.key, event.reason) for event in faulty.take_events()} == {
            ("stored", KEYS[0], None),
            ("stored", KEYS[1], None),
        }
        faults.inject("load", "fail", key=KEYS[1], kind="checksum")
        faulty.submit_load(2, KEYS[:2], [2, 3])
        finish(faulty)
        assert faulty.take_events() == [kvtier.Event("removed", KEYS[1], "checksum")]
        assert faulty.take_events() == []

    def test_pools_tell_what_other_processes_drop(
        self, open_tier: OpenTier, identity: kvtier.Identity, tmp_path: Path
    ) -> None:
        options = {"layout": "packed", "max_bytes": "4200KiB", "segment_bytes": "1MiB"}
        tier = open_tier(url=tmp_path, rows=kvtier.HostRows(16, 60 << 10), **options)
        keys = [make_key(1000 + n) for n in range(32)]
        for first in (0, 16):
            tier.submit_store(first, keys[first : first + 16], range(16))
            finish(tier)
        assert {event.kind for event in tier.take_events()} == {"stored"}
        program = (
            "import pickle, sys, kvtier\n"
            "from kvtier.testing import make_key\n"
            "root, identity, options = pickle.loads(sys.stdin.buffer.read())\n"
            "tier = kvtier.open(root, identity=identity, rows=kvtier.HostRows(16, 60 << 10), **options)\n"
            "for n in range(20):\n"
            "    tier.submit_store(n, [make_key(2000 + 8 * n + i) for i in range(8)], range(8))\n"
            "    assert tier.drain_jobs(timeout=60)\n"
        )
        given = pickle.dumps((tmp_path, identity, options))
        subprocess.run([sys.executable, "-c", program], input=given, timeout=100, check=True)
        told: list[kvtier.Event] = []
        until = time.monotonic() + 20
        while not (dropped := {key for key in keys if tier.lookup(key) is Lookup.MISS}) or dropped != {
            event.key for event in told if event.key in keys
        }:
            assert time.monotonic() < until, f"{len(dropped)} were dropped, and this was told: {told}"
            time.sleep(0.05)
            told += tier.take_events()
        assert {(event.kind, event.reason) for event in told} == {("removed", "capacity")}

    def test_stats_count(self, tier: kvtier.TierManager) -> None:
        tier.submit_store(1, KEYS[:4], range(4))
        tier.submit_load(2, [make_key(99)], [9])
        finish(tier)
        tier.lookup(KEYS[0])
        stats = tier.stats()
        assert (stats.stores.blocks, stats.stores.bytes, stats.stores.jobs) == (4, 4 * 4096, 1)
        assert (stats.loads.blocks, stats.loads.failures) == (0, {"missing": 1})
        assert (stats.hits, stats.resident_blocks, stats.open_jobs) == (1, 4, 0)
        assert not stats.degraded
        assert sum(stats.stores.latency_counts) == 1
        assert len(stats.stores.latency_counts) == len(kvtier.metrics.LATENCY_BUCKETS) + 1

    def test_results_are_values(self) -> None:
        error = kvtier.BlockError("io", "says no")
        result = kvtier.JobResult(7, "load", False, [KEYS[0]], {KEYS[1]: error}, 0.5, 4096)
        for value in (result, error, kvtier.Event("removed", KEYS[0], "missing"), kvtier.Event("cleared")):
            copy = pickle.loads(pickle.dumps(value))  # noqa: S301 - made here
            assert copy == value
            assert repr(copy) == repr(value)
            assert eval(repr(value), vars(kvtier)) == value  # noqa: S307 - made here
            assert value != "text"
            with pytest.raises(AttributeError):
                copy.kind = "other"
        with pytest.raises(TypeError):
            result.failures[KEYS[2]] = error  # type: ignore[index]
        with pytest.raises(TypeError, match="unhashable"):
            hash(result)
        assert hash(error) == hash(kvtier.BlockError("io", "says no"))
        kvtier.JobResult(7, "load", True, [], {}, 0.5, 0).raise_for_failures()

    def test_failures_raise_on_demand(self, tier: kvtier.TierManager) -> None:
        tier.submit_load(1, [make_key(98), make_key(99)], [0, 1])
        (result,) = finish(tier)
        with pytest.raises(kvtier.BlockNotFoundError, match="and 1 more blocks failed") as raised:
            result.raise_for_failures()
        assert (raised.value.kind, raised.value.key) == ("missing", make_key(98))


class TestRefusals:
    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda t: t.submit_store(1, KEYS[:1], [64]), "row 64 is out of range: the tier has rows 0 to 63"),
            (lambda t: t.submit_store(1, KEYS[:1], [-1]), r"row_ids\[0\]: there is no row -1"),
            (lambda t: t.submit_store(1, KEYS[:1], [2**40]), rf"row_ids\[0\]: there is no row {2**40}"),
            (lambda t: t.submit_store(1, KEYS[:1], [2**90]), r"row_ids\[0\]: an integer below 2\*\*32 is expected"),
            (lambda t: t.submit_store(1, KEYS[:1], [1.0]), r"row_ids\[0\]: an integer .* this is float 1.0"),
            (lambda t: t.submit_store(1, KEYS[:1], np.zeros(1)), r"row_ids\[0\]: an integer"),
            (lambda t: t.submit_store(1, KEYS[:1], np.zeros((1, 1), "i4")), r"row_ids\[0\]: an integer"),
            (lambda t: t.submit_store(1, KEYS[:1], 3), "row_ids: an int32 or int64 buffer or a sequence of integers"),
            (lambda t: t.submit_store(1, KEYS[:2], [1]), "2 keys but 1 row ids"),
            (lambda t: t.submit_store(1, KEYS[0], [1]), r"keys\[0\]: bytes are expected, this is int"),
            (lambda t: t.submit_store(1, 5, [1]), "keys: a sequence of bytes is expected, this is int 5"),
            (
                lambda t: t.submit_store(1, [KEYS[0], "text"], [1, 2]),
                r"keys\[1\]: bytes are expected, this is str 'text'",
            ),
            (
                lambda t: t.submit_store(1, [KEYS[0], b""], [1, 2]),
                r"keys\[1\]: key has 0 bytes; a key is a block hash of 3",
            ),
            (lambda t: t.submit_store(1, [bytes(69)], [1]), r"keys\[0\]: key has 69 bytes"),
            (lambda t: t.submit_store(-1, KEYS[:1], [1]), r"job_id: an integer from 0 to 2\*\*64 - 1"),
            (lambda t: t.submit_store(2**64, KEYS[:1], [1]), "job_id: an integer"),
            (lambda t: t.submit_store("one", KEYS[:1], [1]), "job_id: an integer .* this is str 'one'"),
            (lambda t: t.lookup("text"), "key: bytes are expected, this is str 'text'"),
            (lambda t: t.lookup(bytes(6)), "key has 6 bytes"),
            (lambda t: t.lookup_many([bytes(6)]), r"keys\[0\]: key has 6 bytes"),
            (lambda t: t.touch([None]), r"keys\[0\]: bytes are expected, this is NoneType None"),
            (lambda t: t.pin("text"), r"keys\[0\]: bytes are expected, this is str 't'"),
            (lambda t: t.unpin([bytes(6)]), r"keys\[0\]: key has 6 bytes"),
            (lambda t: t.pin(KEYS, -1), r"until: None or seconds since 1970, as time.time\(\) gives them, .* not -1"),
            (lambda t: t.pin(KEYS, float("inf")), "until: None or seconds since 1970"),
            (lambda t: t.wait(timeout=-1), "timeout: None or a number of seconds from 0 on"),
            (lambda t: t.wait(timeout=float("nan")), "timeout: None or a number of seconds from 0 on"),
        ],
    )
    def test_one_clear_error(self, tier: kvtier.TierManager, call: Callable[[Any], object], message: str) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=message):
            call(tier)
        assert tier.stats().open_jobs == 0

    def test_a_row_has_one_use_at_a_time(self, tier: kvtier.TierManager) -> None:
        with pytest.raises(kvtier.InvalidInputError, match="row 3 is given for two blocks"):
            tier.submit_load(1, KEYS[:3], [3, 4, 3])
        tier.submit_store(1, KEYS[:3], [3, 4, 3])
        with pytest.raises(kvtier.InvalidInputError, match="row 3 is in use: an open job stores it"):
            tier.submit_load(2, KEYS[:2], [5, 3])
        tier.submit_store(2, KEYS[:1], [3])
        finish(tier)
        tier.submit_load(3, KEYS[:3], [3, 4, 5])
        with pytest.raises(kvtier.InvalidInputError, match="row 4 is in use: an open job loads into it"):
            tier.submit_store(4, KEYS[3:5], [6, 4])
        assert finish(tier)[0].success
        tier.submit_load(4, KEYS[:1], [4])
        assert finish(tier)[0].success

    def test_blocks_that_share_memory_are_not_loaded(self, tier: kvtier.TierManager) -> None:
        memory = bytearray(3 * 4096)
        views = [memoryview(memory)[begin : begin + 4096] for begin in (0, 4096, 8191)]
        tier.store(KEYS[:3], views).raise_for_failures()
        with pytest.raises(kvtier.InvalidInputError, match="blocks 1 and 2 share memory"):
            tier.load(KEYS[:3], views)

    def test_job_id_in_use(self, tier: kvtier.TierManager) -> None:
        tier.submit_store(1, KEYS[:1], [1])
        with pytest.raises(kvtier.InvalidInputError, match="job id 1 is in use"):
            tier.submit_load(1, KEYS[:1], [1])
        finish(tier)
        tier.submit_load(1, KEYS[:1], [1])
        finish(tier)

    def test_unhashable_request(self, tier: kvtier.TierManager) -> None:
        with pytest.raises(TypeError, match="unhashable"):
            tier.lookup(KEYS[0], [])  # type: ignore[arg-type]

    def test_streams_are_for_device_rows(self, tier: kvtier.TierManager) -> None:
        with pytest.raises(kvtier.UnsupportedError, match="device memory"):
            tier.submit_store(1, KEYS[:1], [1], stream=0)

    def test_read_only_rows_can_be_stored_from(self, open_tier: OpenTier) -> None:
        tier = open_tier(rows=memoryview(bytes(4 * 4096)).cast("B", (4, 4096)))
        tier.submit_store(1, KEYS[:1], [1])
        assert finish(tier)[0].success
        with pytest.raises(kvtier.ReadOnlyError, match="the rows are read-only memory"):
            tier.submit_load(2, KEYS[:1], [1])

    def test_read_only_tier_can_be_loaded_from(self, open_tier: OpenTier) -> None:
        writer, reader = open_tier(), open_tier(read_only=True)
        writer.submit_store(1, KEYS[:1], [1])
        finish(writer)
        reader.submit_load(1, KEYS[:1], [2])
        assert finish(reader)[0].success
        with pytest.raises(kvtier.ReadOnlyError, match="opened read-only"):
            reader.submit_store(2, KEYS[:1], [1])
        with pytest.raises(kvtier.ReadOnlyError, match="opened read-only"):
            reader.reset()

    def test_rows_of_another_length_than_the_identity_says(self, open_tier: OpenTier) -> None:
        identity = kvtier.Identity("m", 16, dtype="bfloat16", row_bytes=8192)
        with pytest.raises(kvtier.InvalidInputError, match="rows: a row has 4096 bytes, but row_bytes is 8192"):
            open_tier(identity=identity)

    def test_rows_of_one_dimension_take_the_identitys_row_bytes(self, open_tier: OpenTier) -> None:
        identity = kvtier.Identity("m", 16, dtype="bfloat16", row_bytes=1024)
        tier = open_tier(identity=identity, rows=bytearray(8192))
        assert (tier.num_rows, tier.row_bytes) == (8, 1024)

    def test_a_defect_is_an_ordinary_failure(self, faulty: kvtier.TierManager, faults: Faults) -> None:
        faults.inject("store", "panic")
        faults.inject("store", "lose")
        faulty.submit_store(1, KEYS[:4], range(4))
        (result,) = finish(faulty)
        assert sorted(error.kind for error in result.failures.values()) == ["internal", "internal"]
        assert len(result.successful_keys) == 2
        faulty.submit_store(2, KEYS[:4], range(4))
        assert finish(faulty)[0].success
