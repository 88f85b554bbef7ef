"""`compat="vllm"`: what vLLM's own tiers stored is hit by kvtier, and the other way, on one root and in one bucket."""

import importlib
import itertools
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from s3_server import KEY, SECRET, S3Server

from .conftest import ROW_BYTES, StartScheduler

ENGINES: list[dict[str, Any]] = [
    {},
    {"tp_size": 2},
    {"tp_size": 2, "agnostic": True},
    {"tp_size": 2, "replicated": True},
    {"blocks_per_chunk": 4},
    {"canonical": True, "agnostic": True},
]
_names = itertools.count()


@dataclass
class Both:
    """Entries of `secondary_tiers` for one place: vLLM's own tier, and kvtier in its naming."""

    native: dict[str, Any]
    ours: dict[str, Any]


@pytest.fixture
def files(tmp_path: Path, entry: dict[str, Any]) -> Both:
    return Both({"type": "fs", "root_dir": str(tmp_path)}, {**entry, "compat": "vllm"})


@pytest.fixture(scope="session")
def nixl() -> Iterator[None]:
    """The library below vLLM's own tier on objects.

    It comes in two builds and takes the one for torch's CUDA, or where torch has none the newer, which needs a library
    that only CUDA brings. And vLLM 0.32 reads telemetry that it doesn't ask for.
    """
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(torch.version, "cuda", "12.8")
        manager: Any = importlib.import_module("vllm.v1.kv_offload.tiering.obj.manager")
        patch.setattr(manager, "nixl_agent_config", partial(manager.nixl_agent_config, capture_telemetry=True))
        patch.setattr(torch.version, "cuda", None)
        yield


@pytest.fixture
def objects(nixl: None, s3_server: S3Server) -> Both:  # noqa: ARG001 - loads it
    prefix = f"compat-{next(_names)}"
    store = {
        "bucket": s3_server.bucket,
        "endpoint_override": s3_server.endpoint,
        "access_key": KEY,
        "secret_key": SECRET,
        "region": "us-east-1",
    }
    reached = {
        "endpoint": s3_server.endpoint,
        "access_key": KEY,
        "secret_key": SECRET,
        "region": "us-east-1",
        "allow_http": True,
    }
    return Both(
        {"type": "obj", "store_config": store, "prefix": prefix},
        {"type": "kvtier", "url": f"s3://{s3_server.bucket}/{prefix}", **reached, "compat": "vllm"},
    )


@pytest.fixture(params=["files", "objects"])
def both(request: pytest.FixtureRequest) -> Both:
    found: Both = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_each_hits_the_others_blocks(start: StartScheduler, both: Both, engine: dict[str, Any]) -> None:
    start(both.native, **engine).store(range(8))
    ours = start(both.ours, **engine)
    assert ours.hits(range(10)) == 8
    ours.store(range(8, 16))
    assert start(both.native, **engine).hits(range(16)) == 16


def test_both_below_one_engine(start: StartScheduler, both: Both) -> None:
    scheduler = start(both.native, both.ours)
    scheduler.store(range(8))
    scheduler.forget_primary()
    assert scheduler.hits(range(8)) == 8
    assert start(both.ours).hits(range(8)) == start(both.native).hits(range(8)) == 8


def test_files_are_the_same_whoever_wrote_them(start: StartScheduler, files: Both, tmp_path: Path) -> None:
    written = {}
    for name, tier in (("native", files.native), ("ours", files.ours)):
        root = tmp_path / name
        root.mkdir()
        place = {"root_dir": str(root)} if tier is files.native else {"url": f"file://{root}"}
        start({**tier, **place}, replicated=True, tp_size=2).store(range(8))
        found = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("lock"))
        written[name] = {str(path.relative_to(root)): path.read_bytes() for path in found}
    assert written["native"] == written["ours"]
    assert sum(len(content) == ROW_BYTES for content in written["ours"].values()) == 8


def test_a_config_that_vllm_was_killed_while_writing_stops_no_engine(
    start: StartScheduler, files: Both, tmp_path: Path
) -> None:
    start(files.native).store(range(4))
    (config,) = tmp_path.glob("*/config.json")
    config.write_text(json.dumps(json.loads(config.read_text()), indent=2)[:40])
    assert start(files.ours).hits(range(4)) == 4


def test_blocks_of_kvtiers_own_kind_are_apart(start: StartScheduler, both: Both) -> None:
    start(both.native).store(range(4))
    ours = {name: value for name, value in both.ours.items() if name != "compat"}
    assert start(ours).hits(range(4)) == 0
