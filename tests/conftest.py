"""What tests of tiers begin with."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtier
from kvtier.testing import Faults, open_faulty

_names = itertools.count()


@pytest.fixture
def identity() -> kvtier.Identity:
    return kvtier.Identity("org/model", 16, dtype="bfloat16")


@pytest.fixture
def rows() -> kvtier.HostRows:
    """64 rows of 4 KiB, each filled with its number."""
    rows = kvtier.HostRows(64, 4096)
    np.asarray(rows)[:] = np.arange(64, dtype=np.uint8)[:, None]
    return rows


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place that no other test has, of each kind."""
    if request.param == "file":
        return f"file://{tmp_path}"
    return f"memory://test-{next(_names)}"


@pytest.fixture
def open_tier(
    identity: kvtier.Identity, rows: kvtier.HostRows, url: str
) -> Iterator[Callable[..., kvtier.TierManager]]:
    """Opens tiers at `url`, with `faults` where they are given, that are shut down after the test."""
    opened = []

    def open_tier(**options: Any) -> kvtier.TierManager:
        arguments = {"url": url, "identity": identity, "rows": rows, **options}
        tier = open_faulty(**arguments) if "faults" in options else kvtier.open(**arguments)
        opened.append(tier)
        return tier

    yield open_tier
    for tier in opened:
        tier.shutdown()


@pytest.fixture
def tier(open_tier: Callable[..., kvtier.TierManager]) -> kvtier.TierManager:
    return open_tier()


@pytest.fixture
def faults() -> Faults:
    """What goes wrong in `faulty`'s storage."""
    return Faults()


@pytest.fixture
def faulty(open_tier: Callable[..., kvtier.TierManager], faults: Faults) -> kvtier.TierManager:
    return open_tier(faults=faults)
