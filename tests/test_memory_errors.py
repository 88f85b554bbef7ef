"""Ends of tiers under valgrind: no access to memory that was freed or never was.

Only addresses are checked; CPython's own code uses values that valgrind takes for uninitialised.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from typing import Any

import pytest

PRELUDE = """
import gc, os, sys
import kvtier
from kvtier.testing import make_key

IDENTITY = kvtier.Identity("org/model", 16, dtype="bfloat16")
KEYS = [make_key(i) for i in range(64)]

def open_tier(rows):
    tier = kvtier.open(URL, identity=IDENTITY, rows=rows, **OPTIONS)
    for job_id in range(0, 1000, 2):
        tier.submit_store(job_id, KEYS[:8], range(8))
        tier.submit_load(job_id + 1, [KEYS[job_id % 8]], [8 + job_id // 2])
    return tier

memory = bytearray(512 * 4096)
rows = memoryview(memory).cast("B", (512, 4096))
"""

PROGRAMS = {
    "exit": "tier = open_tier(rows)",
    "exit with HostRows": "tier = open_tier(kvtier.HostRows(512, 4096))",
    "all dropped": """
        tier = open_tier(rows)
        del tier, rows, memory
        gc.collect()
        """,
    "results taken": """
        tier = open_tier(rows)
        assert tier.drain_jobs(300)
        assert len(tier.get_finished_jobs()) == 1000
        """,
    "fork": """
        tier = open_tier(rows)
        child = os.fork()
        if child == 0:
            del tier, rows, memory
            gc.collect()
            with kvtier.open(URL, identity=IDENTITY, rows=kvtier.HostRows(4, 4096), **OPTIONS) as own:
                own.store(KEYS[60:], [bytes(4096)] * 4).raise_for_failures()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
    "blocks beside the rows": """
        tier = open_tier(rows)
        for _ in range(20):
            tier.store(KEYS[:4], [bytes(4096) for _ in range(4)])
            tier.load(KEYS[:4], bytearray(4 * 4096)).raise_for_failures()
        """,
}


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_with_1000_jobs_in_flight(program: str, url: str, place_options: dict[str, Any]) -> None:
    if url.startswith("file:"):
        # While a thread waits for a ring, valgrind lets no other one run. `make sanitize` goes over rings.
        place_options = {**place_options, "io_engine": "threads"}
    place = f"URL, OPTIONS = {url!r}, {place_options!r}"
    ended = subprocess.run(
        [
            *("valgrind", "--quiet", "--undef-value-errors=no", "--error-exitcode=99"),
            *(sys.executable, "-c", f"{place}\n{PRELUDE}\n{textwrap.dedent(program)}"),
        ],
        env={**os.environ, "PYTHONMALLOC": "malloc"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
