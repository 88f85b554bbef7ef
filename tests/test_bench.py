"""The side-by-side benchmarks run to their end; their figures are not judged here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from s3_server import S3Server

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "benches" / "vs_peer.py"
BENCH_S3 = ROOT / "benches" / "vs_obstore.py"
BENCH_VLLM = ROOT / "benches" / "vs_vllm.py"


@pytest.mark.slow
def test_the_benchmark_measures_each_way_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    root, figures = tmp_path / "root", tmp_path / "figures.json"
    root.mkdir()
    options = ["--quick", "--rounds", "1", "--row-bytes", "64KiB", "--memory-bytes", "32MiB"]
    command = [sys.executable, str(BENCH), "--root", str(root), "--json", str(figures), *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "thread pool, direct" in ran.stdout
    assert list(root.iterdir()) == []

    found = json.loads(figures.read_text())
    [passes] = found["rounds"][str(64 << 10)]
    assert {"kvtier", "kvtier, raw", "thread pool, buffered", "safetensors", "torch.save"} <= passes.keys()
    assert all(moved["seconds"] > 0 for one in passes.values() for moved in (one["store"], one["load"]))
    assert found["us_per_key"]["lookup"] > 0
    assert {target["what"] for target in found["targets"]} >= {"submit, jobs of 32", "memory beyond the rows"}


@pytest.mark.slow
def test_the_benchmark_of_buckets_measures_both_clients(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ["--rounds", "1", "--row-bytes", "64KiB", "--round-bytes", "1MiB", "--json", str(figures)]
    ran = subprocess.run(
        [sys.executable, str(BENCH_S3), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(figures.read_text())
    [rows] = found["rows"]
    assert all(rows[way]["rate_ratio"] > 0 and rows[way]["cpu_ratio"] > 0 for way in ("store", "load"))
    assert found["us_per_key"]["lookup"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_benchmark_beside_vllms_own_tiers_measures_files_and_objects(tmp_path: Path, s3_server: S3Server) -> None:
    root, memory, figures, plot = (tmp_path / name for name in ("root", "memory", "figures.json", "plot.png"))
    root.mkdir()
    memory.mkdir()
    options = ["--quick", "--rounds", "1", "--row-bytes", "64KiB", "--json", str(figures), "--plot", str(plot)]
    places = ["--root", str(root), "--memory-root", str(memory), "--objects", f"s3://{s3_server.bucket}/bench"]
    ran = subprocess.run(
        [sys.executable, str(BENCH_VLLM), *places, *options],
        env={**os.environ, **s3_server.environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert list(root.iterdir()) == list(memory.iterdir()) == []
    found = json.loads(figures.read_text())
    for kind in ("files", "objects"):
        assert [one["blocks_per_job"] for one in found[kind]["moved"]] == [1, 8, 32]
        assert all(ratio > 0 for one in found[kind]["moved"] for ratio in one["ratios"].values())
        [round_of_lookups] = found[kind]["lookups"]
        assert round_of_lookups["kvtier"]["there"]["at_first_ask"] == 1
    assert plot.read_bytes().startswith(b"\x89PNG")
