"""The scheduler's side of vLLM's offloading, as it is but for the GPU: the real factory, manager and primary tier."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvtier.testing import make_key

ROW_BYTES = 8192
NUM_ROWS = 32
_numbers = itertools.count()


@pytest.fixture(scope="session")
def vllm() -> SimpleNamespace:
    """What the tests use of vLLM, imported when the first of them runs: it takes ten seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm as package  # noqa: PLC0415
        from vllm.v1.kv_offload import base, config  # noqa: PLC0415
        from vllm.v1.kv_offload.tiering import base as tiering  # noqa: PLC0415
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: PLC0415
        from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec  # noqa: PLC0415

        from kvtier.integrations.vllm import KvTierSecondaryTierManager, contract, register  # noqa: PLC0415
    register()
    return SimpleNamespace(
        version=package.__version__,
        base=base,
        config=config,
        tiering=tiering,
        Factory=SecondaryTierFactory,
        Spec=TieringOffloadingSpec,
        Tier=KvTierSecondaryTierManager,
        contract=contract,
    )


def offloading_config(vllm: SimpleNamespace, *tiers: dict[str, Any], **changes: Any) -> Any:
    """What an engine with one worker and two layers says of itself, but for the changes."""
    facts: dict[str, Any] = {
        "name": "org/model",
        "dtype": "bfloat16",
        "tokens_per_hash": 16,
        "blocks_per_chunk": 1,
        "rank": 0,
        "tp_size": 1,
        "pp_size": 1,
        "pcp_size": 1,
        "dcp_size": 1,
        "agnostic": False,
        "replicated": False,
        "canonical": False,
        "layout": "LBNHC",
        "worker_bytes": ROW_BYTES,
        "events": False,
        "layers": ("layers.0.attn", "layers.1.attn"),
    } | changes
    world_size = facts["tp_size"] * facts["pp_size"] * facts["pcp_size"]
    row_bytes = facts["worker_bytes"] * (1 if facts["replicated"] else world_size) * facts["blocks_per_chunk"]
    config = vllm.config
    return config.OffloadingConfig(
        groups=(config.OffloadingGroupConfig(16, tuple(facts["layers"]), 0),),
        worker_kv_bytes_per_block=facts["worker_bytes"],
        enable_kv_cache_events=facts["events"],
        extra_config={"cpu_bytes_to_use": NUM_ROWS * (-(-row_bytes // 4096) * 4096), "secondary_tiers": list(tiers)},
        engine_id=f"kvtier-test-{os.getpid()}-{next(_numbers)}",
        model=config.OffloadingModelConfig(facts["name"], facts["dtype"]),
        cache=config.OffloadingCacheConfig(facts["tokens_per_hash"], facts["blocks_per_chunk"]),
        parallel=config.OffloadingParallelConfig(
            rank=facts["rank"],
            world_size=world_size,
            tp_size=facts["tp_size"],
            pp_size=facts["pp_size"],
            pcp_size=facts["pcp_size"],
            dcp_size=facts["dcp_size"],
            data_parallel_index=0,
            data_parallel_size=1,
            data_parallel_rank_local=None,
            is_parallelism_agnostic=facts["agnostic"],
        ),
        replicated_layout=facts["replicated"],
        canonical_layout=facts["canonical"],
        kv_cache_layout=facts["layout"],
    )


class Scheduler:
    """Drives a manager with its tiers in the way of vLLM's scheduler; blocks are told apart by their numbers."""

    def __init__(self, vllm: SimpleNamespace, *tiers: dict[str, Any], **changes: Any) -> None:
        self.vllm = vllm
        self.spec = vllm.Spec(offloading_config(vllm, *tiers, **changes))
        self.manager = self.spec.get_manager()
        self.tiers = self.manager.secondary_tiers
        self.tier: Any = self.tiers[0]
        self._requests = itertools.count()
        self.steps = 0

    def request(self) -> Any:
        """A new request."""
        context = self.vllm.base.ReqContext(f"request-{next(self._requests)}")
        self.manager.on_new_request(context)
        return context

    def step(self) -> None:
        """The end of a step, and the time that the model takes."""
        self.manager.on_schedule_end(self.vllm.base.ScheduleEndContext((), ()))
        self.steps += 1
        time.sleep(0.002)

    def settle(self) -> None:
        """Steps until nothing is under way."""
        until = time.monotonic() + 60
        while self.manager.has_pending_work():
            assert time.monotonic() < until, "jobs never end"
            self.step()

    def begin_store(self, numbers: Iterable[int]) -> Any:
        """A request's blocks come from the GPU, and are submitted to all secondary tiers."""
        context = self.request()
        prepared = self.manager.prepare_store([make_key(n) for n in numbers], context)
        assert prepared is not None
        for key, row in zip(prepared.keys_to_store, prepared.store_spec.chunk_ids, strict=True):
            self.row(row)[:] = content_of(key, self.row_bytes)
        if prepared.keys_to_store:
            self.manager.complete_store(prepared.keys_to_store, context)
        return context

    def store(self, numbers: Iterable[int]) -> None:
        """A request's blocks come from the GPU, and go on to all secondary tiers."""
        context = self.begin_store(numbers)
        self.settle()
        self.manager.on_request_finished(context)

    def ask(self, numbers: Iterable[int]) -> dict[int, str]:
        """What a request is told of each block, once it is known."""
        context = self.request()
        answers: dict[int, str] = {}
        until = time.monotonic() + 60
        while left := [n for n in numbers if n not in answers]:
            assert time.monotonic() < until, "questions are never answered"
            for n in left:
                answer = self.manager.lookup(make_key(n), context).name
                if answer in {"HIT", "MISS"}:
                    answers[n] = answer
            self.step()
        self.settle()
        hits = [make_key(n) for n, answer in answers.items() if answer == "HIT"]
        if hits:
            loaded = self.manager.prepare_load(hits, context)
            for key, row in zip(hits, loaded.chunk_ids, strict=True):
                assert (self.row(row) == content_of(key, self.row_bytes)).all(), "other bytes than were stored"
            self.manager.complete_load(hits, context)
        self.manager.on_request_finished(context)
        return answers

    def hits(self, numbers: Iterable[int]) -> int:
        """How many of the blocks are found and loaded right."""
        return list(self.ask(numbers).values()).count("HIT")

    def row(self, number: int) -> Any:
        """A row of the host buffer."""
        return np.asarray(self.manager.primary_tier.get_kv_memoryview()).view(np.uint8)[number]

    @property
    def row_bytes(self) -> int:
        """The rows' length."""
        return int(self.manager.primary_tier.get_kv_memoryview().strides[0])

    def forget_primary(self) -> None:
        """Empties the host buffer, but not the tiers below it."""
        self.settle()
        self.manager.primary_tier.reset_cache()

    def reset(self) -> None:
        """What the engine does to its caches after new weights."""
        self.manager.reset_cache()
        if hasattr(self.manager, "on_reset_flushed"):
            self.manager.on_reset_flushed()

    def events(self) -> list[Any]:
        """The events of the secondary tiers."""
        return [event for event in self.manager.take_events() if event.medium.name == "STORAGE"]

    def counters(self) -> dict[str, Any]:
        """The metrics since the last call, those of kvtier by their names and labels."""
        stats = self.manager.get_stats()
        values = stats.data["data"] if stats else {}
        return {
            ":".join([name.removeprefix("kvtier:"), *labels]): value
            for name, by_labels in values.items()
            for labels, value in by_labels.items()
            if name.startswith("kvtier:")
        }

    def shutdown(self) -> None:
        """As vLLM's scheduler ends."""
        self.manager.shutdown()


def content_of(key: bytes, row_bytes: int) -> Any:
    """The bytes of the block under `key`, the same in every process."""
    return np.resize(np.frombuffer(key[:32], dtype=np.uint8), row_bytes)


StartScheduler = Callable[..., Scheduler]


@pytest.fixture
def start(vllm: SimpleNamespace) -> Iterator[StartScheduler]:
    """Starts schedulers with secondary tiers, which are shut down after the test."""
    started: list[Scheduler] = []

    def start(*tiers: dict[str, Any], **changes: Any) -> Scheduler:
        started.append(Scheduler(vllm, *tiers, **changes))
        return started[-1]

    yield start
    for scheduler in started:
        scheduler.shutdown()


Serve = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Runs a real engine on prompts, in processes of its own, until it has ended: see `engine/serve.py`."""
    models = tmp_path_factory.mktemp("models")
    here = Path(__file__).parent / "engine"

    def serve(
        model: str,
        tp: int,
        *tiers: dict[str, Any],
        prompts: list[str],
        within: Iterable[str] = (),
        pause: str | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Any:
        """Serves the prompts, `within` a command that runs another; does something before the prompt `pause`."""
        if not (models / model).exists():
            run_and_talk([sys.executable, str(here / "models.py"), model, str(models / model)])
        task = {"model": str(models / model), "tp": tp, "tiers": tiers, "prompts": prompts, "pause": pause}
        last = run_and_talk([*within, sys.executable, str(here / "serve.py"), json.dumps(task)], meanwhile)
        return json.loads(last.removeprefix("RESULT "))

    return serve


def run_and_talk(command: list[str], meanwhile: Callable[[], None] = lambda: None) -> str:
    """Runs a program until it ends, and gives its last line. When it says PAUSE, something is done before it goes on."""
    lines: deque[str] = deque(maxlen=200)
    begun = time.time()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            for line in program.stdout:
                if line == "PAUSE\n":
                    meanwhile()
                    program.stdin.write("\n")
                    program.stdin.flush()
                lines.append(line)
            code = program.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # it and its workers, in case that this test was ended
            remove_abandoned_memory(begun)
        errors.seek(0)
        assert code == 0, "".join(lines) + errors.read()[-10_000:]
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def remove_abandoned_memory(since: float) -> None:
    """Removes the shared memory that vLLM's workers leave behind at TP sizes above 1: what is newer and nobody has mapped."""
    made = [path for path in Path("/dev/shm").glob("vllm_dist_*") if path.stat().st_mtime >= since]
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # the process has ended
            mapped += maps.read_text()
    for path in made:
        if str(path) not in mapped:
            path.unlink(missing_ok=True)


@pytest.fixture
def entry(tmp_path: Path) -> dict[str, Any]:
    """An entry of `secondary_tiers`, with a root that no other test has."""
    return {"type": "kvtier", "url": f"file://{tmp_path}"}
