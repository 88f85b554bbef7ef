"""`kvtier doctor`: what it finds, and that it leaves everything as it was."""

import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import kvtier
from kvtier import Identity
from kvtier.cli import app
from kvtier.testing import make_key

ROW_BYTES = 8192
QUICK = ["--row-bytes", "8KiB", "--seconds", "0.2"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def doctor(root: object, *options: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["doctor", str(root), *options])


def report(root: object, *options: str, exit_code: int = 0) -> dict[str, Any]:
    ran = doctor(root, "--json", *(options or ["--seconds", "0"]))
    assert (ran.exit_code, ran.stderr) == (exit_code, "")
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["ok"] == (exit_code == 0)
    return found


def findings(found: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {finding["subject"]: finding for finding in found["findings"]}


def tree(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_ino for path in root.rglob("*")}


def store(root: Path, count: int, **facts: Any) -> Identity:
    """Stores blocks as an engine does, and gives the identity that they have then."""
    identity = Identity(**{"model_name": "org/m", "tokens_per_hash": 16, "dtype": "bfloat16", **facts})
    rows = kvtier.HostRows(count, ROW_BYTES)
    with kvtier.open(root, identity=identity, rows=rows) as tier:
        tier.submit_store(1, [make_key(n) for n in range(count)], range(count))
        assert tier.wait(1, timeout=60)
        assert all(result.success for result in tier.get_finished_jobs())
    return identity.with_row_bytes(ROW_BYTES)


def test_a_good_root_is_measured_and_left_as_it_was(root: Path) -> None:
    store(root, 3)
    before = tree(root)
    found = report(root, *QUICK)
    assert tree(root) == before

    assert found["root"]["path"] == str(root)
    assert found["root"]["free_bytes"] > 0
    told = findings(found)
    assert list(told) == [
        "file system", "permissions", "publishing", "locks", "direct IO", "io_uring", "rows", "pool", "space", "inodes"
    ]  # fmt: skip
    assert told["file system"]["found"] == found["root"]["file_system"]
    [throughput] = found["throughput"]
    assert (throughput["row_bytes"], throughput["failure"]) == (ROW_BYTES, None)
    assert throughput["stored"] > 0
    assert throughput["loaded"] > 0
    assert throughput["store_bytes_per_second"] > 0
    assert throughput["load_bytes_per_second"] > 0
    assert 0 < throughput["probe_seconds"] < 60


def test_output_fits_80_columns_without_a_terminal(root: Path) -> None:
    store(root, 1, model_name="m" * 10_000)
    shown = doctor(root, *QUICK)
    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "\x1b" not in shown.stdout
    assert "✓ tiers can be opened here" in shown.stdout
    assert "r0: 1 block, 12 KiB" in shown.stdout


def test_each_usual_row_size_is_measured(root: Path) -> None:
    found = report(f"file://{root}", "--seconds", "0.3")
    assert [throughput["row_bytes"] for throughput in found["throughput"]] == [64 << 10, 256 << 10, 2 << 20]
    assert list(root.iterdir()) == []


def test_namespaces_are_shown_with_their_identity_and_blocks(root: Path) -> None:
    one = store(root, 5)
    ranks = [store(root, 1, tp_size=2, rank=rank) for rank in range(2)]
    raw = Identity("raw", 16, dtype="bfloat16", row_bytes=ROW_BYTES)
    with kvtier.open(root, identity=raw, rows=kvtier.HostRows(1, ROW_BYTES), compat="vllm"):
        pass
    found = report(root)
    namespaces = {namespace["base_dir"]: namespace for namespace in found["namespaces"]}
    assert len(namespaces) == 3
    shown = namespaces[one.base_dir()]
    assert (shown["kind"], shown["fields"]) == ("kvtier", one.fields)
    assert shown["written_by"]["kvtier"] == kvtier.__version__
    [blocks] = shown["ranks"]
    assert (blocks["blocks_dir"], blocks["blocks"], blocks["exact"]) == (one.blocks_dir(), 5, True)
    assert blocks["bytes"] == 5 * (ROW_BYTES + 4096)
    of_ranks = namespaces[ranks[0].base_dir()]["ranks"]
    assert [blocks["blocks_dir"] for blocks in of_ranks] == [rank.blocks_dir() for rank in ranks]
    assert namespaces[raw.base_dir("vllm")]["kind"] == "vllm"
    assert "only their length can be checked" in findings(found)[raw.base_dir("vllm")]["used"]


def test_unfinished_files_are_told_apart_and_stay(root: Path) -> None:
    identity = store(root, 1)
    temporaries = root / identity.blocks_dir() / ".tmp"
    temporaries.mkdir(exist_ok=True)
    (temporaries / "of-a-dead-writer").touch()
    with (temporaries / "of-a-live-writer").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        before = tree(root)
        found = report(root, *QUICK)
        assert tree(root) == before
    [blocks] = found["namespaces"][0]["ranks"]
    assert (blocks["abandoned"], blocks["being_written"]) == (1, 1)
    assert findings(found)[identity.base_dir()]["found"] == "r0: 1 unfinished file of dead writers"


def test_what_a_reset_has_set_aside_stays(root: Path) -> None:
    trash = root / ".kvtier-trash" / "some-namespace"
    trash.mkdir(parents=True)
    found = report(root, *QUICK)
    assert found["reset_and_not_deleted_yet"] == 1
    assert findings(found)["trash"]["state"] == "note"
    assert trash.is_dir()


def test_quarantined_blocks_are_a_note(root: Path) -> None:
    identity = store(root, 1)
    quarantine = root / identity.blocks_dir() / ".quarantine"
    quarantine.mkdir()
    (quarantine / "a-bad-block").touch()
    assert "1 bad block" in findings(report(root))[identity.base_dir()]["found"]


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda text: text.replace('"tp_size": 1', '"tp_size": 2'), "it was edited, or copied here"),
        (lambda text: text[:20], "config.json is unreadable"),
        (lambda _: "", "it is empty"),
    ],
)
def test_a_damaged_config_is_a_problem_and_stays(root: Path, edit: Any, problem: str) -> None:
    identity = store(root, 1)
    config = root / identity.base_dir() / "config.json"
    text = edit(config.read_text())
    config.write_text(text)
    found = report(root, exit_code=1)
    told = findings(found)[identity.base_dir()]
    assert told["state"] == "problem"
    assert problem in told["found"]
    assert told["change"]
    assert config.read_text() == text
    shown = doctor(root, "--seconds", "0")
    assert (shown.exit_code, "✗ 1 problem" in shown.stdout) == (1, True)


def test_rows_that_fit_no_alignment_are_a_note(root: Path) -> None:
    found = report(root, "--row-bytes", "3098113", "--seconds", "0")
    if found["root"]["direct_io_alignment"] is None:
        pytest.skip("no direct IO here")
    assert findings(found)["rows"]["state"] == "note"
    assert "pad rows" in findings(found)["rows"]["change"]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("{tmp}/missing", "does not exist"),
        ("{tmp}/file", "not a directory"),
        ("memory://", "memory has no directory"),
    ],
)
def test_what_is_no_directory_is_unusable(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "file").touch()
    ran = doctor(place.format(tmp=tmp_path))
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert reason in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_root_that_cannot_be_written_is_a_problem() -> None:
    found = report("/proc", exit_code=1)
    told = findings(found)["permissions"]
    assert (told["state"], told["used"]) == ("problem", "nothing can be stored")
    assert found["throughput"] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    disk = tmp_path / "small"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("file systems can't be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_and_a_read_only_one_are_problems(small_disk: Path) -> None:
    (small_disk / "of-somebody-else").write_bytes(bytes(1000 << 10))
    found = report(small_disk, *QUICK, exit_code=1)
    told = findings(found)
    assert told["space"]["state"] == "problem"
    assert "make room" in told["space"]["change"]
    assert [path.name for path in small_disk.iterdir()] == ["of-somebody-else"]

    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    told = findings(report(small_disk, *QUICK, exit_code=1))
    assert "mounted read-only" in told["permissions"]["found"]
    assert "read_only=True" in told["permissions"]["change"]


def test_a_signal_in_the_middle_leaves_nothing(root: Path) -> None:
    command = [sys.executable, "-m", "kvtier", "doctor", str(root), "--seconds", "300"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        give_up = time.monotonic() + 60
        while not any(root.rglob("*.bin")):
            assert time.monotonic() < give_up
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert (process.returncode, errors) == (130, "kvtier: ended by SIGINT\n")
    assert list(root.iterdir()) == []
