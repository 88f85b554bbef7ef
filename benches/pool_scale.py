"""A packed pool with many blocks, from Python: how long until the first right answer, and what each answer costs.

    make bench-scale                                  # release build, a million blocks
    python benches/pool_scale.py --pool ROOT          # over a pool that packed_scale.rs has made

The pool's blocks are holes with entries in their segments' tables, which is all that lookups need.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import kvtier

BLOCKS = int(os.environ.get("KVTIER_TEST_BLOCKS", "1000000"))
ROUNDS = 5
ASKED = 100_000
"""Keys of a round, all over the pool."""


def make_key(n: int) -> bytes:
    """As `key` in rust/kvtier/tests/places/mod.rs."""
    words = ((n + i) * 0x9E37_79B9_7F4A_7C15 % 2**64 for i in range(1, 5))
    return b"".join(word.to_bytes(8, "big") for word in words) + (3).to_bytes(4, "big")


def insist(is_right: bool, what: str) -> None:
    """What is measured must be right."""
    if not is_right:
        raise SystemExit(f"wrong: {what}")


def open_tier(root: Path) -> kvtier.TierManager:
    """A tier over the pool."""
    identity = kvtier.Identity("model-a", 16, dtype="bfloat16")
    rows = kvtier.HostRows(4, 8192)
    return kvtier.open(root, identity=identity, rows=rows, layout="packed", max_bytes=2000 * (64 << 20) + (64 << 10))


def seconds_to_open(root: Path) -> float:
    """From nothing to the first right answer."""
    key = make_key(BLOCKS - 1)
    began = time.perf_counter()
    tier = open_tier(root)
    found = tier.lookup(key)
    took = time.perf_counter() - began
    insist(found is kvtier.Lookup.HIT, "the last block is not found at once")
    insist(tier.stats().resident_blocks >= BLOCKS, "there are fewer blocks")
    tier.shutdown()
    return took


def kill_somebody_who_stores(root: Path) -> None:
    """Leaves a segment whose owner is dead."""
    program = (
        "import pool_scale, pathlib, sys, time\n"
        "tier = pool_scale.open_tier(pathlib.Path(sys.argv[1]))\n"
        "tier.store([bytes([9]) * 36], [bytes(8192)]).raise_for_failures()\n"
        "print('stored', flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parent, text=True) as child:
        insist(child.stdout is not None and child.stdout.readline() == "stored\n", "nothing was stored")
        child.send_signal(signal.SIGKILL)


def microseconds(tier: kvtier.TierManager, first: int, answer: kvtier.Lookup) -> dict[str, float]:
    """What asking for blocks costs, each."""
    offset = BLOCKS if answer is kvtier.Lookup.MISS else 0
    keys = [make_key((first + n) * 7919 % BLOCKS + offset) for n in range(ASKED)]
    lookup = tier.lookup
    began = time.perf_counter()
    for key in keys:
        lookup(key)
    one = time.perf_counter() - began
    began = time.perf_counter()
    for key in keys:
        lookup(key, "request")
    requested = time.perf_counter() - began
    tier.release("request")
    began = time.perf_counter()
    answers = tier.lookup_many(keys)
    many = time.perf_counter() - began
    insist(all(found is answer for found in answers), "a block is found or missed")
    return {"lookup": one * 1e6 / ASKED, "of a request": requested * 1e6 / ASKED, "lookup_many": many * 1e6 / ASKED}


def main() -> None:
    """Measures, and prints what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, required=True, help="the pool's root")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    options.pool = options.pool.resolve()
    figures: dict[str, object] = {"blocks": BLOCKS}
    opened = [seconds_to_open(options.pool) for _ in range(ROUNDS)]
    kill_somebody_who_stores(options.pool)
    opened_after_kill = seconds_to_open(options.pool)
    figures |= {"open_s": opened, "open_after_kill_s": opened_after_kill}
    print(f"{BLOCKS} blocks: open to the first right answer {statistics.median(opened):.3f} s", end="")
    print(f" ({min(opened):.3f} to {max(opened):.3f}), after a kill {opened_after_kill:.3f} s")
    with open_tier(options.pool) as tier:
        for answer in (kvtier.Lookup.HIT, kvtier.Lookup.MISS):
            rounds = [microseconds(tier, n * ASKED, answer) for n in range(ROUNDS)]
            costs = {name: [costs[name] for costs in rounds] for name in rounds[0]}
            figures[answer.name] = costs
            each = ", ".join(f"{name} {statistics.median(us):.3f}" for name, us in costs.items())
            print(f"{answer.name}, microseconds a key: {each}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
