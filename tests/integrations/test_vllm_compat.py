"""`compat="vllm"`: what vLLM's own tier stored is hit by kvtier, and the other way, on one root."""

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROW_BYTES, StartScheduler

ENGINES: list[dict[str, Any]] = [
    {},
    {"tp_size": 2},
    {"tp_size": 2, "agnostic": True},
    {"tp_size": 2, "replicated": True},
    {"blocks_per_chunk": 4},
    {"canonical": True, "agnostic": True},
]


@pytest.fixture
def native(tmp_path: Path) -> dict[str, Any]:
    """vLLM's own tier on files."""
    return {"type": "fs", "root_dir": str(tmp_path)}


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_each_hits_the_others_blocks(
    start: StartScheduler, entry: dict[str, Any], native: dict[str, Any], engine: dict[str, Any]
) -> None:
    compat = {**entry, "compat": "vllm"}
    start(native, **engine).store(range(8))
    ours = start(compat, **engine)
    assert ours.hits(range(10)) == 8
    ours.store(range(8, 16))
    assert start(native, **engine).hits(range(16)) == 16


def test_both_below_one_engine(start: StartScheduler, entry: dict[str, Any], native: dict[str, Any]) -> None:
    compat = {**entry, "compat": "vllm"}
    both = start(native, compat)
    both.store(range(8))
    both.forget_primary()
    assert both.hits(range(8)) == 8
    assert start(compat).hits(range(8)) == start(native).hits(range(8)) == 8


def test_files_are_the_same_whoever_wrote_them(
    start: StartScheduler, entry: dict[str, Any], native: dict[str, Any], tmp_path: Path
) -> None:
    written = {}
    for tier, root in ((native, tmp_path / "a"), ({**entry, "compat": "vllm"}, tmp_path / "b")):
        root.mkdir()
        place = {"root_dir": str(root)} if tier is native else {"url": f"file://{root}"}
        start({**tier, **place}, replicated=True, tp_size=2).store(range(8))
        files = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("lock"))
        written[root.name] = {str(path.relative_to(root)): path.read_bytes() for path in files}
    assert written["a"] == written["b"]
    assert sum(len(content) == ROW_BYTES for content in written["a"].values()) == 8


def test_a_config_that_vllm_was_killed_while_writing_stops_no_engine(
    start: StartScheduler, entry: dict[str, Any], native: dict[str, Any], tmp_path: Path
) -> None:
    start(native).store(range(4))
    (config,) = tmp_path.glob("*/config.json")
    config.write_text(json.dumps(json.loads(config.read_text()), indent=2)[:40])
    assert start({**entry, "compat": "vllm"}).hits(range(4)) == 4


def test_blocks_of_kvtiers_own_kind_are_apart(
    start: StartScheduler, entry: dict[str, Any], native: dict[str, Any]
) -> None:
    start(native).store(range(4))
    assert start(entry).hits(range(4)) == 0
