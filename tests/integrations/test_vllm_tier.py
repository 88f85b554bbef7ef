"""vLLM's whole contract, with its real factory, manager and primary tier: blocks go down, come back, fail, and go."""

import gc
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kvtier
from kvtier.testing import Faults, make_key, open_faulty

from .conftest import ROW_BYTES, StartScheduler


def block_file(root: Path, number: int) -> Path:
    """The file of a block, in the one namespace that there is."""
    (found,) = root.glob(f"*_r0/*/*/{make_key(number)[:-4].hex()}.bin")
    return found


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """What goes wrong in the storage of tiers that are made from now on."""
    faults = Faults()

    def open_with_faults(url: str, *, config: kvtier.TierConfig, **rest: Any) -> kvtier.TierManager:
        rest |= {name: value for name, value in config.as_options().items() if name not in rest}
        return open_faulty(url, faults, **rest)

    monkeypatch.setattr(kvtier, "open", open_with_faults)
    return faults


class TestCascadeAndPromotion:
    def test_blocks_go_down_and_come_back(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        scheduler = start(entry)
        scheduler.store(range(16))
        scheduler.forget_primary()
        assert scheduler.hits(range(20)) == 16

    def test_the_next_engine_finds_them(self, start: StartScheduler, entry: dict[str, Any], tmp_path: Path) -> None:
        first = start(entry)
        first.store(range(16))
        first.shutdown()
        before = {path: path.stat().st_ino for path in tmp_path.rglob("*.bin")}
        second = start(entry)
        assert second.hits(range(16)) == 16
        second.store(range(16))
        assert {path: path.stat().st_ino for path in tmp_path.rglob("*.bin")} == before

    def test_another_identity_finds_nothing(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        start(entry).store(range(4))
        assert start(entry, layout="LBHNC").hits(range(4)) == 0
        assert start({**entry, "model_revision": "r"}).hits(range(4)) == 0
        assert start(entry).hits(range(4)) == 4

    def test_replicated_rows_are_shared_across_tp(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        start(entry, tp_size=2, replicated=True).store(range(4))
        assert start(entry, tp_size=4, replicated=True).hits(range(4)) == 4
        assert start(entry, tp_size=1).hits(range(4)) == 0
        assert start({**entry, "replicated": True}, tp_size=1).hits(range(4)) == 4

    def test_sharded_rows_are_not(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        start(entry, tp_size=1, agnostic=True).store(range(4))
        assert start(entry, tp_size=2, agnostic=True, worker_bytes=ROW_BYTES // 2).hits(range(4)) == 0

    @pytest.mark.parametrize("chunk", [1, 4])
    def test_rows_with_padding(self, start: StartScheduler, entry: dict[str, Any], chunk: int) -> None:
        scheduler = start(entry, worker_bytes=5000, blocks_per_chunk=chunk, tp_size=2)
        scheduler.store(range(8))
        scheduler.forget_primary()
        assert scheduler.hits(range(8)) == 8

    def test_two_tiers_are_filled_and_the_first_that_has_a_block_gives_it(
        self, start: StartScheduler, tmp_path: Path
    ) -> None:
        roots = [tmp_path / name for name in "ab"]
        for root in roots:
            root.mkdir()
        entries = [{"type": "kvtier", "url": f"file://{root}"} for root in roots]
        scheduler = start(*entries)
        scheduler.store(range(4))
        assert [len(list(root.rglob("*.bin"))) for root in roots] == [4, 4]
        scheduler.counters()
        block_file(roots[0], 2).unlink()
        scheduler.shutdown()
        again = start(*entries)
        # The engine takes the first HIT that there is, also while an earlier tier is still looking.
        context = again.request()
        while any(again.tier.lookup(make_key(n), context).name == "RETRY" for n in range(4)):
            again.step()
        again.manager.on_request_finished(context)
        assert again.hits(range(4)) == 4
        counters = again.counters()
        assert (counters["loaded_blocks:1:kvtier"], counters["loaded_blocks:2:kvtier"]) == (3, 1)


class TestLookup:
    def test_known_blocks_are_answered_at_the_first_ask(
        self, start: StartScheduler, entry: dict[str, Any], vllm: SimpleNamespace
    ) -> None:
        scheduler = start(entry)
        scheduler.store(range(8))
        context = scheduler.request()
        assert {scheduler.tier.lookup(make_key(n), context) for n in range(8)} == {vllm.base.LookupResult.HIT}

    def test_others_are_asked_for_in_one_go_when_the_step_ends(
        self, start: StartScheduler, entry: dict[str, Any], vllm: SimpleNamespace
    ) -> None:
        scheduler = start(entry)
        context = scheduler.request()
        asked = [make_key(n) for n in range(40)]
        retry, miss = vllm.base.LookupResult.RETRY, vllm.base.LookupResult.MISS
        assert {scheduler.tier.lookup(key, context) for key in asked} == {retry}
        time.sleep(0.05)
        assert {scheduler.tier.lookup(key, context) for key in asked} == {retry}
        scheduler.step()
        time.sleep(0.2)
        assert {scheduler.tier.lookup(key, context) for key in asked} == {miss}
        assert scheduler.counters()["probed_blocks:1:kvtier"] == 40

    def test_what_a_request_was_told_is_forgotten_with_it(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        scheduler = start(entry)
        scheduler.ask(range(8))
        assert scheduler.tier._tier.stats().open_requests == 0


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)


def shorten(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


class TestFailures:
    @pytest.mark.parametrize(
        ("harm", "kind"),
        [(Path.unlink, "missing"), (damage, "checksum"), (shorten, "short")],
        ids=["gone", "flipped", "cut"],
    )
    def test_one_bad_block_is_one_miss(
        self, start: StartScheduler, entry: dict[str, Any], tmp_path: Path, harm: Callable[[Path], Any], kind: str
    ) -> None:
        scheduler = start(entry)
        scheduler.store(range(8))
        scheduler.forget_primary()
        harm(block_file(tmp_path, 3))
        answers = scheduler.ask(range(8))
        assert [n for n, answer in answers.items() if answer == "MISS"] == [3]
        assert scheduler.counters()[f"failed_blocks:1:kvtier:load:{kind}"] == 1
        assert scheduler.steps < 20
        # Computed anew, it is stored anew.
        scheduler.store([3])
        scheduler.forget_primary()
        assert scheduler.hits(range(8)) == 8

    def test_a_request_that_holds_the_hit_is_told_too(
        self, start: StartScheduler, entry: dict[str, Any], tmp_path: Path, vllm: SimpleNamespace
    ) -> None:
        scheduler = start(entry)
        scheduler.store([1])
        scheduler.forget_primary()
        other = scheduler.request()
        assert scheduler.tier.lookup(make_key(1), other) is vllm.base.LookupResult.HIT
        block_file(tmp_path, 1).unlink()
        assert scheduler.hits([1]) == 0
        assert scheduler.tier.lookup(make_key(1), other) is vllm.base.LookupResult.MISS

    def test_a_store_that_fails_is_no_hit(self, start: StartScheduler, entry: dict[str, Any], faults: Faults) -> None:
        scheduler = start(entry)
        faults.inject("store", "fail", key=make_key(1), kind="no_space")
        scheduler.store(range(3))
        scheduler.forget_primary()
        assert scheduler.ask(range(3)) == {0: "HIT", 1: "MISS", 2: "HIT"}
        assert scheduler.counters()["failed_blocks:1:kvtier:store:no_space"] == 1

    def test_storage_that_can_do_nothing_leaves_an_engine_that_serves(
        self, start: StartScheduler, entry: dict[str, Any], faults: Faults
    ) -> None:
        scheduler = start(entry)
        faults.inject("store", "fail", times=1000, kind="no_space")
        faults.inject("load", "fail", times=1000, kind="io")
        faults.inject("probe", "fail", times=1000, kind="unavailable")
        scheduler.store(range(8))
        scheduler.forget_primary()
        assert scheduler.hits(range(8)) == 0
        assert scheduler.steps < 30

    def test_stores_beyond_the_bound_are_dropped_at_once(
        self, start: StartScheduler, entry: dict[str, Any], faults: Faults
    ) -> None:
        scheduler = start({**entry, "max_queued_store_bytes": ROW_BYTES, "max_inflight_ops": 1})
        faults.inject("store", "delay", times=1, seconds=0.3)
        for n in range(4):
            scheduler.begin_store([n])
        scheduler.settle()
        assert scheduler.counters()["dropped_blocks:1:kvtier"] >= 1

    def test_a_read_only_tier_gives_and_takes_nothing(
        self, start: StartScheduler, entry: dict[str, Any], tmp_path: Path
    ) -> None:
        start(entry).store(range(4))
        reader = start({**entry, "read_only": True})
        assert reader.hits(range(4)) == 4
        reader.store(range(4, 8))
        assert len(list(tmp_path.rglob("*.bin"))) == 4

    def test_many_bytes_stored_and_none_loaded_are_warned_of_once(
        self,
        start: StartScheduler,
        entry: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr("kvtier.integrations.vllm.manager.SUSPICIOUS_BYTES", 0)
        writer, reader = start(entry), start(entry)
        for begin in range(0, 160, 16):  # five times the host buffer
            writer.store(range(begin, begin + 16))
        assert caplog.text.count("nothing was ever loaded") == 1
        caplog.clear()
        assert reader.hits([0]) == 1
        for begin in range(1000, 1160, 16):
            reader.store(range(begin, begin + 16))
        assert "nothing was ever loaded" not in caplog.text


class TestReset:
    def restarted(self, start: StartScheduler, entry: dict[str, Any]) -> int:
        """How many of 8 blocks an engine finds that starts now."""
        return start({**entry, "on_reset": "keep"}).hits(range(8))

    def test_blocks_are_kept_unless_the_operator_says_otherwise(
        self, start: StartScheduler, entry: dict[str, Any]
    ) -> None:
        scheduler = start(entry)
        scheduler.store(range(8))
        scheduler.reset()
        assert scheduler.hits(range(8)) == 8

    def test_deleted_blocks_are_gone_for_everybody(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        scheduler, other = start({**entry, "on_reset": "delete"}), start(entry)
        scheduler.store(range(8))
        assert other.hits(range(4)) == 4
        scheduler.reset()
        assert scheduler.hits(range(8)) == 0
        other.forget_primary()
        assert other.hits(range(8)) == 0
        assert self.restarted(start, entry) == 0
        scheduler.store(range(8))
        scheduler.forget_primary()
        assert scheduler.hits(range(8)) == 8

    def test_a_new_epoch_is_this_engines_alone(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        scheduler = start({**entry, "on_reset": "new_epoch"})
        scheduler.store(range(8))
        counted = scheduler.counters()
        scheduler.reset()
        assert scheduler.hits(range(8)) == 0
        scheduler.store(range(4))
        scheduler.forget_primary()
        assert scheduler.hits(range(8)) == 4
        assert self.restarted(start, entry) == 8
        # Counters go on across epochs.
        assert counted["stored_blocks:1:kvtier"] == 8
        after = scheduler.counters()
        assert (after["stored_blocks:1:kvtier"], after["loaded_blocks:1:kvtier"]) == (4, 4)
        scheduler.reset()
        assert scheduler.hits(range(8)) == 0

    @pytest.mark.parametrize("on_reset", ["keep", "new_epoch", "delete"])
    def test_jobs_in_flight_end_before_it(
        self, start: StartScheduler, entry: dict[str, Any], faults: Faults, on_reset: str
    ) -> None:
        scheduler = start({**entry, "on_reset": on_reset})
        faults.inject("store", "delay", times=4, seconds=0.05)
        scheduler.begin_store(range(4))
        scheduler.reset()
        assert not scheduler.manager.has_pending_work()
        assert scheduler.hits(range(4)) == (4 if on_reset == "keep" else 0)

    @pytest.mark.parametrize("on_reset", ["new_epoch", "delete"])
    def test_a_drain_that_is_no_reset_does_nothing(
        self, start: StartScheduler, entry: dict[str, Any], on_reset: str
    ) -> None:
        scheduler = start({**entry, "on_reset": on_reset})
        scheduler.store(range(8))
        scheduler.tier.drain_jobs()
        scheduler.shutdown()
        assert self.restarted(start, entry) == 8

    @pytest.mark.parametrize("on_reset", ["new_epoch", "delete"])
    def test_a_vllm_whose_resets_tell_nobody_is_refused(
        self,
        start: StartScheduler,
        entry: dict[str, Any],
        on_reset: str,
        vllm: SimpleNamespace,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        assert vllm.contract.resets_drain_tiers()
        monkeypatch.setattr(vllm.contract.TieringOffloadingManager, "reset_cache", lambda _self: None)
        with pytest.raises(kvtier.ConfigError, match="doesn't tell its tiers of a reset"):
            start({**entry, "on_reset": on_reset})
        start(entry)

    def test_one_that_cant_be_done_is_an_error_not_silence(
        self, start: StartScheduler, entry: dict[str, Any], tmp_path: Path
    ) -> None:
        scheduler = start({**entry, "on_reset": "new_epoch"})
        scheduler.store(range(4))
        moved = tmp_path.rename(tmp_path.with_name("moved"))
        try:
            with pytest.raises(kvtier.KvTierError):
                scheduler.reset()
        finally:
            moved.rename(tmp_path)
        assert scheduler.hits(range(4)) == 4
        scheduler.reset()
        assert scheduler.hits(range(4)) == 0


class TestEvents:
    def test_stored_and_removed_as_they_happen(
        self, start: StartScheduler, entry: dict[str, Any], tmp_path: Path, vllm: SimpleNamespace
    ) -> None:
        scheduler = start({**entry, "enable_kv_events": True, "locality": "REMOTE"}, events=True)
        scheduler.store(range(4))
        (stored,) = scheduler.events()
        assert sorted(stored.keys) == sorted(make_key(n) for n in range(4))
        assert (stored.removed, stored.locality) == (False, vllm.base.Locality.REMOTE)
        assert scheduler.events() == []
        scheduler.forget_primary()
        damage(block_file(tmp_path, 2))
        scheduler.hits(range(4))
        assert [(event.keys, event.removed) for event in scheduler.events()] == [([make_key(2)], True)]

    def test_also_of_blocks_that_were_there_already(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        start(entry).store(range(4))
        again = start({**entry, "enable_kv_events": True}, events=True)
        again.store(range(4))
        assert sorted(itertools.chain(*(event.keys for event in again.events()))) == sorted(map(make_key, range(4)))

    def test_never_of_blocks_that_failed(self, start: StartScheduler, entry: dict[str, Any], faults: Faults) -> None:
        scheduler = start({**entry, "enable_kv_events": True}, events=True)
        faults.inject("store", "fail", key=make_key(1), kind="io")
        scheduler.store(range(3))
        assert sorted(itertools.chain(*(event.keys for event in scheduler.events()))) == sorted(map(make_key, (0, 2)))

    @pytest.mark.parametrize(("here", "engine"), [(True, False), (False, True), (False, False)])
    def test_only_when_both_want_them(
        self,
        start: StartScheduler,
        entry: dict[str, Any],
        here: bool,
        engine: bool,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        scheduler = start({**entry, "enable_kv_events": here}, events=engine)
        scheduler.store(range(4))
        assert list(scheduler.tier.take_events()) == []
        assert ("enable_kv_events has no effect" in caplog.text) is (here and not engine)

    def test_a_reset_is_announced_by_the_engine_alone(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        scheduler = start({**entry, "enable_kv_events": True, "on_reset": "delete"}, events=True)
        scheduler.store(range(4))
        scheduler.events()
        scheduler.reset()
        assert scheduler.events() == []


class TestPool:
    """The same above a pool, which keeps within a bound."""

    ROW = 256 << 10

    @pytest.fixture
    def pool(self, entry: dict[str, Any]) -> dict[str, Any]:
        return {**entry, "layout": "packed", "max_bytes": 16 << 20, "segment_bytes": 1 << 20}

    def test_blocks_go_down_come_back_and_are_found_by_the_next_engine(
        self, start: StartScheduler, pool: dict[str, Any]
    ) -> None:
        first = start(pool)
        first.store(range(16))
        first.forget_primary()
        assert first.hits(range(20)) == 16
        first.shutdown()
        assert start(pool).hits(range(20)) == 16

    def test_unknown_blocks_are_a_miss_at_the_first_ask(
        self, start: StartScheduler, pool: dict[str, Any], vllm: SimpleNamespace
    ) -> None:
        scheduler = start(pool)
        context = scheduler.request()
        assert {scheduler.tier.lookup(make_key(n), context) for n in range(8)} == {vllm.base.LookupResult.MISS}

    def test_what_is_evicted_is_announced_and_no_hit(self, start: StartScheduler, pool: dict[str, Any]) -> None:
        scheduler = start({**pool, "enable_kv_events": True}, events=True, worker_bytes=self.ROW)
        stored, removed = set[bytes](), set[bytes]()
        for begin in range(0, 160, 16):  # 40 MiB through 16
            scheduler.store(range(begin, begin + 16))
            for event in scheduler.events():
                (removed if event.removed else stored).update(event.keys)
        assert stored == {make_key(n) for n in range(160)}
        assert removed >= {make_key(0), make_key(1)}
        scheduler.forget_primary()
        assert scheduler.ask([0, 159]) == {0: "MISS", 159: "HIT"}
        assert scheduler.counters()["resident_bytes:1:kvtier"] <= 16 << 20

    def test_a_reset_takes_its_blocks(self, start: StartScheduler, pool: dict[str, Any]) -> None:
        scheduler = start({**pool, "on_reset": "delete"})
        scheduler.store(range(8))
        scheduler.reset()
        assert scheduler.hits(range(8)) == 0
        scheduler.store(range(8))
        scheduler.forget_primary()
        assert scheduler.hits(range(8)) == 8


class TestMetrics:
    def test_what_is_counted_is_defined(
        self, start: StartScheduler, entry: dict[str, Any], tmp_path: Path, vllm: SimpleNamespace
    ) -> None:
        scheduler = start(entry)
        definitions = vllm.Spec.build_metric_definitions(scheduler.spec.extra_config)
        scheduler.store(range(8))
        scheduler.forget_primary()
        damage(block_file(tmp_path, 0))
        scheduler.hits(range(12))
        data = scheduler.manager.get_stats().data
        ours = {name for name in data["data"] if name.startswith("kvtier:")}
        assert {"kvtier:lookup_hits", "kvtier:stored_bytes", "kvtier:failed_blocks", "kvtier:job_seconds"} <= ours
        for name in ours:
            kind = type(definitions[name]).__name__.removeprefix("Offloading").removesuffix("Metadata").lower()
            assert data["types"][name] == kind
            assert {len(labels) for labels in data["data"][name]} == {len(definitions[name].labelnames)}

    def test_each_change_is_told_once(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        scheduler = start(entry)
        scheduler.store(range(8))
        first = scheduler.counters()
        assert (first["stored_blocks:1:kvtier"], first["stored_bytes:1:kvtier"]) == (8, 8 * ROW_BYTES)
        assert first["resident_bytes:1:kvtier"] == 8 * ROW_BYTES
        assert scheduler.counters() == {}
        scheduler.store(range(8, 10))
        assert scheduler.counters()["stored_blocks:1:kvtier"] == 2

    def test_two_tiers_keep_theirs_apart(self, start: StartScheduler, tmp_path: Path) -> None:
        entries = []
        for name in "ab":
            (tmp_path / name).mkdir()
            entries.append({"type": "kvtier", "url": f"file://{tmp_path / name}"})
        scheduler = start(*entries)
        scheduler.store(range(8))
        counters = scheduler.counters()
        assert (counters["stored_blocks:1:kvtier"], counters["stored_blocks:2:kvtier"]) == (8, 8)

    def test_prometheus_takes_them(self, entry: dict[str, Any], vllm: SimpleNamespace) -> None:
        prometheus = pytest.importorskip("prometheus_client")
        registry = prometheus.CollectorRegistry()
        classes = {"Counter": prometheus.Counter, "Gauge": prometheus.Gauge, "Histogram": prometheus.Histogram}
        for name, definition in vllm.Tier.build_metric_definitions(entry).items():
            kind = type(definition).__name__.removeprefix("Offloading").removesuffix("Metadata")
            buckets = {"buckets": definition.buckets} if kind == "Histogram" else {}
            classes[kind](name, definition.documentation, definition.labelnames, registry=registry, **buckets)

    def test_config_info_is_declared_and_fixed(
        self, start: StartScheduler, entry: dict[str, Any], vllm: SimpleNamespace
    ) -> None:
        tier = start({**entry, "on_reset": "new_epoch"}, tp_size=2, replicated=True).tier
        info = tier.config_info()
        assert tuple(info) == vllm.Tier.config_info_keys(entry)
        assert (info["kvtier_rows"], info["kvtier_kind"], info["kvtier_verify"]) == ("replicated", "kvtier", "always")
        if hasattr(vllm.Spec, "config_info_keys"):
            assert set(info) < set(vllm.Spec.config_info_keys({"secondary_tiers": [entry]}))


class TestResults:
    def test_time_and_bytes_are_what_moved(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        scheduler = start(entry)
        seen: list[Any] = []
        take = scheduler.tier.get_finished_jobs

        def take_and_see() -> list[Any]:
            jobs = take()
            seen.extend(jobs)
            return list(jobs)

        scheduler.tier.get_finished_jobs = take_and_see
        scheduler.store(range(4))
        scheduler.forget_primary()
        scheduler.store(range(4))
        scheduler.forget_primary()
        scheduler.hits(range(4))
        assert [job.transfer_bytes for job in seen] == [4 * ROW_BYTES, 0, 4 * ROW_BYTES]
        assert all(job.success and job.successful_keys is None and 0 < job.transfer_time < 60 for job in seen)

    def test_an_idle_engine_is_not_kept_stepping(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        scheduler = start(entry)
        scheduler.store(range(4))
        assert scheduler.tier.has_pending_work() is False
        assert scheduler.manager.has_pending_work() is False


class TestShutdown:
    def test_vllm_gets_its_rows_back(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        scheduler = start(entry)
        scheduler.store(range(8))
        scheduler.shutdown()  # releases the view and unmaps the region, which fails while somebody exports them
        with pytest.raises(ValueError, match="released"):
            scheduler.tier._rows.nbytes  # noqa: B018
        scheduler.tier.shutdown()

    def test_with_jobs_under_way(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        scheduler = start(entry)
        for begin in range(0, 32, 8):
            scheduler.begin_store(range(begin, begin + 8))
        scheduler.shutdown()

    def test_rows_that_the_storage_still_holds_stay_where_they_are(
        self, start: StartScheduler, entry: dict[str, Any], faults: Faults, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kvtier.integrations.vllm.manager._SHUTDOWN_TIMEOUT", 0.2)
        scheduler = start(entry)
        faults.inject("store", "stall_in_row", times=1)
        scheduler.begin_store([1])
        scheduler.step()
        while not faults.stalled:
            time.sleep(0.001)
        with pytest.raises(kvtier.DeadlineExceededError, match="still stuck"):
            scheduler.shutdown()
        assert np.asarray(scheduler.tier._rows).shape[1] == ROW_BYTES  # still mapped
        faults.release()
        scheduler.shutdown()

    def test_a_tier_that_was_dropped_leaves_nothing_open(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        from kvtier.integrations.vllm import manager  # noqa: PLC0415

        start(entry).shutdown()
        gc.collect()
        assert len(manager._open) == 0
