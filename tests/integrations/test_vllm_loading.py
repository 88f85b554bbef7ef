"""How vLLM comes to the tier: by its name, by its module, twice, and in versions that were not there yet."""

import importlib.metadata
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvtier

from .conftest import StartScheduler, offloading_config


class TestByName:
    def test_the_entry_point_is_installed(self) -> None:
        (point,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="kvtier")
        assert point.value == "kvtier.integrations.vllm:register"

    def test_registering_again_is_harmless(self, vllm: SimpleNamespace) -> None:
        register = importlib.metadata.entry_points(group="vllm.general_plugins")["kvtier"].load()
        register()
        register()
        assert vllm.Factory.get_tier_class({"type": "kvtier"}) is vllm.Tier

    def test_it_loads(self, start: StartScheduler, entry: dict[str, Any], vllm: SimpleNamespace) -> None:
        assert isinstance(start(entry).tier, vllm.Tier)

    @pytest.mark.slow  # another import of vLLM
    def test_vllms_own_loader_registers_it(self) -> None:
        program = (
            "from vllm.plugins import load_general_plugins; load_general_plugins(); load_general_plugins(); "
            "from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory as F; import sys; "
            "assert 'kvtier.integrations.vllm.manager' not in sys.modules; "
            "print(F.get_tier_class({'type': 'kvtier'}).__name__)"
        )
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert ended.stdout.strip().endswith("KvTierSecondaryTierManager")


def test_by_module(start: StartScheduler, entry: dict[str, Any], vllm: SimpleNamespace) -> None:
    by_module = {**entry, "type": "KvTierSecondaryTierManager", "module_path": "kvtier.integrations.vllm"}
    scheduler = start(by_module)
    assert isinstance(scheduler.tier, vllm.Tier)
    scheduler.store(range(4))
    scheduler.forget_primary()
    assert scheduler.hits(range(5)) == 4


class TestOptions:
    def test_a_misspelt_one_is_refused_and_the_rows_are_free(
        self, start: StartScheduler, entry: dict[str, Any]
    ) -> None:
        # vLLM releases its rows when a tier can't be made, and can't if the tier keeps them.
        with pytest.raises(kvtier.ConfigError, match="there is no option 'verfy'; accepted are url"):
            start({**entry, "verfy": "always"})

    def test_a_place_that_is_none_is_refused_and_the_rows_are_free(self, start: StartScheduler) -> None:
        with pytest.raises(kvtier.KvTierError, match="/nowhere"):
            start({"type": "kvtier", "url": "file:///nowhere/at/all"})

    def test_what_the_framework_adds_is_accepted(
        self, vllm: SimpleNamespace, entry: dict[str, Any], start: StartScheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make = vllm.Tier.__init__
        monkeypatch.setattr(vllm.Tier, "__init__", lambda self, **kw: make(self, **kw, tier_index=0, sink=object()))
        assert start(entry).tier.config_info()

    def test_the_backpressure_detector_reaches_vllm(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        scheduler = start({**entry, "backpressure": {"backpressure_cls": "EMABackpressureDetector"}})
        assert scheduler.tier.bp_detector is not None
        scheduler.store(range(4))
        assert scheduler.tier.bp_detector.stats["store_latency_ema"] is not None

    @pytest.mark.parametrize("locality", ["LOCAL", "REMOTE", None])
    def test_locality_is_as_configured(
        self, start: StartScheduler, entry: dict[str, Any], vllm: SimpleNamespace, locality: str | None
    ) -> None:
        tier = start({**entry, "locality": locality} if locality else entry).tier
        assert tier.locality == (vllm.base.Locality(locality) if locality else None)
        assert tier.medium is vllm.base.Medium.STORAGE

    def test_rows_that_are_not_one_copy_cant_be_stated_so(self, start: StartScheduler, entry: dict[str, Any]) -> None:
        with pytest.raises(kvtier.ConfigError, match="the parts of 2 workers"):
            start({**entry, "replicated": True}, tp_size=2)


class TestVersions:
    def test_tested_ones_load_without_a_word(
        self, vllm: SimpleNamespace, start: StartScheduler, entry: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        assert vllm.version.startswith(vllm.contract.TESTED)
        start(entry)
        assert not any("was tested with" in message for message in caplog.messages)

    def test_a_newer_one_is_warned_of(
        self, vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(vllm.contract, "installed", lambda: "0.41.2")
        vllm.contract.say_if_untested()
        assert caplog.messages == ["kvtier was tested with vLLM 0.32 and 0.33; this is 0.41.2"]

    def test_one_that_asks_for_more_is_refused_in_one_sentence(self, vllm: SimpleNamespace) -> None:
        newer = type("Newer", (vllm.Tier,), {})
        newer.__abstractmethods__ = frozenset({"poll_remote"})  # type: ignore[attr-defined]
        with pytest.raises(ImportError, match="it asks for poll_remote, which this kvtier doesn't know"):
            vllm.contract.check_complete(newer)

    @pytest.mark.slow  # another import of vLLM
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ("del base.Medium", "cannot import name 'Medium'"),
            ("base.ReqContext.__dataclass_fields__.pop('req_id')", "its ReqContext has no req_id"),
        ],
    )
    def test_one_that_lacks_something_says_what(self, change: str, reason: str) -> None:
        program = (
            f"import vllm.v1.kv_offload.tiering.manager, vllm.v1.kv_offload.base as base; {change}; "
            "from kvtier.integrations.vllm import KvTierSecondaryTierManager"
        )
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        last = ended.stderr.strip().splitlines()[-1]
        assert last.startswith("ImportError: kvtier's tier can't be used in vLLM ")
        assert reason in last
        assert "It was tested with vLLM 0.32 and 0.33" in last


class TestWhatIsSaid:
    def test_one_line_of_what_is_covered_and_one_of_what_is_not(
        self, start: StartScheduler, entry: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "kvtier")
        scheduler = start(entry)
        (info,) = (r for r in caplog.records if r.levelno == logging.INFO and r.name.startswith("kvtier.integrations"))
        directory = next(path for path in tmp_path.iterdir() if path.name.endswith("_r0"))
        assert str(directory) in info.message
        assert "model_name=org/model, tokens_per_hash=16" in info.message
        (warning,) = (record for record in caplog.records if record.levelno == logging.WARNING)
        assert "not stated, so engines that differ in it read each other's blocks: model_revision (" in warning.message
        assert scheduler.tier.config_info()["kvtier_place"] in info.message

    def test_nothing_when_all_is_stated(
        self, start: StartScheduler, entry: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        start({**entry, "model_revision": "r", "rope": {}, "model_runner": "v1"})
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

    def test_vllms_own_naming_of_sharded_heads_is_warned_of(
        self, start: StartScheduler, entry: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        start({**entry, "compat": "vllm"}, agnostic=True)
        assert "don't change the TP size on this root" in caplog.text

    def test_random_seeds_are_warned_of_at_the_first_request(
        self,
        start: StartScheduler,
        entry: dict[str, Any],
        vllm: SimpleNamespace,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        scheduler = start(entry)
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
        monkeypatch.setattr(vllm.contract, "get_none_hash_seed", lambda: "5f3a")
        scheduler.request()
        scheduler.request()
        assert caplog.text.count("block hashes are seeded at random") == 1

    @pytest.mark.parametrize("seed", ["0", None])
    def test_and_others_are_not(
        self,
        start: StartScheduler,
        entry: dict[str, Any],
        seed: str | None,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
        if seed is not None:
            monkeypatch.setenv("PYTHONHASHSEED", seed)
        start(entry).request()
        assert "seeded at random" not in caplog.text


def test_records_go_where_vllms_go_unless_somebody_saw_to_it(
    vllm: SimpleNamespace,  # noqa: ARG001 - loads it
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvtier.integrations.vllm.manager import _log_where_vllm_does  # noqa: PLC0415

    monkeypatch.setattr(logging.getLogger("vllm"), "handlers", [logging.NullHandler()])
    ours = logging.getLogger("kvtier")
    try:
        _log_where_vllm_does()
        assert ours.handlers == []  # pytest handles all records
        ours.propagate = False
        _log_where_vllm_does()
        assert ours.handlers == logging.getLogger("vllm").handlers != []
    finally:
        ours.handlers, ours.propagate = [], True
        ours.setLevel(logging.NOTSET)


def test_the_same_engine_has_the_same_digest_in_every_version(vllm: SimpleNamespace) -> None:
    from kvtier.integrations.vllm.identity import identity_of  # noqa: PLC0415
    from kvtier.integrations.vllm.options import VllmOptions  # noqa: PLC0415

    spec = vllm.Spec(offloading_config(vllm, tp_size=2, blocks_per_chunk=4))
    identity = identity_of(spec, VllmOptions.of({"url": "memory://"}), 65536)
    assert identity.base_dir() == "org_model_77e0e990a28b"
