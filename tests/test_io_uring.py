"""The ring of io_uring as users meet it: chosen by an option, missed without harm, absent from forked children."""

import ctypes
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtier
from kvtier._kvtier import inspect_root
from kvtier.testing import make_key

# A seccomp filter as container runtimes set it: io_uring_setup fails with EPERM, all else is allowed.
BLOCKED = """
import ctypes, struct
IO_URING_SETUP, EPERM = 425, 1
def instruction(code, yes, no, value):
    return struct.pack("HBBI", code, yes, no, value)
program = b"".join([
    instruction(0x20, 0, 0, 0),  # the system call's number
    instruction(0x15, 0, 1, IO_URING_SETUP),
    instruction(0x06, 0, 0, 0x00050000 | EPERM),
    instruction(0x06, 0, 0, 0x7FFF0000),
])
buffer = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2
assert libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
assert libc.prctl(SECCOMP, FILTER, filter, 0, 0) == 0
"""

PRELUDE = """
import logging, os, signal, sys, time
import numpy as np
import kvtier
from kvtier.testing import make_key
signal.alarm(90)
logging.basicConfig(stream=sys.stdout, level="INFO", format="%(levelname)s %(message)s")
KEYS = [make_key(i) for i in range(64)]
def open_tier(rows, **options):
    return kvtier.open(ROOT, identity=kvtier.Identity("m", 16, dtype="uint8"), rows=rows, **options)
def move(tier, submit, count=64):
    submit(1, KEYS[:count], range(count))
    assert tier.wait(1, 60)
    [result] = tier.get_finished_jobs()
    assert result.success, result.failures
"""


def run(root: Path, program: str) -> str:
    """Runs a program in an interpreter of its own, which must end well; gives what it printed."""
    source = f"ROOT = {str(root)!r}\n{PRELUDE}\n{textwrap.dedent(program)}"
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.fixture
def ring(tmp_path: Path) -> None:
    """For tests that need a ring."""
    if refused := inspect_root(str(tmp_path))["ring_refused"]:
        pytest.skip(refused)


@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize("row_bytes", [4096, 5000, 256 << 10])
def test_blocks_move_through_a_ring(tmp_path: Path, row_bytes: int) -> None:
    rows = kvtier.HostRows(64, row_bytes)
    memory = np.asarray(rows)
    memory[:] = np.random.default_rng(1).integers(0, 256, memory.shape, np.uint8)
    before = memory.copy()
    identity = kvtier.Identity("m", 16, dtype="uint8")
    keys = [make_key(n) for n in range(64)]
    with kvtier.open(tmp_path, identity=identity, rows=rows, io_engine="uring") as tier:
        assert tier.io_engine == "uring"
        tier.submit_store(1, keys, range(64))
        assert tier.drain_jobs(60)
        assert [result.success for result in tier.get_finished_jobs()] == [True]
        memory[:] = 0
        for job_id in range(2, 10):
            first = (job_id - 2) * 8
            tier.submit_load(job_id, keys[first : first + 8], range(first, first + 8))
        assert tier.drain_jobs(60)
        assert all(result.success for result in tier.get_finished_jobs())
    assert (memory == before).all()


def test_files_are_moved_by_threads_unless_a_ring_is_asked_for(tmp_path: Path) -> None:
    identity = kvtier.Identity("m", 16, dtype="uint8")
    chosen: list[dict[str, Any]] = [{}, {"io_engine": "threads"}]
    for options in chosen:
        with kvtier.open(tmp_path, identity=identity, rows=kvtier.HostRows(1, 4096), **options) as tier:
            assert tier.io_engine == "threads"
    with kvtier.open("memory://", identity=identity, rows=kvtier.HostRows(1, 4096), io_engine="uring") as tier:
        assert tier.io_engine == "threads", "no file, no ring"


@pytest.mark.skipif(ctypes.sizeof(ctypes.c_void_p) != 8 or struct.pack("=H", 1) != b"\1\0", reason="not this machine")
def test_a_sandbox_without_io_uring_costs_a_warning(tmp_path: Path) -> None:
    printed = run(
        tmp_path,
        BLOCKED
        + """
rows = np.ones((64, 4096), np.uint8)
with open_tier(rows, io_engine="uring") as tier:
    print(tier.io_engine)
    move(tier, tier.submit_store)
    move(tier, tier.submit_load)
with open_tier(rows) as tier:
    print(tier.io_engine)
""",
    )
    lines = printed.splitlines()
    assert [line for line in lines if "io_uring" not in line] == ["threads", "threads"]
    [warning] = [line for line in lines if "io_uring" in line]
    assert warning.startswith("WARNING threads make the transfers instead of io_uring: io_uring_setup failed:")
    assert "seccomp filter" in warning or "io_uring_disabled" in warning
    assert "os error 1" in warning


def test_the_doctor_tells_what_is_in_the_way(tmp_path: Path) -> None:
    program = (
        BLOCKED
        + """
from kvtier.cli import app
sys.argv = ["kvtier", "doctor", ROOT, "--seconds", "0", "--json"]
app()
"""
    )
    told = run(tmp_path, program)
    assert "io_uring_setup failed" in told
    assert "threads make all transfers" in told


@pytest.mark.usefixtures("ring")
def test_a_forked_child_leaves_the_ring_alone(tmp_path: Path) -> None:
    printed = run(
        tmp_path,
        """
        rows = np.zeros((512, 8192), np.uint8)
        rows[:64] = np.arange(64, dtype=np.uint8)[:, None]
        tier = open_tier(rows, io_engine="uring")
        move(tier, tier.submit_store)
        for job_id in range(56):
            tier.submit_load(job_id, KEYS[:8], range(64 + job_id * 8, 72 + job_id * 8))
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                tier.submit_load(9999, KEYS[:1], [0])
            except kvtier.ForkedProcessError:
                print("told", flush=True)
            with open_tier(np.zeros((64, 8192), np.uint8), io_engine="uring") as own:
                assert own.io_engine == "uring"
                move(own, own.submit_load)
            del tier
            print("child done", flush=True)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert tier.drain_jobs(60)
        assert all(result.success for result in tier.get_finished_jobs())
        assert (rows[64:512] == np.tile(np.arange(8), 56)[:, None]).all()
        tier.shutdown()
        print("parent done")
        """,
    )
    assert printed.splitlines() == ["told", "child done", "parent done"]


@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize("end", ["", "os._exit(0)", "tier.shutdown()", "del tier", "sys.tier = tier"])
def test_ends_with_jobs_in_flight(tmp_path: Path, end: str) -> None:
    run(
        tmp_path,
        f"""
        tier = open_tier(kvtier.HostRows(512, 65536), io_engine="uring")
        for job_id in range(0, 1000, 2):
            tier.submit_store(job_id, KEYS[:8], range(8))
            tier.submit_load(job_id + 1, [KEYS[job_id % 8]], [8 + job_id // 2])
        {end}
        """,
    )


def test_rings_and_threads_leave_no_descriptor(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        rows = kvtier.HostRows(64, 4096)
        def descriptors():
            return len(os.listdir("/proc/self/fd"))
        def use_a_tier():
            with open_tier(rows, io_engine="uring") as tier:
                move(tier, tier.submit_store)
        use_a_tier()
        before = descriptors()
        for _ in range(10):
            use_a_tier()
        while descriptors() > before:  # the alarm ends it
            time.sleep(0.01)
        """,
    )


class TestHostRowsAndForks:
    def test_a_child_sees_zeros_and_is_told(self, tmp_path: Path) -> None:
        printed = run(
            tmp_path,
            """
            rows = kvtier.HostRows(64, 4096)
            view = np.asarray(rows)
            view[:] = 7
            child = os.fork()
            if child == 0:
                print(int(view.sum()), flush=True)
                view[:] = 9
                for use in (memoryview, np.from_dlpack, open_tier):
                    try:
                        use(rows)
                        print("no error")
                    except kvtier.ForkedProcessError as error:
                        assert "memory for rows belongs to process" in str(error), error
                del view, rows
                print("child done", flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            print(set(view.ravel().tolist()))
            """,
        )
        assert printed.splitlines() == ["0", "child done", "{7}"]

    def test_forks_do_not_disturb_loads(self, tmp_path: Path) -> None:
        """Small rows share pages: what is written to one must not move the other away from a read that is under way."""
        printed = run(
            tmp_path,
            """
            rows = kvtier.HostRows(128, 512)
            view = np.asarray(rows)
            with open_tier(rows) as tier:
                view[:64] = np.arange(64, dtype=np.uint8)[:, None]
                move(tier, tier.submit_store)
                right = 0
                for round in range(50):
                    view[:64] = 0
                    tier.submit_load(1, KEYS, range(64))
                    child = os.fork()
                    if child == 0:
                        os._exit(0)
                    view[64:] = round
                    assert tier.wait(1, 60)
                    tier.get_finished_jobs()
                    right += (view[:64] == np.arange(64)[:, None]).all()
                    os.waitpid(child, 0)
                print(right)
            """,
        )
        assert printed.splitlines()[-1] == "50"
