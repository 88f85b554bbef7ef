"""`kvtier bench`: what it measures, what it refuses, and that it leaves everything as it was."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner, Result

import kvtier
from kvtier.cli import app
from kvtier.cli.bench import plan as planning
from kvtier.cli.bench.plan import Case, Plan
from kvtier.cli.bench.runs import Speed

SMALL = ["--row-bytes", "8KiB", "--row-bytes", "64KiB", "--bytes", "1MiB", "--rounds", "2"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "of-somebody-else").mkdir(parents=True)
    return root


def bench(root: object, *options: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["bench", str(root), *options])


def report(root: object, *options: str) -> dict[str, Any]:
    ran = bench(root, "--json", *options)
    assert (ran.exit_code, ran.stderr) == (0, "")
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["ok"]
    return found


def choices_of(option: str) -> set[str]:
    [choices] = [get_args(field.type) for field in fields(kvtier.TierConfig) if field.name == option]
    return set(choices) - {"auto"}


def test_every_way_is_measured_and_nothing_stays(root: Path) -> None:
    found = report(root, *SMALL, "--layout", "files")
    assert [path.name for path in root.iterdir()] == ["of-somebody-else"]
    engines = choices_of("io_engine") - set(found["plan"]["left_out"])
    ways = {(result["row_bytes"], result["layout"], result["io_engine"]) for result in found["results"]}
    assert ways == {(row_bytes, "files", engine) for row_bytes in (8 << 10, 64 << 10) for engine in engines}
    for result in found["results"]:
        assert result["failure"] is None
        assert len(result["rounds"]) == 2
        for direction in ("store", "load"):
            assert result[direction]["bytes_per_second"] > 0
            assert result[direction]["cpu_seconds_per_gb"] > 0
            assert 0 < result[direction]["median_seconds"] <= result[direction]["p99_seconds"] < 60
    assert found["plan"]["most_bytes"] < 16 << 20


def test_every_layout_of_the_package_is_in_the_plan(root: Path) -> None:
    found = report(root, "--row-bytes", "64KiB", "--bytes", "1MiB", "--rounds", "1", "--io-engine", "threads")
    assert {result["layout"] for result in found["results"]} == choices_of("layout") - set(found["plan"]["left_out"])


def test_output_fits_80_columns_without_a_terminal(root: Path) -> None:
    shown = bench(f"file://{root}", *SMALL)
    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "\x1b" not in shown.stdout
    assert "at most, removed at the end" in shown.stdout
    assert shown.stdout.index("Store") < shown.stdout.index("Load")


def test_no_more_is_stored_than_was_said(root: Path) -> None:
    plan = Plan([Case(64 << 10, "files", "threads")], bytes=2 << 20, rounds=3, warm=1, left_out={})
    [case] = plan.cases
    assert plan.stored(case) == (30 + 7) * (68 << 10)
    assert plan.total_bytes == 3 * (30 * 2 + 7) * (68 << 10)
    assert report(root, "--quick", "--layout", "files")["plan"]["rounds"] == 1


def test_turns_go_there_and_back() -> None:
    a, b = (Case(row_bytes, None, None) for row_bytes in (1, 2))
    assert list(Plan([a, b], 1, 3, 0, {}).turns()) == [a, b, b, a, a, b]


def test_medians_are_those_of_each_number() -> None:
    rounds = [Speed(1, 30, 5, 5), Speed(2, 10, 7, 9), Speed(9, 20, 6, 7)]
    assert Speed.median_of(rounds) == Speed(2, 20, 6, 7)


def test_without_room_nothing_is_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LEAST_FREE", 1)
    ran = bench(root)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "this needs" in ran.stderr
    assert "--quick" in ran.stderr
    assert [path.name for path in root.iterdir()] == ["of-somebody-else"]


@pytest.mark.parametrize(
    ("place", "options", "reason"),
    [
        ("{tmp}/missing", [], "does not exist"),
        ("memory://", [], "memory has no directory"),
        ("{tmp}", ["--layout", "loose"], "--layout 'loose' can't be measured; give files"),
        ("{tmp}", ["--io-engine", "auto"], "--io-engine 'auto' can't be measured; give threads or uring"),
        ("/proc", [], "nothing can be stored at /proc"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, place: str, options: list[str], reason: str) -> None:
    ran = bench(place.format(tmp=tmp_path), *options)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert reason in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_told_and_the_others_go_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = kvtier.TierManager.submit_load

    def submit_load(tier: kvtier.TierManager, job_id: int, keys: list[bytes], rows: Any) -> None:
        wrong = [bytes(36)] * len(keys) if tier.row_bytes == 8 << 10 else keys
        submit(tier, job_id, wrong, rows)

    monkeypatch.setattr(kvtier.TierManager, "submit_load", submit_load)
    ran = bench(root, *SMALL, "--layout", "files", "--io-engine", "threads")
    assert ran.exit_code == 1
    assert "✗ 8 KiB files threads: no block under that key" in ran.stdout
    assert [path.name for path in root.iterdir()] == ["of-somebody-else"]


def test_what_no_tier_can_be_opened_with_is_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def options(case: Case, _stored: int) -> dict[str, Any]:
        return {"io_threads": 0} if case.row_bytes == 8 << 10 else {}

    monkeypatch.setattr(Case, "options", options)
    found = report(root, *SMALL, "--layout", "files", "--io-engine", "threads")
    small, large = found["results"]
    assert "io_threads=0 is not accepted" in small["refused"]
    assert (small["store"], small["failure"]) == (None, None)
    assert large["store"]["bytes_per_second"] > 0


def test_a_signal_in_the_middle_leaves_nothing(root: Path) -> None:
    command = [sys.executable, "-m", "kvtier", "bench", str(root), "--row-bytes", "64KiB", "--bytes", "1MiB"]
    command += ["--rounds", "99", "--layout", "files"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        give_up = time.monotonic() + 60
        while not any(root.rglob("*.bin")):
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert (process.returncode, errors) == (130, "kvtier: ended by SIGINT\n")
    assert [path.name for path in root.iterdir()] == ["of-somebody-else"]
