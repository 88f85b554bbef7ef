"""Ways of keeping blocks in files: kvtier, and what a user would write without it.

Each stores row `i` of one buffer under key `i` and loads it into row `count + i`, in a directory of its own. All give a
block a file, in the same two levels of directories.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from torch.utils.dlpack import from_dlpack

import kvtier

BLOCKS_PER_JOB = 32


@dataclass
class Buffer:
    """Page-aligned rows: the first half is stored, the second half is loaded into."""

    count: int
    row_bytes: int

    def __post_init__(self) -> None:
        # OpenMP's threads wait for each other longer than they copy a block, and torch.save would look worse than it is.
        torch.set_num_threads(1)
        self.memory = kvtier.HostRows(2 * self.count, self.row_bytes)
        self.tensor = from_dlpack(self.memory)
        tile = torch.frombuffer(bytearray(os.urandom(self.row_bytes)), dtype=torch.uint8)
        for row in range(self.count):
            self.tensor[row] = torch.roll(tile, row + 1)
        flat = memoryview(self.memory).cast("B")
        self.views = [flat[row * self.row_bytes : (row + 1) * self.row_bytes] for row in range(2 * self.count)]

    def forget_loaded(self) -> None:
        """So that only what is loaded again is equal."""
        self.tensor[self.count :].zero_()

    def is_loaded(self) -> bool:
        """Whether each byte came back."""
        return torch.equal(self.tensor[: self.count], self.tensor[self.count :])


class Peer(Protocol):
    """One way, at work in one directory."""

    def store(self, numbers: Sequence[int], keys: Sequence[bytes]) -> None:
        """Stores rows under keys; all can be loaded when it returns."""

    def load(self, numbers: Sequence[int], keys: Sequence[bytes]) -> None:
        """Loads them into the second half of the buffer."""

    def close(self) -> None:
        """Ends it."""


class Kvtier:
    """A tier, given jobs as an engine gives them."""

    def __init__(self, root: Path, buffer: Buffer, threads: int, **options: Any) -> None:
        identity = kvtier.Identity("bench/model", 16, dtype="uint8")
        self._buffer = buffer
        self._tier = kvtier.open(root, identity=identity, rows=buffer.memory, io_threads=threads, **options)

    def store(self, numbers: Sequence[int], keys: Sequence[bytes]) -> None:
        self._run(self._tier.submit_store, numbers, keys)

    def load(self, numbers: Sequence[int], keys: Sequence[bytes]) -> None:
        self._run(self._tier.submit_load, [self._buffer.count + number for number in numbers], keys)

    def close(self) -> None:
        self._tier.shutdown()

    def _run(self, submit: Callable[..., None], rows: Sequence[int], keys: Sequence[bytes]) -> None:
        for first in range(0, len(keys), BLOCKS_PER_JOB):
            last = first + BLOCKS_PER_JOB
            submit(first, keys[first:last], rows[first:last])
        self._tier.drain_jobs()
        for result in self._tier.get_finished_jobs():
            result.raise_for_failures()


class _Files:
    """What the others share: where a block's file is."""

    def __init__(self, root: Path, buffer: Buffer) -> None:
        self._root = str(root)
        self._buffer = buffer

    def _path(self, key: bytes) -> str:
        name = key[:-4].hex()
        return f"{self._root}/{name[:3]}/{name[3:5]}_g0/{name}.bin"

    def close(self) -> None:
        pass


class ThreadPool(_Files):
    """`os.pwrite` and `os.preadv` on a pool of threads; a temporary file is renamed when it is complete."""

    def __init__(self, root: Path, buffer: Buffer, threads: int, *, direct: bool) -> None:
        super().__init__(root, buffer)
        self._flags = os.O_DIRECT if direct else 0
        self._pool = ThreadPoolExecutor(threads)

    def store(self, numbers: Sequence[int], keys: Sequence[bytes]) -> None:
        for _ in self._pool.map(self._store_one, numbers, keys):
            pass

    def load(self, numbers: Sequence[int], keys: Sequence[bytes]) -> None:
        for _ in self._pool.map(self._load_one, numbers, keys):
            pass

    def close(self) -> None:
        self._pool.shutdown()

    def _store_one(self, number: int, key: bytes) -> None:
        path, row = self._path(key), self._buffer.views[number]
        temporary = f"{path}.{threading.get_ident()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | self._flags
        try:
            descriptor = os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - as quick as it can be
            descriptor = os.open(temporary, flags, 0o666)
        try:
            done = 0
            while done < len(row):
                done += os.pwrite(descriptor, row[done:], done)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)  # noqa: PTH104

    def _load_one(self, number: int, key: bytes) -> None:
        row = self._buffer.views[self._buffer.count + number]
        descriptor = os.open(self._path(key), os.O_RDONLY | self._flags)
        try:
            done = 0
            while done < len(row):
                got = os.preadv(descriptor, [row[done:]], done)
                if not got:
                    raise EOFError(self._path(key))
                done += got
        finally:
            os.close(descriptor)


class TorchSave(_Files):
    """`torch.save` and `torch.load`, a block at a time."""

    def store(self, numbers: Sequence[int], keys: Sequence[bytes]) -> None:
        for number, key in zip(numbers, keys, strict=True):
            path = Path(self._path(key))
            path.parent.mkdir(parents=True, exist_ok=True)
            # A row as it is would bring the whole buffer's storage with it.
            torch.save(self._buffer.tensor[number].clone(), path)

    def load(self, numbers: Sequence[int], keys: Sequence[bytes]) -> None:
        for number, key in zip(numbers, keys, strict=True):
            self._buffer.tensor[self._buffer.count + number] = torch.load(self._path(key), weights_only=True)


class Safetensors(_Files):
    """`safetensors.torch.save_file` and `load_file`, a block at a time."""

    def store(self, numbers: Sequence[int], keys: Sequence[bytes]) -> None:
        for number, key in zip(numbers, keys, strict=True):
            path = Path(self._path(key))
            path.parent.mkdir(parents=True, exist_ok=True)
            safetensors.torch.save_file({"block": self._buffer.tensor[number]}, path)

    def load(self, numbers: Sequence[int], keys: Sequence[bytes]) -> None:
        for number, key in zip(numbers, keys, strict=True):
            row = safetensors.torch.load_file(self._path(key))["block"]
            self._buffer.tensor[self._buffer.count + number] = row


KVTIER = "kvtier"
RAW = "kvtier, raw"
BUFFERED = "kvtier, buffered"
BUFFERED_RAW = "kvtier, buffered, raw"
POOL_DIRECT = "thread pool, direct"
POOL_BUFFERED = "thread pool, buffered"

PEERS: dict[str, Callable[[Path, Buffer, int], Peer]] = {
    KVTIER: Kvtier,
    POOL_DIRECT: lambda *arguments: ThreadPool(*arguments, direct=True),
    RAW: lambda *arguments: Kvtier(*arguments, compat="vllm"),
    "kvtier, verify=never": lambda *arguments: Kvtier(*arguments, verify="never"),
    BUFFERED: lambda *arguments: Kvtier(*arguments, direct_io="off"),
    POOL_BUFFERED: lambda *arguments: ThreadPool(*arguments, direct=False),
    BUFFERED_RAW: lambda *arguments: Kvtier(*arguments, direct_io="off", compat="vllm"),
    "safetensors": lambda root, buffer, _threads: Safetensors(root, buffer),
    "torch.save": lambda root, buffer, _threads: TorchSave(root, buffer),
}
"""All ways by name: first those that bypass the page cache, then those that don't. Those that are compared run one after
the other, so that the machine's mood is the same for both."""
