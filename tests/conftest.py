"""What tests of tiers begin with."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import kvtier

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


@pytest.fixture
def url() -> str:
    """A place that no other test has."""
    return f"memory://test-{next(_names)}"


@pytest.fixture
def open_tier(
    identity: kvtier.Identity, rows: kvtier.HostRows, url: str
) -> Iterator[Callable[..., kvtier.TierManager]]:
    """Opens tiers that are shut down after the test."""
    opened = []

    def open_tier(**options: object) -> kvtier.TierManager:
        tier = kvtier.open(**{"url": url, "identity": identity, "rows": rows, **options})  # type: ignore[arg-type]
        opened.append(tier)
        return tier

    yield open_tier
    for tier in opened:
        tier.shutdown()


@pytest.fixture
def tier(open_tier: Callable[..., kvtier.TierManager]) -> kvtier.TierManager:
    return open_tier()
