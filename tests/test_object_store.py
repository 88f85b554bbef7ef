"""A tier in a bucket of a real S3 server: processes that share it, die in it, and lose it."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.store import S3Store

import kvtier
from kvtier.testing import make_key
from s3_server import KEY, SECRET, S3Server

OpenTier = Callable[..., kvtier.TierManager]


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server that the test may kill."""
    with S3Server(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def finished(tier: kvtier.TierManager, job_id: int, timeout: float = 60) -> kvtier.JobResult:
    assert tier.wait(job_id, timeout=timeout)
    [result] = tier.get_finished_jobs()
    return result


WRITER = """
import sys, kvtier, numpy as np
from kvtier.testing import make_key

rows = np.repeat(np.arange(200, dtype=np.uint8)[:, None], 65536, axis=1)
tier = kvtier.open(sys.argv[1], identity=kvtier.Identity("org/model", 16, dtype="bfloat16"), rows=rows)
print("open", flush=True)
for i in range(200):
    tier.submit_store(i, [make_key(i)], [i])
tier.drain_jobs()
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.02, 0.06, 0.15, 0.3])
def test_whatever_a_killed_writer_left_is_whole(s3_url: str, identity: kvtier.Identity, moment: float) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, s3_url], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    time.sleep(moment)
    writer.kill()
    writer.communicate()
    rows = kvtier.HostRows(200, 65536)
    with kvtier.open(s3_url, identity=identity, rows=rows) as tier:
        keys = [make_key(i) for i in range(200)]
        visible = [i for i, hit in enumerate(look_up(tier, keys)) if hit]
        tier.submit_load(1, [keys[i] for i in visible], visible)
        assert finished(tier, 1).success
        contents = np.asarray(rows)
        assert all((contents[i] == i).all() for i in visible)
        # What it did not get to is stored as if nothing had happened.
        contents[:] = np.arange(200, dtype=np.uint8)[:, None]
        tier.submit_store(2, keys, range(200))
        assert finished(tier, 2).success
        assert all(look_up(tier, keys))


def look_up(tier: kvtier.TierManager, keys: list[bytes]) -> list[bool]:
    answers = tier.lookup_many(keys)
    while kvtier.Lookup.RETRY in answers:
        time.sleep(0.001)
        answers = tier.lookup_many(keys)
    return [answer is kvtier.Lookup.HIT for answer in answers]


@pytest.mark.slow
def test_a_server_that_dies_and_comes_back(
    own_server: S3Server, identity: kvtier.Identity, rows: kvtier.HostRows
) -> None:
    tier = kvtier.open("s3://bucket/prefix", identity=identity, rows=rows, load_timeout=5, store_timeout=5, retries=1)
    with tier:
        results: dict[int, bool] = {}
        rows_of: dict[int, range] = {}
        free = [range(first, first + 4) for first in range(0, 64, 4)]
        jobs = 0

        def collect() -> None:
            for result in tier.get_finished_jobs():
                assert result.job_id not in results
                results[result.job_id] = result.success
                free.append(rows_of.pop(result.job_id))

        down_at, up_at = time.monotonic() + 0.5, 0.0
        while jobs < 3000 and (not up_at or time.monotonic() < up_at + 1):
            while free:
                rows_of[jobs] = free.pop(0)
                submit = tier.submit_store if jobs % 2 else tier.submit_load
                submit(jobs, [make_key(jobs // 2 * 4 + i) for i in range(4)], rows_of[jobs])
                jobs += 1
            tier.wait(timeout=10)
            collect()
            if not up_at and time.monotonic() > down_at:
                own_server.kill()
                time.sleep(0.2)
                own_server.start()
                up_at = time.monotonic()
        assert tier.drain_jobs(timeout=30)
        collect()
        assert sorted(results) == list(range(jobs))
        # The same client goes on.
        tier.submit_store(jobs, [make_key(10**6)], [1])
        assert finished(tier, jobs).success
        tier.submit_load(jobs + 1, [make_key(10**6)], [2])
        assert finished(tier, jobs + 1).success
        assert (np.asarray(rows)[2] == 1).all()


def test_a_forked_child_opens_a_tier_of_its_own(s3_url: str) -> None:
    program = f"""
import os, sys, kvtier
from kvtier.testing import make_key

identity = kvtier.Identity("org/model", 16, dtype="bfloat16")

def use(rows):
    with kvtier.open({s3_url!r}, identity=identity, rows=rows) as tier:
        tier.submit_store(1, [make_key(os.getpid())], [0])
        assert tier.wait(1, timeout=30) and tier.get_finished_jobs()[0].success

inherited = kvtier.open({s3_url!r}, identity=identity, rows=kvtier.HostRows(4, 4096))
use(kvtier.HostRows(4, 4096))
child = os.fork()
if child == 0:
    try:
        inherited.lookup(make_key(1))
    except kvtier.ForkedProcessError:
        use(kvtier.HostRows(4, 4096))
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
use(kvtier.HostRows(4, 4096))
inherited.shutdown()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("prefix", ["", "/", "/a b/c", "/a b/c/"])
def test_a_directory_and_a_bucket_hold_the_same(
    tmp_path: Path, s3_server: S3Server, s3_url: str, rows: kvtier.HostRows, prefix: str
) -> None:
    facts: dict[str, Any] = {"dtype": "bfloat16", "rank": 3, "namespace": s3_url.rpartition("/")[2]}
    identity = kvtier.Identity("org/mödel", 16, **facts)
    keys = [make_key(i, group=i % 3) for i in range(10)]
    bucket = S3Store(
        s3_server.bucket,
        config={"endpoint": s3_server.endpoint, "access_key_id": KEY, "secret_access_key": SECRET, "region": "x"},
        client_options={"allow_http": True},
    )
    url = f"s3://{s3_server.bucket}{prefix}"
    with kvtier.open(tmp_path, identity=identity, rows=rows) as tier:
        tier.submit_store(1, keys, range(10))
        assert finished(tier, 1).success
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.suffix in (".bin", ".json")}
    # What any client copies there is a tier.
    before = "a b/c/" if "a" in prefix else ""
    for name in names:
        obstore.put(bucket, before + name, (tmp_path / name).read_bytes())
    with kvtier.open(url, identity=identity, rows=rows) as tier:
        assert all(look_up(tier, keys))
        np.asarray(rows)[:] = 0
        tier.submit_load(1, keys, range(10))
        assert finished(tier, 1).success
        assert all((np.asarray(rows)[i] == i).all() for i in range(10))
        tier.reset()
        tier.submit_store(2, keys, range(10))
        assert finished(tier, 2).success
    # What kvtier stores there has the names that the files have, and so it can go the other way.
    namespace = before + next(name for name in names if name.endswith(".json")).rpartition("/")[0]
    listed = [meta["path"] for page in obstore.list(bucket) for meta in page]
    assert {name for name in listed if name.startswith(namespace)} == {before + name for name in names}
    for name in names:
        (tmp_path / name).write_bytes(bytes(obstore.get(bucket, before + name).bytes()))
    with kvtier.open(tmp_path, identity=identity, rows=rows) as tier:
        tier.submit_load(1, keys, range(10))
        assert finished(tier, 1).success


def test_no_secret_is_shown(s3_url: str, identity: kvtier.Identity, rows: kvtier.HostRows) -> None:
    config = kvtier.TierConfig(access_key="wrong", secret_key="hush-hush", session_token="hush-token")  # noqa: S106
    assert "hush" not in repr(config)
    with pytest.raises(kvtier.KvTierError) as refused:
        kvtier.open(s3_url, identity=identity, rows=rows, config=config)
    assert refused.value.kind == "permission"
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "options", "problems"),
    [
        ("s3://", {}, ["the bucket is missing"]),
        ("s3://bucket", {"access_key": "id"}, ["access_key without secret_key"]),
        ("s3://bucket", {"quarantine": True, "file_mode": 0o600}, ["2 options", "quarantine", "file_mode"]),
        ("memory://", {"region": "x", "retries": 9}, ["region is an option for object stores", "retries"]),
        ("gs://bucket", {"access_key": "id", "secret_key": "x"}, ["2 options", "access_key", "secret_key"]),
        ("az://container", {"access_key": "account", "region": "x"}, ["region", "access_key without"]),
    ],
)
def test_options_that_do_not_fit(
    identity: kvtier.Identity, rows: kvtier.HostRows, url: str, options: dict[str, Any], problems: list[str]
) -> None:
    with pytest.raises(kvtier.ConfigError) as refused:
        kvtier.open(url, identity=identity, rows=rows, **options)
    assert all(problem in str(refused.value) for problem in problems), refused.value


@pytest.mark.usefixtures("s3_url")
def test_a_missing_bucket_is_told_at_once(identity: kvtier.Identity, rows: kvtier.HostRows) -> None:
    with pytest.raises(kvtier.StoreUnavailableError, match="NoSuchBucket"):
        kvtier.open("s3://nowhere/prefix", identity=identity, rows=rows)
