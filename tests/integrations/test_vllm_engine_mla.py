"""A real engine with MLA, whose rows are one copy: what TP=2 wrote, TP=1, TP=2 and TP=4 hit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import Serve

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(1200)]

CACHED = 990  # of 1000 tokens; blocks of 16 cover 992


@dataclass
class Runs:
    """What the engines answered, one after another, on one root."""

    tp2: dict[str, Any]
    tp1: dict[str, Any]
    tp2_again: dict[str, Any]
    tp4: dict[str, Any]
    root: Path


@pytest.fixture(scope="module")
def runs(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("root")
    tier = {"type": "kvtier", "url": f"file://{root}", "model_id": "tiny-mla"}
    return Runs(
        tp2=serve("mla", 2, tier, prompts=["by 2"]),
        tp1=serve("mla", 1, {**tier, "replicated": True}, prompts=["by 2", "by 1"]),
        tp2_again=serve("mla", 2, tier, prompts=["by 2", "by 1"]),
        tp4=serve("mla", 4, tier, prompts=["by 2", "by 1", "by 4"]),
        root=root,
    )


def test_the_first_finds_nothing(runs: Runs) -> None:
    assert runs.tp2["answers"]["by 2"]["cached"] == 0
    assert runs.tp1["answers"]["by 1"]["cached"] == 0


def test_what_tp2_wrote_tp2_finds_after_a_restart_and_answers_the_same(runs: Runs) -> None:
    again = runs.tp2_again["answers"]["by 2"]
    assert again["cached"] >= CACHED
    assert again["tokens"] == runs.tp2["answers"]["by 2"]["tokens"]


def test_what_tp2_wrote_tp4_hits(runs: Runs) -> None:
    assert runs.tp4["answers"]["by 2"]["cached"] >= CACHED


def test_one_worker_joins_them_both_ways(runs: Runs) -> None:
    assert runs.tp1["answers"]["by 2"]["cached"] >= CACHED
    assert runs.tp2_again["answers"]["by 1"]["cached"] >= CACHED
    assert runs.tp4["answers"]["by 1"]["cached"] >= CACHED


def test_nothing_was_written_twice_and_all_files_are_alike(runs: Runs) -> None:
    written = [
        answers["counters"].get("stored_blocks:1:kvtier", 0)
        for answers in (runs.tp2, runs.tp1, runs.tp2_again, runs.tp4)
    ]
    assert written == [62, 62, 0, 62]
    files = list(runs.root.rglob("*.bin"))
    assert len(files) == 3 * 62
    assert len({file.stat().st_size for file in files}) == 1
    assert len({file.relative_to(runs.root).parts[0] for file in files}) == 1
