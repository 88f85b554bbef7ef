"""Packed pools whose files can't be read or written any more: what fails says so, and all else goes on.

A filter of the kernel's makes system calls fail in a process of their own (`failing_calls.py`), so that the error comes
from where a broken disk's would.
"""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

import kvtier
from kvtier.testing import make_key

BLOCKS = 40
"""Of which a segment of the pool has 15."""

PRELUDE = """
import collections, faulthandler, logging, os, signal, sys, time
import numpy as np
import kvtier
from kvtier.testing import make_key
from failing_calls import fail

faulthandler.enable()
signal.alarm(90)
logging.getLogger("kvtier").addHandler(logging.NullHandler())  # it warns, and may
logging.getLogger("kvtier").propagate = False
BLOCKS = 40
READS, WRITES = ["pread64", "preadv"], ["pwrite64", "pwritev", "fallocate", "ftruncate", "fdatasync", "fsync"]
ROWS = np.ones((64, 60 << 10), dtype=np.uint8)
jobs = iter(range(1_000_000))

def open_tier(**options):
    options = {"layout": "packed", "max_bytes": "8MiB", "segment_bytes": "1MiB", "io_engine": ENGINE, **options}
    return kvtier.open(ROOT, identity=kvtier.Identity("org/model", 16, dtype="bfloat16"), rows=ROWS, **options)

def run(submit, numbers, row):
    job = next(jobs)
    submit(job, [make_key(n) for n in numbers], range(row, row + len(numbers)))
    assert tier.wait(job, timeout=60)
    [result] = tier.get_finished_jobs()
    return collections.Counter(error.kind for error in result.failures.values())

def store(numbers):
    for n in numbers:
        ROWS[n % 16] = n % 251
    return run(tier.submit_store, numbers, numbers[0] % 16)

def load(numbers):
    failures = run(tier.submit_load, numbers, 16)
    for row, n in enumerate(numbers, 16):
        assert sum(failures.values()) or (ROWS[row] == n % 251).all(), n
    return failures

def load_all():
    failures = collections.Counter()
    for n in range(BLOCKS):
        failures += load(range(n, n + 1))
    return failures

def is_known(n):
    return tier.lookup(make_key(n)) is kvtier.Lookup.HIT

def descriptors(of):
    links = {int(name): os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")
             if os.path.islink(f"/proc/self/fd/{name}")}
    return [descriptor for descriptor, path in links.items() if path.endswith(of)]

tier = open_tier()
"""

Run = Callable[..., None]


@cache
def filters_work() -> bool:
    source = "from failing_calls import fail; fail(['fallocate'], 'EIO')"
    command = [sys.executable, "-c", source]
    return subprocess.run(command, env=environment(), capture_output=True, check=False).returncode == 0


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}


@pytest.fixture(params=["threads", "uring"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(tmp_path: Path, engine: str) -> Run:
    """Runs programs on a pool with blocks; the pool is sound afterwards, and has them all."""
    if not filters_work():
        pytest.skip("no filter for system calls can be set here")

    def run(program: str, prelude: str = PRELUDE) -> None:
        place = f"ROOT, ENGINE = {str(tmp_path)!r}, {engine!r}"
        source = f"{place}\n{prelude}\n{textwrap.dedent(program)}\n"
        ended = subprocess.run(
            [sys.executable, "-c", source], env=environment(), capture_output=True, text=True, timeout=100, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "")

    run("for n in range(BLOCKS): assert not store(range(n, n + 1))\ntier.shutdown()")
    return run


def assert_all_there(root: Path, blocks: Iterable[int] = range(BLOCKS)) -> None:
    rows = kvtier.HostRows(1, 60 << 10)
    identity = kvtier.Identity("org/model", 16, dtype="bfloat16")
    with kvtier.open(root, identity=identity, rows=rows, layout="packed", max_bytes="8MiB") as tier:
        for n in blocks:
            block = bytearray(60 << 10)
            tier.load([make_key(n)], block).raise_for_failures()
            assert block == bytes([n % 251]) * len(block)
    command = [sys.executable, "-m", "kvtier", "pool", "check", str(root)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(("code", "kind"), [("EIO", "io"), ("ENOSPC", "no_space")])
def test_nothing_can_be_written(run: Run, tmp_path: Path, code: str, kind: str) -> None:
    """Superblock, record, hints, headers, tables and slots: stores fail, and everything is there still."""
    run(
        f"""
        fail(WRITES, {code!r})
        for n in range(100, 150):
            failures = store(range(n, n + 1))
            assert set(failures) <= {{{kind!r}, "capacity"}}
            assert is_known(n) == (not failures)  # what goes through a ring is no call that a filter sees
        failures = store(range(200, 210))
        assert sum(failures.values()) == 10, failures
        assert not load_all()
        try:
            tier.reset()
            sys.exit("a reset that can't be written down")
        except kvtier.StoreUnavailableError as error:
            assert error.kind == {kind!r}, error
        assert not load_all()
        time.sleep(1.5)  # the pool's own thread has its turn
        assert not load_all()
        tier.shutdown()
        """
    )
    assert_all_there(tmp_path)


def test_nothing_can_be_written_and_then_opened(run: Run, tmp_path: Path) -> None:
    """A pool that can't be written to is opened, and read from; one can't be made."""
    run(
        """
        tier.shutdown()
        os.mkdir(ROOT + "/empty")
        fail(WRITES, "ENOSPC")
        tier = open_tier()
        assert set(store(range(100, 110))) <= {"no_space", "capacity"}
        assert not load_all()
        tier.shutdown()
        try:
            kvtier.open(ROOT + "/empty", identity=kvtier.Identity("m", 16, dtype="float16"), rows=ROWS, layout="packed",
                        max_bytes="8MiB")
            sys.exit("a pool that can't be made")
        except kvtier.StoreUnavailableError as error:
            assert error.kind == "no_space", error
        """
    )
    (tmp_path / "empty" / "kvtier-pool" / "super.new").unlink()
    (tmp_path / "empty" / "kvtier-pool").rmdir()
    (tmp_path / "empty").rmdir()
    assert_all_there(tmp_path)


# A ring's transfers are no system calls that a filter sees.
@pytest.mark.parametrize("engine", ["threads"], indirect=True)
def test_one_segment_can_not_be_read(run: Run, tmp_path: Path) -> None:
    """Its blocks fail as `io`, all others load; nothing is taken for damaged."""
    run(
        """
        assert not load_all()
        bad = descriptors("00000000.seg")
        assert len(bad) == 2
        fail(READS, "EIO", bad)
        failures = load_all()
        assert failures == {"io": 15}, failures
        time.sleep(1.5)
        failures = load_all()
        assert failures == {"io": 15}, failures
        for n in range(100, 120):
            assert not store(range(n, n + 1))
            assert not load(range(n, n + 1))
        tier.shutdown()
        """
    )
    assert_all_there(tmp_path)


def test_no_header_and_no_table_can_be_read(run: Run, tmp_path: Path) -> None:
    """What is known stays known, and loads."""
    run(
        """
        assert not load_all()
        fail(["pread64"], "EIO")
        time.sleep(1.5)
        assert all(is_known(n) for n in range(BLOCKS))
        assert not load_all()
        for n in range(100, 150):
            assert set(store(range(n, n + 1))) <= {"io", "capacity"}
        assert not load_all()
        tier.shutdown()
        try:
            open_tier()
            sys.exit("a pool without a superblock that can be read")
        except kvtier.StoreUnavailableError as error:
            assert error.kind == "io", error
        """
    )
    assert_all_there(tmp_path)


@pytest.mark.parametrize("call", ["openat", "flock", "fcntl"])
def test_no_file_can_be_opened_or_locked(run: Run, tmp_path: Path, call: str) -> None:
    run(
        f"""
        assert not load_all()
        fail([{call!r}], "EIO")
        time.sleep(1.5)
        assert not load_all()
        for n in range(100, 150):
            assert set(store(range(n, n + 1))) <= {{"io", "capacity"}}
        assert not load_all()
        tier.shutdown()
        """
    )
    assert_all_there(tmp_path)


@pytest.mark.parametrize(("offset", "stay"), [(8192 + (64 << 10), [0, 2, 3, 4]), (4096, [])], ids=["slot", "table"])
def test_a_block_that_is_to_stay_can_not_be_written(run: Run, tmp_path: Path, offset: int, stay: list[int]) -> None:
    """When its segment is taken: it is lost, and those of a table that can't be written; all others stay."""
    run(
        f"""
        for n in range(100, 100 + 7 * 15 - BLOCKS):
            assert not store(range(n, n + 1))  # the pool is full
        assert tier.pin([make_key(n) for n in range(5)]) == [True] * 5
        fail(["pwrite64"], "EIO", offsets=[{offset}])
        store(range(1000, 1001))
        assert [n for n in range(15) if is_known(n)] == {stay}
        dropped = {{event.key for event in tier.take_events() if event.kind == "removed"}}
        assert dropped >= {{make_key(n) for n in range(15) if n not in {stay}}}
        assert not dropped & {{make_key(n) for n in {stay}}}
        for n in {stay}:
            assert not load(range(n, n + 1))
        tier.shutdown()
        """
    )
    assert_all_there(tmp_path, stay)
