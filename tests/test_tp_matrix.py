"""What one rank wrote, which ranks find? Every rank of TP = 1, 2, 4 and 8 is a process of its own."""

import itertools
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from kvtier import Identity

RANKS = [(tp_size, rank) for tp_size in (1, 2, 4, 8) for rank in range(tp_size)]

STATEMENTS: dict[str, dict[str, Any]] = {
    "replicated": {"parallel_agnostic": True, "replicated_layout": True},
    "agnostic": {"parallel_agnostic": True, "replicated_layout": False},
    "replicated, not opted in": {"parallel_agnostic": False, "replicated_layout": True},
    "sharded": {"parallel_agnostic": False, "replicated_layout": False},
}

# One rank: stores a block under each statement, waits until all ranks have, and then reads what it finds of all.
PROGRAM = """
import hashlib, json, sys
import kvtier
from kvtier.testing import make_key

plan = json.loads(sys.argv[1])
rows = kvtier.HostRows(len(plan["ranks"]), plan["row_bytes"])
memory = memoryview(rows).cast("B")

def row(number):
    return memory[number * plan["row_bytes"] : (number + 1) * plan["row_bytes"]]

def content(statement, rank):
    return hashlib.shake_256(f"{statement} {rank}".encode()).digest(plan["row_bytes"])

def opened(statement):
    identity = kvtier.Identity(**plan["facts"], **plan["statements"][statement])
    return kvtier.open(plan["root"], identity=identity, rows=rows)

def finished(tier, job):
    tier.wait(job, timeout=60)
    [result] = tier.get_finished_jobs()
    return result

def look_up(tier, key):
    while (verdict := tier.lookup(key)) is kvtier.Lookup.RETRY:
        pass
    return verdict

for statement in plan["statements"]:
    with opened(statement) as tier:
        row(0)[:] = content(statement, plan["me"])
        tier.submit_store(1, [make_key(plan["me"])], [0])
        assert finished(tier, 1).success
print("stored", flush=True)
sys.stdin.readline()
found = {}
for statement in plan["statements"]:
    with opened(statement) as tier:
        hits = [rank for rank in plan["ranks"] if look_up(tier, make_key(rank)) is kvtier.Lookup.HIT]
        tier.submit_load(1, [make_key(rank) for rank in hits], hits)
        assert finished(tier, 1).success
        found[statement] = [rank for rank in hits if row(rank) == content(statement, rank)]
        assert found[statement] == hits
print(json.dumps(found))
"""


def found_by_each_rank(root: str, facts: dict[str, Any]) -> list[dict[str, list[int]]]:
    """For each rank and statement, the ranks whose blocks it found and read byte for byte."""
    processes = []
    for number, (tp_size, rank) in enumerate(RANKS):
        plan = {
            "me": number,
            "ranks": list(range(len(RANKS))),
            "row_bytes": 12_345,
            "root": root,
            "facts": {**facts, "tp_size": tp_size, "rank": rank},
            "statements": STATEMENTS,
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "stored\n"
    answers = [process.communicate("go\n")[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(RANKS)
    return [json.loads(answer) for answer in answers]


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_replicated_rows_are_found_at_every_tp_size_and_nothing_else_is(
    kind: str, request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> None:
    root = request.getfixturevalue("s3_url") if kind == "s3" else str(tmp_path)
    facts: dict[str, Any] = {
        "model_name": "deepseek-ai/DeepSeek-V3",
        "tokens_per_hash": 64,
        "dtype": "fp8_ds_mla",
        "kv_cache_groups": [{"tokens_per_block": 64, "layer_names": ["layers.0.attn"]}],
    }
    everybody = list(range(len(RANKS)))
    for number, found in enumerate(found_by_each_rank(root, facts)):
        assert found == {
            "replicated": everybody,
            "agnostic": everybody,
            "replicated, not opted in": [number],
            "sharded": [number],
        }, RANKS[number]
    # One directory for all ranks where they share, one for each rank where they don't.
    places = {
        Identity(**facts, **flags, tp_size=tp, rank=rank, row_bytes=12_345).blocks_dir()
        for (tp, rank), flags in itertools.product(RANKS, STATEMENTS.values())
    }
    if kind == "file":
        assert {path.name for path in tmp_path.iterdir() if "_r" in path.name} == places
    assert len(places) == 2 + 2 * len(RANKS)
