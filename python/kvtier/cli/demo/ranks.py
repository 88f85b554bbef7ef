"""What one rank of the demo does, in a process of its own.

Writers store blocks and readers look for them, through the tier that an engine would use. No process tells another
what is in a block: each makes the content that a key must have by itself.
"""

import enum
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, Literal

import kvtier
from kvtier import Identity, Lookup

LAYERS = 27
TOKENS_PER_BLOCK = 64
LATENT_VALUES = 576
"""DeepSeek-V2-Lite: its multi-head latent attention keeps 512 + 64 values per token and layer, the same on each rank."""

DTYPE = "bfloat16"
ROW_BYTES = LAYERS * TOKENS_PER_BLOCK * LATENT_VALUES * 2
"""One block: 1,990,656 bytes, a multiple of 4096."""

NAMESPACE = "kvtier-demo"
"""Keeps the demo's blocks out of every engine's namespace, also when it is run on a root that is in use."""

BLOCKS_PER_JOB = 8
BUFFER_BYTES = 64 << 20
"""Rows of one rank, at most (one row at least): an engine's host buffer is smaller than what the tier holds, too."""


class RowsKind(enum.StrEnum):
    """What rows are made of."""

    TORCH = "torch"
    NUMPY = "numpy"
    HOST_ROWS = "HostRows"


@dataclass(frozen=True)
class Plan:
    """What all ranks know before they start."""

    url: str
    options: dict[str, Any]
    """Of every tier."""

    model: str
    row_bytes: int
    shared_blocks: int
    """Blocks of the part in which rows are stated to be replicated."""

    unshared_blocks: int
    """Blocks of the part in which they are not."""

    rows: RowsKind


@dataclass(frozen=True)
class Rank:
    """One process."""

    role: Literal["writer", "reader"]
    tp_size: int
    number: int

    def __str__(self) -> str:
        return f"TP={self.tp_size} rank {self.number}"


@dataclass(frozen=True)
class Progress:
    """So many more blocks have moved."""

    blocks: int


@dataclass(frozen=True)
class Report:
    """What became of one part on one rank."""

    pid: int
    namespace: str
    """Directory of the rank's blocks below the root."""

    stored: int = 0
    """Blocks that this rank wrote."""

    already_there: int = 0
    """Blocks that this rank was going to write and found published already."""

    asked: int = 0
    """Blocks that this rank looked up."""

    hits: int = 0
    equal: int = 0
    """Blocks whose every byte was what it had to be."""

    moved_bytes: int = 0
    moving_seconds: float = 0
    """Time from submitting jobs to their last result; making and comparing content is left out."""


@dataclass(frozen=True)
class Failed:
    """The rank gives up."""

    reason: str


Message = Progress | Report | Failed


def best_rows() -> RowsKind:
    """What rows can be made of here, the most usual first."""
    return RowsKind.TORCH if find_spec("torch") else RowsKind.NUMPY if find_spec("numpy") else RowsKind.HOST_ROWS


def identity_of(plan: Plan, rank: Rank, *, replicated: bool) -> Identity:
    """The identity that this rank's engine states for its rows."""
    layers = [f"model.layers.{n}.self_attn.attn" for n in range(LAYERS)]
    return Identity(
        plan.model,
        TOKENS_PER_BLOCK,
        tp_size=rank.tp_size,
        rank=rank.number,
        dtype=DTYPE,
        kv_cache_groups=[{"tokens_per_block": TOKENS_PER_BLOCK, "layer_names": layers}],
        # The opt-in: without both statements, rows belong to one TP size and one rank.
        parallel_agnostic=replicated,
        replicated_layout=replicated,
        row_bytes=plan.row_bytes,
        namespace=NAMESPACE,
    )


def run(plan: Plan, rank: Rank, pipe: Connection) -> None:
    """Main function of a rank's process: both parts, each ending with a `Report`.

    Readers begin when they receive anything, which is after the writers have ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its ranks
    try:
        rows = _Rows(plan)
        if rank.role == "reader":
            pipe.recv()
        for replicated in (True, False):
            pipe.send(_part(plan, rank, rows, pipe, replicated=replicated))
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must tell the user
        reason = str(error) if isinstance(error, kvtier.KvTierError) else f"{type(error).__name__}: {error}"
        pipe.send(Failed(reason))


def _part(plan: Plan, rank: Rank, rows: "_Rows", pipe: Connection, *, replicated: bool) -> Report:
    identity = identity_of(plan, rank, replicated=replicated)
    count = plan.shared_blocks if replicated else plan.unshared_blocks
    blocks = [_Block.number(n, plan.row_bytes, "all ranks" if replicated else str(rank)) for n in range(count)]
    with kvtier.open(plan.url, identity=identity, rows=rows.handed_over, **plan.options) as tier:
        worker = _Worker(tier, rows, pipe)
        if rank.role == "reader":
            return worker.load(blocks, identity.blocks_dir())
        # Replicated rows are there on each rank, so the ranks share the work. Otherwise each has to store its own.
        return worker.store(blocks[rank.number :: rank.tp_size] if replicated else blocks, identity.blocks_dir())


@dataclass(frozen=True)
class _Block:
    """A key and what is to be found under it."""

    key: bytes
    row_bytes: int
    held_by: str

    @classmethod
    def number(cls, number: int, row_bytes: int, held_by: str) -> "_Block":
        group = 0
        return cls(hashlib.sha256(b"block %d" % number).digest() + group.to_bytes(4, "big"), row_bytes, held_by)

    def content(self) -> bytes:
        # Repeating is cheaper than hashing each byte, and a prime period leaves no two pages of a row alike.
        period = 65521
        once = hashlib.shake_128(self.key + self.held_by.encode()).digest(min(period, self.row_bytes))
        return (once * (self.row_bytes // period + 1))[: self.row_bytes]


class _Rows:
    """The engine's host buffer: page-aligned memory, seen by the tier as what engines have."""

    def __init__(self, plan: Plan) -> None:
        self.row_bytes = plan.row_bytes
        most = max(plan.shared_blocks, plan.unshared_blocks)
        self.count = max(1, min(most, BUFFER_BYTES // plan.row_bytes))
        memory = kvtier.HostRows(self.count, plan.row_bytes)
        self.handed_over = _as_kind(memory, plan.rows)
        self._bytes = memoryview(memory).cast("B")

    def __getitem__(self, row: int) -> memoryview:
        return self._bytes[row * self.row_bytes : (row + 1) * self.row_bytes]


def _as_kind(memory: kvtier.HostRows, kind: RowsKind) -> Any:
    if kind is RowsKind.TORCH:
        import torch  # noqa: PLC0415 - seconds of import time, where it is installed at all
        from torch.utils.dlpack import from_dlpack  # noqa: PLC0415

        tensor = from_dlpack(memory)
        return tensor.view(torch.bfloat16) if memory.row_bytes % 2 == 0 else tensor
    if kind is RowsKind.NUMPY:
        import numpy  # noqa: ICN001, PLC0415 - may not be installed

        return numpy.asarray(memory)
    return memory


class _Worker:
    """Moves blocks in jobs, a buffer full at a time."""

    def __init__(self, tier: kvtier.TierManager, rows: _Rows, pipe: Connection) -> None:
        self.tier = tier
        self.rows = rows
        self.pipe = pipe
        self.jobs = 0
        self.moved_bytes = 0
        self.moving_seconds = 0.0

    def store(self, blocks: list[_Block], namespace: str) -> Report:
        for part in self._buffers_full(blocks):
            for row, block in enumerate(part):
                self.rows[row][:] = block.content()
            self._move(self.tier.submit_store, part)
        there = self.tier.stats().already_stored
        return self._report(namespace, stored=len(blocks) - there, already_there=there)

    def load(self, blocks: list[_Block], namespace: str) -> Report:
        answers = dict(zip(blocks, self._verdicts([block.key for block in blocks]), strict=True))
        found = [block for block, answer in answers.items() if answer is Lookup.HIT]
        equal = 0
        for part in self._buffers_full(found):
            self._move(self.tier.submit_load, part)
            equal += sum(bytes(self.rows[row]) == block.content() for row, block in enumerate(part))
        return self._report(namespace, asked=len(blocks), hits=len(found), equal=equal)

    def _verdicts(self, keys: list[bytes]) -> list[Lookup]:
        """Asks as a scheduler does: again at each step, until the tier knows."""
        while Lookup.RETRY in (answers := self.tier.lookup_many(keys, request="demo")):
            time.sleep(0.001)
        self.tier.release("demo")
        return answers

    def _buffers_full(self, blocks: list[_Block]) -> Iterator[list[_Block]]:
        for first in range(0, len(blocks), self.rows.count):
            yield blocks[first : first + self.rows.count]

    def _move(self, submit: Any, blocks: list[_Block]) -> None:
        """Submits jobs for the blocks, which are in rows 0, 1, 2, …, and waits until they are done."""
        begun = time.monotonic()
        waiting = 0
        for first in range(0, len(blocks), BLOCKS_PER_JOB):
            keys = [block.key for block in blocks[first : first + BLOCKS_PER_JOB]]
            submit(self.jobs, keys, range(first, first + len(keys)))
            self.jobs += 1
            waiting += 1
        while waiting:
            self.tier.wait()
            for result in self.tier.get_finished_jobs():
                result.raise_for_failures()
                self.moved_bytes += result.transfer_bytes
                self.pipe.send(Progress(len(result.successful_keys)))
                waiting -= 1
        self.moving_seconds += time.monotonic() - begun

    def _report(self, namespace: str, **counts: int) -> Report:
        return Report(
            os.getpid(), namespace, moved_bytes=self.moved_bytes, moving_seconds=self.moving_seconds, **counts
        )
