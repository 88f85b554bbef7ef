"""What follows from what a bucket is like."""

from kvtier.cli.buckets import Bucket
from kvtier.cli.doctor.findings import PAGE, Finding, State

SLOW_ANSWER = 0.2
"""Seconds from which a lookup keeps the requests of a busy engine waiting for several of its steps."""


def of_bucket(bucket: Bucket, row_bytes: int | None) -> list[Finding]:
    """Everything about the bucket itself, for rows of that length if it is known."""
    findings = [_service(bucket), _permissions(bucket)]
    if not bucket.refused:
        findings += [_latency(bucket), _overwriting(bucket), _healing(bucket), *_checksums(bucket)]
    if row_bytes:
        extra = -row_bytes % PAGE + PAGE
        findings.append(
            Finding(
                "rows", State.FINE, f"{row_bytes} bytes; an object has {extra} more ({100 * extra / row_bytes:.1f} %)"
            )
        )
    return findings


def _service(bucket: Bucket) -> Finding:
    where = f"{bucket.endpoint}, {bucket.addressing} addressing" if bucket.addressing else bucket.endpoint
    if bucket.unlisted:
        change = "give the right endpoint, region and credentials, and the right to list (s3:ListBucket)"
        return Finding("service", State.PROBLEM, f"{where}: {bucket.unlisted}", "misses come as failures", change)
    return Finding("service", State.FINE, f"{where}: lists in {_milliseconds(bucket.list_seconds)}")


def _permissions(bucket: Bucket) -> Finding:
    if bucket.refused:
        change = "give the right to put, get and delete objects, or open tiers with read_only=True"
        return Finding("permissions", State.PROBLEM, bucket.refused, "nothing can be stored", change)
    return Finding("permissions", State.FINE, "objects can be written, read and removed")


def _latency(bucket: Bucket) -> Finding:
    times = {"HEAD": bucket.head_seconds, "GET": bucket.get_seconds, "PUT": bucket.put_seconds}
    found = ", ".join(f"{request} {_milliseconds(seconds)}" for request, seconds in times.items())
    used = "a lookup of a block that isn't known takes one HEAD"
    if (bucket.head_seconds or 0) < SLOW_ANSWER:
        return Finding("latency", State.FINE, found, used)
    change = "use a bucket nearer to the engine, or list_at_start=True, which spares lookups of what is there"
    return Finding("latency", State.NOTE, found, used, change)


def _overwriting(bucket: Bucket) -> Finding:
    if bucket.conditional_put:
        return Finding("overwriting", State.FINE, "a PUT can forbid it", "a block that is there costs no second object")
    used = "each store asks by a HEAD before it writes; two that write one block at a time write it twice"
    return Finding("overwriting", State.NOTE, "a PUT can't forbid it", used)


def _healing(bucket: Bucket) -> Finding:
    if bucket.conditional_delete:
        return Finding("healing", State.FINE, "a DELETE can name the version", "a bad block alone is removed")
    used = "a bad block that is replaced in the moment of its removal is lost with its replacement"
    return Finding("healing", State.NOTE, "a DELETE can't name the version", used)


def _checksums(bucket: Bucket) -> list[Finding]:
    used = "each block carries its own checksum in any case"
    found = {
        "compared": 'the server compares them (upload_checksum="crc64nvme")',
        "ignored": "the server takes CRC-64/NVME and doesn't compare it",
        "refused": "the server refuses CRC-64/NVME",
    }
    return [Finding("checksums", State.FINE, found[bucket.checksums], used)] if bucket.checksums else []


def _milliseconds(seconds: float | None) -> str:
    return f"{1000 * (seconds or 0):.1f} ms"
