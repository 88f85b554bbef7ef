"""Ends of interpreters and forks, with 1,000 jobs in flight: no crash, no hang, nothing printed."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

PRELUDE = """
import faulthandler, gc, os, signal, sys, threading, time
import numpy as np
import kvtier
from kvtier.testing import Faults, make_key, open_faulty

faulthandler.enable()
faulthandler.register(signal.SIGALRM, chain=True)  # who hangs shows where, and dies
signal.alarm(90)
IDENTITY = kvtier.Identity("org/model", 16, dtype="bfloat16")
KEYS = [make_key(i) for i in range(64)]

def open_tier(rows=None, **options):
    if rows is None:
        rows = np.ones((512, 8192), dtype=np.uint8)
    return kvtier.open(URL, identity=IDENTITY, rows=rows, **OPTIONS, **options)

def submit(tier, jobs=1000):
    for job_id in range(0, jobs, 2):
        tier.submit_store(job_id, KEYS[:8], range(8))
        tier.submit_load(job_id + 1, [KEYS[job_id % 8]], [8 + job_id // 2])  # a load has its row alone
"""

Run = Callable[[str], str]


@pytest.fixture
def place(url: str, place_options: dict[str, Any]) -> str:
    """What a program says of where its tiers are."""
    return f"URL, OPTIONS = {url!r}, {place_options!r}"


@pytest.fixture
def run(place: str) -> Run:
    """Runs a program in an interpreter of its own, which must end well and say nothing on stderr."""

    def run(program: str) -> str:
        source = f"{place}\n{PRELUDE}\n{textwrap.dedent(program)}"
        ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    return run


class TestExit:
    def test_with_jobs_in_flight(self, run: Run) -> None:
        run("submit(open_tier())")

    def test_with_several_tiers_and_results_untaken(self, run: Run) -> None:
        run(
            """
            tiers = [open_tier() for _ in range(4)]
            for tier in tiers:
                submit(tier, 250)
            tiers[0].drain_jobs()
            """
        )

    def test_with_rows_and_tier_dropped(self, run: Run) -> None:
        run(
            """
            rows = bytearray(512 * 4096)
            tier = open_tier(memoryview(rows).cast("B", (512, 4096)))
            submit(tier)
            del tier, rows
            gc.collect()
            """
        )

    def test_with_host_rows(self, run: Run) -> None:
        run("submit(open_tier(kvtier.HostRows(512, 8192)))")

    def test_with_torch_rows(self, run: Run) -> None:
        run(
            """
            import torch
            submit(open_tier(torch.ones(512, 4096, dtype=torch.bfloat16)))
            """
        )

    def test_of_a_thread_that_polls(self, run: Run) -> None:
        run(
            """
            tier = open_tier()
            def poll():
                while True:
                    tier.wait(timeout=0.001)
                    tier.get_finished_jobs()
            threading.Thread(target=poll, daemon=True).start()
            submit(tier)
            """
        )

    def test_of_threads_that_go_on(self, run: Run) -> None:
        """They meet the closed tier's errors, and log records, while the interpreter ends."""
        run(
            """
            import logging
            logging.getLogger("kvtier").addHandler(logging.NullHandler())
            logging.getLogger("kvtier").propagate = False
            faults = Faults()
            faults.inject("probe", "fail", kind="io", times=10**9)
            tier = open_faulty(URL, faults, identity=IDENTITY, rows=np.ones((64, 4096), "u1"), **OPTIONS)
            def go_on(n):
                while True:
                    try:
                        tier.lookup(make_key(n))
                        tier.submit_load(n, KEYS[:1], [0])
                    except kvtier.KvTierError:
                        pass
                    tier.get_finished_jobs()
                    n += 4
            for n in range(4):
                threading.Thread(target=go_on, args=(n,), daemon=True).start()
            time.sleep(0.3)
            """
        )

    def test_while_the_storage_stalls(self, run: Run) -> None:
        run(
            """
            kvtier.manager.EXIT_TIMEOUT = 0.5
            import logging
            logging.getLogger("kvtier").addHandler(logging.NullHandler())
            faults = Faults()
            faults.inject("store", "stall", times=10000)
            tier = open_faulty(URL, faults, identity=IDENTITY, rows=np.ones((512, 4096), "u1"), **OPTIONS)
            submit(tier)
            tier.wait(timeout=0.1)
            """
        )

    def test_with_several_tiers_on_stalled_storage_takes_the_time_of_one(self, run: Run) -> None:
        printed = run(
            """
            import atexit
            kvtier.manager.EXIT_TIMEOUT = 1
            atexit.unregister(kvtier.manager._shut_down_all)
            atexit.register(lambda: print("took", round(time.monotonic() - begun)))
            atexit.register(kvtier.manager._shut_down_all)
            import logging
            logging.getLogger("kvtier").addHandler(logging.NullHandler())
            faults = Faults()
            faults.inject("store", "stall", times=10000)
            rows = np.ones((512, 4096), "u1")
            tiers = [open_faulty("memory://", faults, identity=IDENTITY, rows=rows) for _ in range(6)]
            for tier in tiers:
                submit(tier, 100)
            while faults.stalled < 6:
                time.sleep(0.01)
            begun = time.monotonic()
            """
        )
        assert printed in {"took 1\n", "took 2\n"}

    def test_by_an_exception(self, place: str) -> None:
        source = f"{place}\n{PRELUDE}\nsubmit(open_tier())\nraise SystemExit(3)"
        ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100, check=False)
        assert (ended.returncode, ended.stderr) == (3, "")

    def test_at_once(self, run: Run) -> None:
        run("submit(open_tier())\nos._exit(0)")

    def test_of_a_tier_kept_in_a_module(self, run: Run) -> None:
        run("sys.tier = open_tier()\nsubmit(sys.tier)\nsys.modules['keeps'] = sys.tier")


class TestFork:
    def test_the_child_is_told_and_can_open_its_own(self, run: Run) -> None:
        printed = run(
            """
            tier = open_tier()
            submit(tier)
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                calls = [
                    lambda: tier.lookup(KEYS[0]), lambda: tier.lookup(KEYS[0], "r"), lambda: tier.lookup_many(KEYS),
                    lambda: tier.submit_store(9999, KEYS[:1], [0]), lambda: tier.submit_load(9999, KEYS[:1], [0]),
                    tier.get_finished_jobs, tier.wait, tier.drain_jobs, tier.take_events, tier.stats, tier.fileno,
                    tier.forget, tier.reset, tier.shutdown, lambda: tier.touch(KEYS), lambda: tier.pin(KEYS),
                    lambda: tier.unpin(KEYS), lambda: tier.release("r"),
                ]
                for call in calls:
                    try:
                        call()
                        print("no error from", call)
                    except kvtier.ForkedProcessError as error:
                        assert error.kind == "forked" and "fork" in str(error)
                with open_tier() as own:
                    own.submit_store(1, KEYS[:8], range(8))
                    assert own.drain_jobs(30)
                    assert own.get_finished_jobs()[0].success
                print("child done", flush=True)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert tier.drain_jobs(60)
            results = tier.get_finished_jobs()
            print("parent done", sorted(r.job_id for r in results) == list(range(1000)))
            """
        )
        assert printed.splitlines() == ["child done", "parent done True"]

    def test_the_child_may_drop_what_it_inherited(self, run: Run) -> None:
        run(
            """
            memory = bytearray(512 * 4096)
            tier = open_tier(memoryview(memory).cast("B", (512, 4096)))
            submit(tier)
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                del tier, memory
                gc.collect()
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert tier.drain_jobs(60)
            """
        )

    def test_multiprocessing(self, run: Run) -> None:
        printed = run(
            """
            import multiprocessing, warnings
            warnings.simplefilter("ignore", DeprecationWarning)
            tier = open_tier()
            def work(queue):
                try:
                    tier.lookup(KEYS[0])
                except kvtier.ForkedProcessError:
                    with open_tier() as own:
                        own.submit_store(1, KEYS[:1], [0])
                        queue.put(own.drain_jobs(30))
            context = multiprocessing.get_context("fork")
            submit(tier)
            queue = context.Queue()
            workers = [context.Process(target=work, args=(queue,)) for _ in range(4)]
            for worker in workers:
                worker.start()
            print([queue.get(timeout=60) for _ in workers])
            for worker in workers:
                worker.join()
            print({worker.exitcode for worker in workers}, tier.drain_jobs(60))
            """
        )
        assert printed.splitlines() == ["[True, True, True, True]", "{0} True"]

    @pytest.mark.slow
    def test_at_many_moments(self, run: Run) -> None:
        """Forks while IO threads log, drop rows and hold locks; each child uses what it could find locked."""
        printed = run(
            """
            import logging
            logging.getLogger("kvtier").addHandler(logging.NullHandler())
            logging.getLogger("kvtier").propagate = False
            faults = Faults()
            faults.inject("store", "panic", times=10**6)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the panics' messages
            tier = open_faulty(URL, faults, identity=IDENTITY, rows=np.ones((64, 4096), "u1"), **OPTIONS)
            codes = set()
            for round in range(100):
                tier.submit_store(round, KEYS, range(64))
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    try:
                        tier.lookup(KEYS[0])
                    except kvtier.ForkedProcessError:
                        rows = kvtier.HostRows(4, 4096)
                        with kvtier.open("memory://", identity=IDENTITY, rows=rows) as own:
                            own.submit_store(1, KEYS[:4], range(4))
                            os._exit(0 if own.drain_jobs(15) else 1)
                    os._exit(2)
                codes.add(os.waitpid(child, 0)[1])
                tier.get_finished_jobs()
            print(codes)
            """
        )
        assert printed.strip() == "{0}"


class TestDrop:
    # A pool's lookups probe nothing, so that no probe fails there.
    @pytest.mark.parametrize("url", ["memory", "file", "s3"], indirect=True)
    def test_while_an_exception_is_raised(self, run: Run) -> None:
        """What IO threads have left for Python waits until Python code may run again."""
        printed = run(
            """
            import logging
            logging.basicConfig(stream=sys.stdout, format="%(message)s")
            faults = Faults()
            faults.inject("probe", "fail", kind="io")
            def probed_tier():
                tier = open_faulty(URL, faults, identity=IDENTITY, rows=np.ones((4, 4096), "u1"), **OPTIONS)
                while not tier._stats()["probe_failures"]:
                    tier.lookup(KEYS[0])
                return tier
            def no_place_for(*_):
                pass
            for _ in range(20):
                faults.inject("probe", "fail", kind="io")
                try:
                    no_place_for(probed_tier(), 1 / 0)
                except ZeroDivisionError:
                    pass
            print("done")
            """
        )
        assert printed.splitlines()[-1] == "done"
        assert "looking for blocks failed" in printed


class TestSignals:
    def test_sigterm_with_jobs_in_flight(self, place: str) -> None:
        source = f"{place}\n{PRELUDE}\nsubmit(open_tier())\nos.kill(os.getpid(), signal.SIGTERM)"
        ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100, check=False)
        assert (ended.returncode, ended.stderr) == (-15, "")

    def test_ctrl_c_shuts_down_in_order(self, place: str) -> None:
        source = f"""{place}\n{PRELUDE}
tier = open_tier()
submit(tier)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    while True:
        tier.wait(timeout=1)
        tier.get_finished_jobs()
except KeyboardInterrupt:
    print("interrupted")
"""
        ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\n", "")
