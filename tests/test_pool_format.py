"""The pool's pages, written a second time from `docs/format.md` alone, against the golden ones.

Nothing here comes from kvtier. Blocks in slots are those of `test_block_format.py`, but for `placement`.
"""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

VECTORS = Path(__file__).parent / "vectors" / "pool"

PAGE = 4096
ENTRY = 64
PAGES: dict[str, dict[str, Any]] = json.loads((VECTORS / "pages.json").read_text())["pages"]
FREE, BLOCK, DEAD = 0, 1, 2


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def sealed(page: bytearray) -> bytes:
    struct.pack_into("<I", page, PAGE - 4, crc32c(bytes(page)))
    return bytes(page)


def named(name: str) -> bytes:
    text = name.encode()
    return struct.pack("<H", len(text)) + text


def superblock(v: dict[str, Any]) -> bytes:
    page = bytearray(PAGE)
    struct.pack_into("<8sHH", page, 0, b"\x89KVPOOL\n", 1, 0)
    fields = (v["segment_bytes"], v["max_bytes"], v["min_free_bytes"], v["created_unix_ns"])
    struct.pack_into("<16sQQQQ", page, 16, bytes.fromhex(v["pool"]), *fields)
    return sealed(page)


def record(v: dict[str, Any]) -> bytes:
    page = bytearray(PAGE)
    struct.pack_into("<8sHH", page, 0, b"\x89KVNAME\n", 1, 0)
    struct.pack_into("<16sQ32s", page, 16, bytes.fromhex(v["pool"]), v["epoch"], bytes.fromhex(v["identity"]))
    name = named(v["name"])
    page[72 : 72 + len(name)] = name
    return sealed(page)


def header(v: dict[str, Any]) -> bytes:
    page = bytearray(PAGE)
    struct.pack_into("<8sHH", page, 0, b"\x89KVSEGM\n", 1, 0)
    struct.pack_into("<16sII", page, 16, bytes.fromhex(v["pool"]), v["segment"], v["slots"])
    numbers = ("slot_bytes", "payload_bytes", "generation", "epoch", "born_unix_ns")
    struct.pack_into("<QQQQQ", page, 40, *(v[name] for name in numbers))
    struct.pack_into("<16s32s", page, 80, bytes.fromhex(v["owner"]), bytes.fromhex(v["identity"]))
    name = named(v["namespace"])
    page[128 : 128 + len(name)] = name
    return sealed(page)


def table(v: dict[str, Any]) -> bytes:
    page = bytearray(PAGE)
    for index, entry in v["entries"].items():
        key = bytes.fromhex(entry["key"])
        whole = len(key) <= 40
        struct.pack_into(
            "<BBHIQQ40s",
            page,
            int(index) * ENTRY,
            {"block": BLOCK, "dead": DEAD}[entry["state"]],
            len(key) if whole else 0xFF,
            0,
            entry["payload_bytes"],
            v["generation"],
            entry["created_unix_ns"],
            key if whole else hashlib.sha256(key).digest(),
        )
    struct.pack_into("<4sI16sI4xQQ", page, PAGE - ENTRY, b"KVTB", v["segment"], bytes.fromhex(v["pool"]), v["number"],
                     v["generation"], v["sequence"])  # fmt: skip
    return sealed(page)


ENCODE = {"superblock": superblock, "record": record, "header": header, "table": table}


@pytest.mark.parametrize("file", PAGES)
def test_golden_page_is_what_the_text_says(file: str) -> None:
    vector = PAGES[file]
    assert (VECTORS / file).read_bytes() == ENCODE[vector["kind"]](vector)


def test_slots_begin_behind_the_table() -> None:
    for vector in PAGES.values():
        if vector["kind"] == "header":
            pages = -(-vector["slots"] // 63)
            room = vector["segment_bytes"] - PAGE * (1 + pages)
            assert vector["slots"] * vector["slot_bytes"] <= room
            assert vector["first_slot_at"] == PAGE * (1 + pages)
            more = vector["slots"] + 1
            assert PAGE * (1 + -(-more // 63)) + more * vector["slot_bytes"] > vector["segment_bytes"]
