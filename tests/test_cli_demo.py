"""`kvtier demo`, run as users run it: as a program of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BLOCKS = 6
QUICK = ["--blocks", str(BLOCKS), "--row-bytes", "64KiB", "--rows", "HostRows"]
ENDLESS = ["--blocks", "100000", "--row-bytes", "4KiB", "--rows", "HostRows"]


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where the demo makes its temporary root."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return scratch


def environment(scratch: Path) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    return plain | {"TMPDIR": str(scratch)}


def demo(scratch: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvtier", "demo", *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment(scratch), check=False)


def outcome(scratch: Path, *options: str) -> dict[str, Any]:
    ran = demo(scratch, "--json", *QUICK, *options)
    assert (ran.returncode, ran.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_readers_of_another_tp_size_find_what_is_replicated_and_nothing_else(scratch: Path) -> None:
    found = outcome(scratch)
    assert (found["ok"], found["problems"]) == (True, [])
    shared, unshared = found["shared"], found["unshared"]

    assert list(shared["namespaces"].values()) == [
        ["TP=2 rank 0", "TP=2 rank 1", "TP=4 rank 0", "TP=4 rank 1", "TP=4 rank 2", "TP=4 rank 3"]
    ]
    assert (shared["asked"], shared["hits"], shared["bytes_equal"]) == (4 * BLOCKS,) * 3
    assert [(w["blocks"], w["moved_bytes"]) for w in shared["writers"]] == [(BLOCKS / 2, BLOCKS / 2 * 65536)] * 2
    assert len({rank["pid"] for rank in shared["writers"] + shared["readers"]} | {os.getpid()}) == 7

    assert (unshared["asked"], unshared["hits"], unshared["bytes_equal"]) == (4 * BLOCKS, 0, 0)
    assert sorted(map(len, unshared["namespaces"].values())) == [1] * 6
    assert [(d["field"], d["writer"], d["reader"]) for d in found["differences"]] == [("tp_size", 2, 4)]
    assert found["differences"][0]["protects_from"]

    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("rows", ["numpy", pytest.param("torch", marks=pytest.mark.slow)])
def test_rows_are_what_engines_have(scratch: Path, rows: str) -> None:
    pytest.importorskip(rows)
    found = outcome(scratch, "--rows", rows)
    assert (found["rows"], found["shared"]["bytes_equal"]) == (rows, 4 * BLOCKS)


def test_rows_of_odd_length_are_shared_too(scratch: Path) -> None:
    found = outcome(scratch, "--row-bytes", "65537", "--rows", "numpy")
    assert found["shared"]["bytes_equal"] == 4 * BLOCKS


def test_output_fits_80_columns_without_a_terminal(scratch: Path) -> None:
    ran = demo(scratch, *QUICK)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert "\x1b" not in ran.stdout
    assert f"✓ {4 * BLOCKS} of {4 * BLOCKS} lookups hit" in ran.stdout
    assert re.search(r"tp_size +2 +4 +rows whose heads", ran.stdout)


def test_a_given_root_is_kept_and_found_again(scratch: Path, tmp_path: Path) -> None:
    root = tmp_path / "kept root"
    root.mkdir()
    first = outcome(scratch, "--root", str(root))
    files = sorted(path for path in root.rglob("*.bin"))
    assert len(files) == BLOCKS + 2 * BLOCKS  # replicated once, and for each rank of TP=2
    assert (first["root"], first["root_is_kept"]) == (str(root), True)

    again = demo(scratch, *QUICK, "--root", f"file://{str(root).replace(' ', '%20')}")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.count("there before") == 2
    assert f"✓ {4 * BLOCKS} of {4 * BLOCKS} lookups hit" in again.stdout
    [namespace] = first["shared"]["namespaces"]
    assert namespace.removesuffix("_r0") in again.stdout.split("To remove")[1]
    assert sorted(path for path in root.rglob("*.bin")) == files


def test_a_model_name_of_any_length_and_script(scratch: Path) -> None:
    shown = demo(scratch, *QUICK, "--model", "模型/ \\ ../" * 1200)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "(10800 characters)" in shown.stdout
    assert f"✓ {4 * BLOCKS} of {4 * BLOCKS} lookups hit" in shown.stdout


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ("{missing}", "does not exist"),
        ("{file}", "not a directory"),
        ("memory://", "memory has no directory"),
        ("ftp://host/x", "the scheme is not known"),
    ],
)
def test_an_unusable_root_is_refused_in_one_sentence(scratch: Path, tmp_path: Path, root: str, reason: str) -> None:
    (tmp_path / "file").touch()
    ran = demo(scratch, "--root", root.format(missing=tmp_path / "missing", file=tmp_path / "file"))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert reason in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("options", [["--row-bytes", "0"], ["--row-bytes", "2 parsecs"], ["--blocks", "0"]])
def test_unusable_options_are_refused(scratch: Path, options: list[str]) -> None:
    ran = demo(scratch, *options)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


def test_a_killed_rank_is_named_and_nothing_is_left(scratch: Path) -> None:
    with endless_demo(scratch) as (process, ranks):
        os.kill(ranks[0], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert re.search(rf"TP=\d rank \d \(process {ranks[0]}\) was killed by SIGKILL", errors)
        assert_nothing_is_left(scratch, ranks)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(scratch: Path, number: signal.Signals) -> None:
    with endless_demo(scratch) as (process, ranks):
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert errors == f"kvtier: ended by {number.name}\n"
        assert_nothing_is_left(scratch, ranks)


def test_a_full_or_failing_storage_is_said(scratch: Path) -> None:
    # A file system on which nothing can be made.
    ran = demo(scratch, *QUICK, "--root", "/proc")
    assert ran.returncode == 1
    assert re.search(r"TP=\d rank \d: ", ran.stderr)
    assert "Traceback" not in ran.stderr


@contextmanager
def endless_demo(scratch: Path) -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """A demo that has begun to move blocks, and the processes of its ranks."""
    command = [sys.executable, "-m", "kvtier", "demo", *ENDLESS]
    # A group of its own, so that what a failing test leaves behind can be ended.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(scratch),
        start_new_session=True,
    )
    try:
        wait_until(lambda: any(scratch.rglob("*.bin")))
        ranks = [pid for pid in children(process.pid) if "spawn_main" in command_line(pid)]
        assert len(ranks) == 6
        yield process, ranks
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def assert_nothing_is_left(scratch: Path, ranks: list[int]) -> None:
    wait_until(lambda: not any("spawn_main" in command_line(pid) for pid in ranks))
    assert list(scratch.iterdir()) == []


def wait_until(condition: Any) -> None:
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
