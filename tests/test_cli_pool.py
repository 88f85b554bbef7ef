"""`kvtier pool`: what it says about a pool, and what it finds."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import kvtier
from kvtier.cli import app

KEYS = [bytes([n]) * 32 + bytes(4) for n in range(100)]
OPTIONS: dict[str, Any] = {"layout": "packed", "max_bytes": "4200KiB", "segment_bytes": "1MiB"}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pool", *arguments])


def store(root: Path, identity: kvtier.Identity, blocks: int) -> kvtier.TierManager:
    rows = kvtier.HostRows(blocks, 60 << 10)
    np.asarray(rows)[:] = 7
    tier = kvtier.open(root, identity=identity, rows=rows, **OPTIONS)
    tier.submit_store(1, KEYS[:blocks], range(blocks))
    assert tier.wait(1, timeout=60)
    assert tier.get_finished_jobs()[0].success
    return tier


def test_info_counts_what_is_there(tmp_path: Path, identity: kvtier.Identity) -> None:
    with store(tmp_path, identity, 20) as tier:
        info = json.loads(run("info", str(tmp_path), "--json").stdout)
        assert info["owned"] == 1
        assert tier.stats().resident_blocks == 20
    info = json.loads(run("info", str(tmp_path), "--json").stdout)
    [namespace] = info["namespaces"]
    assert (namespace["blocks"], namespace["row_bytes"], namespace["dead"]) == (20, 60 << 10, 0)
    assert namespace["bytes"] == 20 * (60 << 10)
    assert (info["segments"], info["most_segments"], info["owned"], info["unusable"]) == (2, 4, 0, 0)
    assert info["used_bytes"] <= info["max_bytes"] == 4200 << 10
    assert info["age_at_reclaim"] is None, "there is room still"
    text = run("info", str(tmp_path)).stdout
    for part in ("at most 4.1 MiB", "2 of 4, of 1 MiB", "nothing is reclaimed yet", "60 KiB"):
        assert part in text


def test_a_full_pool_says_how_old_blocks_become(tmp_path: Path, identity: kvtier.Identity) -> None:
    store(tmp_path, identity, 90).shutdown()
    info = json.loads(run("info", f"file://{tmp_path}", "--json").stdout)
    assert info["segments"] == 4
    assert 0 <= info["age_at_reclaim"] < 600
    assert "seconds" in run("info", str(tmp_path)).stdout


def test_check_finds_what_is_damaged(tmp_path: Path, identity: kvtier.Identity) -> None:
    store(tmp_path, identity, 20).shutdown()
    sound = run("check", str(tmp_path))
    assert (sound.exit_code, "20 blocks in 2 segments, 0 wrong" in sound.stdout) == (0, True)
    segment = tmp_path / "kvtier-pool" / "00000000.seg"
    with segment.open("r+b") as file:
        file.seek(8192 + 100)
        file.write(b"damage")
    found = run("check", str(tmp_path), "--json")
    report = json.loads(found.stdout)
    assert (found.exit_code, report["ok"]) == (1, False)
    assert [(wrong["segment"], wrong["slot"], wrong["kind"]) for wrong in report["wrong"]] == [(0, 0, "checksum")]
    assert "slot 0" in run("check", str(tmp_path)).stdout


@pytest.mark.parametrize("command", ["info", "check"])
def test_without_a_pool(tmp_path: Path, command: str) -> None:
    result = run(command, str(tmp_path))
    assert result.exit_code == 2
    assert "no pool" in result.stderr


def test_events_say_what_was_dropped(tmp_path: Path, identity: kvtier.Identity) -> None:
    with store(tmp_path, identity, 90) as tier:
        removed = {event.key for event in tier.take_events() if (event.kind, event.reason) == ("removed", "capacity")}
        known = {key for key in KEYS[:90] if tier.lookup(key) is kvtier.Lookup.HIT}
    assert known | removed == set(KEYS[:90])
    assert not known & removed


def test_files_and_pools_refuse_each_others_roots(tmp_path: Path, identity: kvtier.Identity) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "files").mkdir()
    rows = kvtier.HostRows(1, 4096)
    kvtier.open(tmp_path / "pool", identity=identity, rows=rows, **OPTIONS).shutdown()
    kvtier.open(tmp_path / "files", identity=identity, rows=rows).shutdown()
    with pytest.raises(kvtier.ConfigError, match='give layout="packed" or "auto"'):
        kvtier.open(tmp_path / "pool", identity=identity, rows=rows)
    with pytest.raises(kvtier.ConfigError, match='give layout="files"'):
        kvtier.open(tmp_path / "files", identity=identity, rows=rows, **OPTIONS)
    for name in ("pool", "files"):
        with kvtier.open(tmp_path / name, identity=identity, rows=rows, layout="auto") as tier:
            assert (tmp_path / name / "kvtier-pool").is_dir() == (name == "pool")
            assert tier.lookup(KEYS[0]) is (kvtier.Lookup.MISS if name == "pool" else kvtier.Lookup.RETRY)


def test_auto_makes_a_pool_within_bounds(tmp_path: Path, identity: kvtier.Identity) -> None:
    rows = kvtier.HostRows(1, 4096)
    with pytest.raises(kvtier.ConfigError, match="max_bytes"):
        kvtier.open(tmp_path, identity=identity, rows=rows, layout="auto")
    kvtier.open(tmp_path, identity=identity, rows=rows, layout="auto", max_bytes="16MiB").shutdown()
    assert json.loads(run("info", str(tmp_path), "--json").stdout)["max_bytes"] == 16 << 20


def test_a_second_process_finds_blocks_soon(tmp_path: Path, identity: kvtier.Identity) -> None:
    """Two tiers of one process share the pool; through two objects of it (one is read-only), they are as two processes."""
    with store(tmp_path, identity, 5):
        rows = kvtier.HostRows(1, 60 << 10)
        with kvtier.open(tmp_path, identity=identity, rows=rows, layout="packed", read_only=True) as reader:
            until = time.monotonic() + 30
            while reader.lookup(KEYS[4]) is not kvtier.Lookup.HIT:
                assert time.monotonic() < until
                time.sleep(0.01)
            reader.submit_load(1, KEYS[4:5], [0])
            assert reader.wait(1, timeout=60)
            assert reader.get_finished_jobs()[0].success
            assert bytes(memoryview(rows)[:]) == b"\x07" * (60 << 10)


def test_the_doctor_knows_pools(tmp_path: Path, identity: kvtier.Identity) -> None:
    def finding() -> dict[str, str]:
        result = CliRunner().invoke(app, ["doctor", str(tmp_path), "--seconds", "0", "--json"])
        [found] = [f for f in json.loads(result.stdout)["findings"] if f["subject"] == "pool"]
        return dict(found)

    assert "layout=" in finding()["found"]
    store(tmp_path, identity, 20).shutdown()
    assert finding()["state"] == "fine"
    assert finding()["found"].startswith("20 blocks in 2 segments, 2")
    (tmp_path / "kvtier-pool" / "super").write_bytes(bytes(4096))
    assert finding()["state"] == "problem"
