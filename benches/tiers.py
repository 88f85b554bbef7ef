"""Secondary tiers of vLLM on files and on objects, made as its factory makes them."""

import importlib
import os
import shutil
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

import torch
from vllm.v1.kv_offload import config
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

from kvtier.integrations.vllm import KvTierSecondaryTierManager
from page_cache import drop_from_page_cache, flush

NATIVE, KVTIER, UNVERIFIED = "vLLM's own", "kvtier", "kvtier, unverified"


class Storage(Protocol):
    """A place where tiers are measured beside each other, each under a name of its own."""

    kind: ClassVar[str]
    """`"files"` or `"objects"`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tiers that are compared here; vLLM's own is the first."""

    round_bytes: ClassVar[dict[int, int]]
    """What each tier stores and loads in a round, by the bytes of a row."""

    lookups: ClassVar[int]
    """Blocks that are looked up in a round."""

    jobs: ClassVar[int]
    """Jobs of each size that are submitted in a round, one by one."""

    def open(self, tier: str, place: str, rows: memoryview) -> Any:
        """A tier in a place, which is made where it isn't there yet."""

    def settle(self, place: str) -> None:
        """Makes the next reads in that place come from the storage itself."""

    def remove(self) -> None:
        """Removes all that was stored."""


class Files:
    """Directories below a root.

    Args:
        root: A directory of the benchmark's own, which `remove` removes.
        layouts: The layouts of kvtier that are compared; the first is the one that is judged.
    """

    kind: ClassVar[str] = "files"
    round_bytes: ClassVar[dict[int, int]] = {64 << 10: 32 << 20, 256 << 10: 96 << 20, 2 << 20: 256 << 20}
    lookups: ClassVar[int] = 1000
    jobs: ClassVar[int] = 100

    def __init__(self, root: Path, layouts: Sequence[str]) -> None:
        self._root = root
        self._layouts = {_name_of(layout): layout for layout in layouts}
        self.names = (NATIVE, *self._layouts, UNVERIFIED)

    def open(self, tier: str, place: str, rows: memoryview) -> Any:
        """A tier in a directory."""
        (self._root / place).mkdir(parents=True, exist_ok=True)
        if tier == NATIVE:
            return FileSystemTierManager(**_engine(rows), root_dir=str(self._root / place))
        layout: dict[str, Any] = {"layout": self._layouts.get(tier, "files")}
        if layout["layout"] != "files":
            layout["max_bytes"] = 2 * rows.nbytes + (256 << 20)  # a pool needs a bound
        verify = "never" if tier == UNVERIFIED else "always"
        return _kvtier(rows, url=f"file://{self._root / place}", verify=verify, **layout)

    def settle(self, place: str) -> None:
        """Flushes the directory's files and drops them from the page cache."""
        flush(self._root)
        drop_from_page_cache(self._root / place)

    def remove(self) -> None:
        """Removes the root."""
        shutil.rmtree(self._root, ignore_errors=True)


class Objects:
    """Prefixes in a bucket on S3, reached as the AWS variables of the environment say.

    Args:
        url: `s3://bucket` or `s3://bucket/prefix`. What is stored below it stays there.
    """

    kind: ClassVar[str] = "objects"
    names: tuple[str, ...] = (NATIVE, KVTIER)
    round_bytes: ClassVar[dict[int, int]] = {64 << 10: 16 << 20, 256 << 10: 48 << 20, 2 << 20: 128 << 20}
    lookups: ClassVar[int] = 300
    jobs: ClassVar[int] = 20

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        bucket, _, prefix = self._url.removeprefix("s3://").partition("/")
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        self._prefix = prefix
        self._store = {
            "bucket": bucket,
            "endpoint_override": endpoint,
            "scheme": endpoint.partition("://")[0],
            "access_key": os.environ["AWS_ACCESS_KEY_ID"],
            "secret_key": os.environ["AWS_SECRET_ACCESS_KEY"],
            "region": os.environ.get("AWS_REGION", "us-east-1"),
        }
        self._native = _native_on_objects()

    def open(self, tier: str, place: str, rows: memoryview) -> Any:
        """A tier below a prefix."""
        if tier == NATIVE:
            prefix = "/".join(filter(None, (self._prefix, place)))
            return self._native(**_engine(rows), store_config=self._store, prefix=prefix)
        return _kvtier(rows, url=f"{self._url}/{place}")

    def settle(self, place: str) -> None:
        """The server keeps what it likes in memory, for all alike."""

    def remove(self) -> None:
        """It goes with the server, or stays."""


def _kvtier(rows: memoryview, **options: Any) -> Any:
    """The tier, with all stated that its log would miss."""
    stated: dict[str, Any] = {"model_revision": "bench", "rope": {}, "model_runner": "bench"}
    return KvTierSecondaryTierManager(**_engine(rows), **stated, **options)


def _name_of(layout: str) -> str:
    return KVTIER if layout == "files" else f"{KVTIER}, {layout}"


def _native_on_objects() -> Any:
    """The tier of vLLM's own.

    The library below it comes in two builds. Without a GPU it takes one that needs a library of CUDA, so it is told that
    torch has an earlier CUDA. And vLLM 0.32 reads telemetry that it doesn't ask for.
    """
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # not two lines for each tier that is opened
    before, torch.version.cuda = torch.version.cuda, "12.8"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            manager: Any = importlib.import_module("vllm.v1.kv_offload.tiering.obj.manager")
        manager.nixl_agent_config = partial(manager.nixl_agent_config, capture_telemetry=True)
        return manager.ObjectStoreSecondaryTierManager
    finally:
        torch.version.cuda = before


def _engine(rows: memoryview) -> dict[str, Any]:
    """What the factory passes to every tier."""
    group = config.OffloadingGroupConfig(16, ("model.layers.0.self_attn",), 0)
    described = config.OffloadingConfig(
        groups=(group,),
        worker_kv_bytes_per_block=0,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="bench",
        model=config.OffloadingModelConfig("bench/model", "bfloat16"),
        cache=config.OffloadingCacheConfig(16, 1),
        parallel=config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, is_parallelism_agnostic=False),
        kv_cache_layout="LBNHC",
    )
    spec = SimpleNamespace(
        config=described,
        blocks_per_chunk=1,
        extra_config={},
        replicated_layout=False,
        kv_events_config=SimpleNamespace(enable_kv_cache_events=False, self_describing_kv_events=False),
    )
    return {"offloading_spec": spec, "primary_kv_view": rows, "tier_type": "bench"}
