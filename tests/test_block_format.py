"""The block format, written a second time from `docs/format.md` alone, against the golden blocks.

Nothing here comes from kvtier: checksums are computed bit by bit from their definitions, so an error in the core's
dependencies would be noticed too.
"""

import json
import re
import struct
from pathlib import Path
from typing import TypedDict

import pytest

VECTORS = Path(__file__).parent / "vectors" / "blocks"

PAGE = 4096
MAGIC = b"\x89KVTIER\n"
XXH3, CRC64_NVME = 1, 2
HEAD = struct.Struct("<8sHHIQQH68s")
BODY = struct.Struct("<32sQQ16s")
BODY_AT = 104

U64 = (1 << 64) - 1
XXH3_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc"
    "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


class Vector(TypedDict):
    """One golden block: what went in. `algorithm` is 0 for a raw one."""

    file: str
    payload_bytes: int
    algorithm: int
    key: str
    identity: str
    created_unix_ns: int
    placement: int
    writer: str


BLOCKS: list[Vector] = json.loads((VECTORS / "blocks.json").read_text())["blocks"]


def payload_of(length: int) -> bytes:
    return bytes((i * i + 7 * i) % 251 for i in range(length))


def reflected_crc(data: bytes, polynomial: int, width: int) -> int:
    ones = (1 << width) - 1
    crc = ones
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
    return crc ^ ones


def crc32c(data: bytes) -> int:
    return reflected_crc(data, 0x82F63B78, 32)


def crc64_nvme(data: bytes) -> int:
    return reflected_crc(data, 0x9A6C9329AC4BC9B5, 64)


def xxh3_64(data: bytes) -> int:
    """XXH3 with 64 bits, default secret, seed 0, for more than 240 bytes."""
    prime32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
    prime64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
    lanes = [prime32[2], *prime64[:4], prime32[1], prime64[4], prime32[0]]

    def accumulate(stripe: bytes, secret_at: int) -> None:
        values = struct.unpack("<8Q", stripe)
        secrets = struct.unpack_from("<8Q", XXH3_SECRET, secret_at)
        for i, (value, secret) in enumerate(zip(values, secrets, strict=True)):
            mixed = value ^ secret
            lanes[i ^ 1] = lanes[i ^ 1] + value & U64
            lanes[i] = lanes[i] + (mixed & 0xFFFFFFFF) * (mixed >> 32) & U64

    stripes = range(0, len(data) - 1 - 63, 64)
    for n, at in enumerate(stripes):
        accumulate(data[at : at + 64], n % 16 * 8)
        if n % 16 == 15:
            secrets = struct.unpack_from("<8Q", XXH3_SECRET, 128)
            lanes = [(lane ^ lane >> 47 ^ s) * prime32[0] & U64 for lane, s in zip(lanes, secrets, strict=True)]
    accumulate(data[-64:], 192 - 64 - 7)

    secrets = struct.unpack_from("<8Q", XXH3_SECRET, 11)
    result = len(data) * prime64[0]
    for i in range(0, 8, 2):
        product = (lanes[i] ^ secrets[i]) * (lanes[i + 1] ^ secrets[i + 1])
        result += product & U64 ^ product >> 64
    result &= U64
    result = (result ^ result >> 37) * 0x165667919E3779F9 & U64
    return result ^ result >> 32


def encode(vector: Vector) -> bytes:
    payload = payload_of(vector["payload_bytes"])
    if vector["algorithm"] == 0:
        return payload
    checksum = {XXH3: xxh3_64, CRC64_NVME: crc64_nvme}[vector["algorithm"]]
    key = bytes.fromhex(vector["key"])
    page = bytearray(PAGE)
    HEAD.pack_into(page, 0, MAGIC, 1, vector["algorithm"], 0, len(payload), checksum(payload), len(key), key)
    identity, writer = bytes.fromhex(vector["identity"]), vector["writer"].encode()
    BODY.pack_into(page, BODY_AT, identity, vector["created_unix_ns"], vector["placement"], writer)
    struct.pack_into("<I", page, PAGE - 4, crc32c(bytes(page)))
    return payload + bytes(-len(payload) % PAGE) + page


def test_published_check_values() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc64_nvme(b"123456789") == 0xAE8B14860A799888
    # xxhsum -H3 of 300 and 3,000 times "a"
    assert xxh3_64(b"a" * 300) == 0xC1D17581D8EB7E21
    assert xxh3_64(b"a" * 3000) == 0x591E187195FC0002


@pytest.mark.parametrize("vector", BLOCKS, ids=lambda v: str(v["file"]))
def test_golden_block_is_what_the_text_says(vector: Vector) -> None:
    assert (VECTORS / vector["file"]).read_bytes() == encode(vector)


def test_the_page_shown_in_the_text_is_the_golden_one() -> None:
    text = (Path(__file__).parents[1] / "docs" / "format.md").read_text()
    shown = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ){8}) ((?:[0-9a-f]{2} ?){8}) +[|]", text, re.MULTILINE)
    page = (VECTORS / "framed-xxh3.bin").read_bytes()[-PAGE:]
    assert len(shown) == 12
    for offset, left, right in shown:
        at = int(offset, 16)
        assert page[at : at + 16] == bytes.fromhex(left + right), offset
    assert not any(page[int(shown[-2][0], 16) : int(shown[-1][0], 16)])
