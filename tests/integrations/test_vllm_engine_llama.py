"""A real engine with sharded heads: it restarts, it is given damaged files and a full disk, and it changes its TP size.

vLLM's own tier answers the last with hits and silently wrong tokens: see docs/vllm.md.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import Serve

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(1200)]

BLOCKS = 7  # whole blocks of 128 tokens in a prompt of 1000
PROMPTS = ["whole", "cut", "flipped", "gone"]


@dataclass
class Runs:
    """What the engines answered, one after another, on one root."""

    without_tier: dict[str, Any]
    first: dict[str, Any]
    restarted: dict[str, Any]
    with_other_tp: dict[str, Any]
    sizes_after_writing: set[int]
    sizes_after_restart: set[int]
    has_full_disk: bool


@pytest.fixture(scope="module")
def runs(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root, small = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("small")
    tier = {"type": "kvtier", "url": f"file://{root}", "model_id": "tiny-llama"}
    first = serve("llama", 1, tier, prompts=PROMPTS)
    files = sorted(root.rglob("*.bin"), key=lambda file: file.stat().st_mtime_ns)
    assert len(files) == len(PROMPTS) * BLOCKS
    written = {file.stat().st_size for file in files}

    _, of_cut, of_flipped, of_gone = (files[begin + 2] for begin in range(0, len(files), BLOCKS))
    os.truncate(of_cut, of_cut.stat().st_size - 1)
    content = bytearray(of_flipped.read_bytes())
    content[1000] ^= 1
    of_flipped.write_bytes(content)
    of_gone.unlink()
    on_a_full_disk = {"type": "kvtier", "url": f"file://{small}", "model_id": "tiny-llama"}
    within = with_a_disk_of_1_mib(small)
    tiers = [tier, on_a_full_disk] if within else [tier]
    restarted = serve("llama", 1, *tiers, prompts=[*PROMPTS, "new"], within=within)
    return Runs(
        serve("llama", 1, prompts=["whole"]),
        first,
        restarted,
        with_other_tp=serve("llama", 2, tier, prompts=["whole"]),
        sizes_after_writing=written,
        sizes_after_restart={file.stat().st_size for file in root.rglob("*.bin") if "_r0/" in str(file)},
        has_full_disk=bool(within),
    )


def with_a_disk_of_1_mib(directory: Path) -> list[str]:
    """A command that runs another one in which `directory` is a file system that fills up at once; empty where that
    can't be done."""
    mount = f'mount -t tmpfs -o size=1m none "{directory}" && exec "$@"'
    within = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") and subprocess.run([*within, "true"], capture_output=True, check=False).returncode == 0:
        return within
    return []


def test_the_first_finds_nothing_and_stores_all(runs: Runs) -> None:
    assert {answer["cached"] for answer in runs.first["answers"].values()} == {0}
    assert runs.first["counters"]["stored_blocks:1:kvtier"] == len(PROMPTS) * BLOCKS
    assert len(runs.sizes_after_writing) == 1


def test_a_restart_finds_what_it_had_and_answers_the_same(runs: Runs) -> None:
    before, after = runs.first["answers"]["whole"], runs.restarted["answers"]["whole"]
    assert after["cached"] == BLOCKS * 128
    assert after["tokens"] == before["tokens"] == runs.without_tier["answers"]["whole"]["tokens"]


@pytest.mark.parametrize("prompt", PROMPTS[1:])
def test_a_damaged_block_is_computed_anew(runs: Runs, prompt: str) -> None:
    before, after = runs.first["answers"][prompt], runs.restarted["answers"][prompt]
    assert after["tokens"] == before["tokens"]
    assert after["cached"] < BLOCKS * 128
    assert after["cached"] % 128 == 0
    assert after["seconds"] < 20


def test_each_is_counted_and_healed(runs: Runs) -> None:
    counters = runs.restarted["counters"]
    assert counters["failed_blocks:1:kvtier:load:checksum"] == 1
    assert counters["lookup_misses:1:kvtier"] >= 2
    assert runs.sizes_after_restart == runs.sizes_after_writing


def test_an_engine_whose_disk_is_full_goes_on(runs: Runs) -> None:
    if not runs.has_full_disk:
        pytest.skip("this system lets nobody mount a small file system")
    assert runs.restarted["counters"]["failed_blocks:2:kvtier:store:no_space"] > 0
    assert runs.restarted["counters"]["stored_blocks:1:kvtier"] >= BLOCKS
    assert len(runs.restarted["answers"]["new"]["tokens"]) == 8


def test_another_tp_size_finds_nothing_and_answers_right(runs: Runs) -> None:
    answer = runs.with_other_tp["answers"]["whole"]
    assert answer["cached"] == 0
    assert "lookup_hits:1:kvtier" not in runs.with_other_tp["counters"]
    assert answer["tokens"] == runs.first["answers"]["whole"]["tokens"]
