"""What tests of tiers begin with."""

import itertools
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtier
from kvtier.testing import Faults, open_faulty
from s3_server import S3Server

_names = itertools.count()

# Whoever runs the tests in the background may have them ignore Ctrl-C, which tests send, and children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What programs leave in the directory for temporary files, such as sockets of an engine, goes with the run of tests.

    Its path is short, since that of a socket has 107 bytes at most. `tmp_path` stays where it is: of a test that fails, it
    is looked into.
    """
    tmp_path_factory.getbasetemp()
    with (
        tempfile.TemporaryDirectory(prefix="kvt-", ignore_cleanup_errors=True) as directory,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", directory)
        patch.setattr(tempfile, "tempdir", directory)
        yield


@pytest.fixture
def identity() -> kvtier.Identity:
    return kvtier.Identity("org/model", 16, dtype="bfloat16")


@pytest.fixture
def rows() -> kvtier.HostRows:
    """64 rows of 4 KiB, each filled with its number."""
    rows = kvtier.HostRows(64, 4096)
    np.asarray(rows)[:] = np.arange(64, dtype=np.uint8)[:, None]
    return rows


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, with an empty bucket."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix in its bucket that no other test has; the environment says how to reach it."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.bucket}/test-{next(_names)}"


@pytest.fixture(params=["memory", "file", "packed", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place that no other test has, of each kind; `place_options` belong to it."""
    if request.param in ("file", "packed"):
        return f"file://{tmp_path}"
    if request.param == "s3":
        place: str = request.getfixturevalue("s3_url")
        return place
    return f"memory://test-{next(_names)}"


@pytest.fixture
def place_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What tiers at `url` are opened with; in pools, `KVTIER_TEST_IO_ENGINE` names another IO engine than the usual one."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("url") == "packed":
        engine = os.environ.get("KVTIER_TEST_IO_ENGINE", "auto")
        return {"layout": "packed", "max_bytes": "2GiB", "segment_bytes": "8MiB", "io_engine": engine}
    return {}


@pytest.fixture
def open_tier(
    identity: kvtier.Identity, rows: kvtier.HostRows, url: str, place_options: dict[str, Any]
) -> Iterator[Callable[..., kvtier.TierManager]]:
    """Opens tiers at `url`, with `faults` where they are given, that are shut down after the test."""
    opened = []

    def open_tier(**options: Any) -> kvtier.TierManager:
        place = place_options if "url" not in options else {}
        arguments = {"url": url, "identity": identity, "rows": rows, **place, **options}
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
