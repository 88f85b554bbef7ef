"""`kvtier doctor`, `demo` and `bench` on a bucket of a real S3 server."""

import json
from typing import Any

import pytest
from obstore.store import S3Store
from typer.testing import CliRunner, Result

import kvtier
from kvtier.cli import app
from kvtier.testing import make_key
from s3_server import KEY, SECRET, S3Server

ROW_BYTES = 8192
QUICK = ["--row-bytes", "8KiB", "--seconds", "0.5"]


def command(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, list(arguments))


def report(url: str, *options: str, exit_code: int = 0) -> dict[str, Any]:
    ran = command("doctor", url, "--json", *(options or ["--seconds", "0"]))
    assert (ran.exit_code, ran.stderr) == (exit_code, "")
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["ok"] == (exit_code == 0)
    return found


def findings(found: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {finding["subject"]: finding for finding in found["findings"]}


def names(server: S3Server, url: str) -> list[str]:
    """All objects below a prefix."""
    bucket = S3Store(
        server.bucket, endpoint=server.endpoint, access_key_id=KEY, secret_access_key=SECRET, region="us-east-1",
        client_options={"allow_http": True},
    )  # fmt: skip
    prefix = url.removeprefix(f"s3://{server.bucket}/")
    return sorted(meta["path"] for page in bucket.list(prefix) for meta in page)


def store(url: str, count: int) -> kvtier.Identity:
    identity = kvtier.Identity("org/m", 16, dtype="bfloat16")
    rows = kvtier.HostRows(count, ROW_BYTES)
    with kvtier.open(url, identity=identity, rows=rows) as tier:
        tier.submit_store(1, [make_key(n) for n in range(count)], range(count))
        assert tier.wait(1, timeout=60)
        assert all(result.success for result in tier.get_finished_jobs())
    return identity.with_row_bytes(ROW_BYTES)


def test_a_bucket_is_tried_out_and_left_as_it_was(s3_server: S3Server, s3_url: str) -> None:
    identity = store(s3_url, 5)
    before = names(s3_server, s3_url)
    found = report(s3_url, *QUICK)
    assert names(s3_server, s3_url) == before
    assert len(before) == 6

    assert found["bucket"]["url"] == s3_url
    assert found["bucket"]["endpoint"] == s3_server.endpoint
    assert (found["bucket"]["conditional_put"], found["bucket"]["checksums"]) == (True, "compared")
    assert all(found["bucket"][f"{request}_seconds"] > 0 for request in ("list", "put", "head", "get"))
    assert list(findings(found)) == [
        "service", "permissions", "latency", "overwriting", "healing", "checksums", "rows"
    ]  # fmt: skip
    [throughput] = found["throughput"]
    assert (throughput["row_bytes"], throughput["failure"]) == (ROW_BYTES, None)
    assert throughput["stored"] > 0
    assert throughput["loaded"] > 0
    [namespace] = found["namespaces"]
    assert namespace["base_dir"] == identity.base_dir()
    [rank] = namespace["ranks"]
    assert (rank["blocks_dir"], rank["blocks"], rank["exact"]) == (identity.blocks_dir(), 5, True)
    assert rank["bytes"] == 5 * (ROW_BYTES + 4096)


def test_the_findings_are_shown_as_a_table(s3_url: str) -> None:
    ran = command("doctor", s3_url, "--seconds", "0")
    assert ran.exit_code == 0
    for part in (s3_url, "path addressing", "a PUT can forbid it", "the server compares them", "✓ tiers can be opened"):
        assert part in ran.stdout


@pytest.mark.parametrize(
    ("bucket", "variables", "told"),
    [
        ("nowhere", {}, "bucket does not exist"),
        ("bucket", {"AWS_SECRET_ACCESS_KEY": "wrong-secret"}, "SignatureDoesNotMatch"),
        ("bucket", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "onnect"),
    ],
)
@pytest.mark.usefixtures("s3_url")
def test_what_is_wrong_is_told_once_and_without_secrets(
    monkeypatch: pytest.MonkeyPatch, bucket: str, variables: dict[str, str], told: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = report(f"s3://{bucket}/p", exit_code=1)
    assert told in findings(found)["service"]["found"]
    assert findings(found)["permissions"]["state"] == "problem"
    assert "secret" not in json.dumps(found).lower().replace("secret access key", "")


def test_options_reach_the_store(s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    reachable = ["-o", f"endpoint={s3_server.endpoint}", "-o", "allow_http=true"]
    assert report(s3_url, "--seconds", "0", *reachable)["bucket"]["endpoint"] == s3_server.endpoint


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("endpoint", "has no value"),
        ("secret_key=hush", "must not be on a command line"),
        ("session_token=hush", "AWS_SESSION_TOKEN"),
        ("retrys=3", 'unknown option "retrys"'),
        ("retries=many", 'retries="many"'),
        ("durability=full", "durability is an option for directories of files"),
    ],
)
def test_options_that_cannot_be_used_end_the_command(s3_url: str, option: str, told: str) -> None:
    for name in ("doctor", "demo"):
        ran = command(name, *([s3_url] if name == "doctor" else ["--root", s3_url, "--blocks", "1"]), "-o", option)
        assert ran.exit_code in (1, 2)
        assert told in ran.stderr
        assert "hush" not in ran.output + ran.stderr


def test_the_demo_shares_blocks_in_a_bucket(s3_server: S3Server, s3_url: str) -> None:
    ran = command("demo", "--root", s3_url, "--blocks", "6", "--row-bytes", "64KiB", "--rows", "HostRows", "--json")
    assert (ran.exit_code, ran.stderr) == (0, "")
    found = json.loads(ran.stdout)
    assert (found["ok"], found["medium"], found["root"]) == (True, "objects, path addressing", s3_url)
    shared = found["shared"]
    assert (shared["asked"], shared["hits"], shared["bytes_equal"]) == (24, 24, 24)
    # Of both parts: the shared blocks once, the others for each writer, and a config.json for each identity.
    assert len([name for name in names(s3_server, s3_url) if name.endswith(".bin")]) == 6 + 2 * 6


def test_the_benchmark_has_one_way_in_a_bucket_and_leaves_it_as_it_was(s3_server: S3Server, s3_url: str) -> None:
    store(s3_url, 2)
    before = names(s3_server, s3_url)
    ran = command("bench", s3_url, "--row-bytes", "64KiB", "--bytes", "1MiB", "--rounds", "1", "--json")
    assert (ran.exit_code, ran.stderr) == (0, "")
    [result] = json.loads(ran.stdout)["results"]
    assert (result["layout"], result["io_engine"], result["failure"]) == (None, None, None)
    assert result["store"]["bytes_per_second"] > 0
    assert result["load"]["bytes_per_second"] > 0
    assert names(s3_server, s3_url) == before
    refused = command("bench", s3_url, "--layout", "files")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "a bucket has one way only" in refused.stderr
