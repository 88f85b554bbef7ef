"""Whose blocks an engine reads: what follows from vLLM's own description of it, and what the operator adds."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import kvtier
from kvtier import Identity
from kvtier.integrations.vllm.identity import RowLayout, covered, identity_of, not_stated, row_layout
from kvtier.integrations.vllm.options import VllmOptions


def spec(**changes: Any) -> SimpleNamespace:
    """vLLM's description of an engine whose workers keep 8 KiB of a block each."""
    facts: dict[str, Any] = {
        "name": "org/model",
        "dtype": "bfloat16",
        "tokens_per_hash": 16,
        "chunk": 1,
        "layers": ("layers.0.attn", "layers.1.attn"),
        "tp": 1,
        "pp": 1,
        "agnostic": False,
        "replicated": False,
        "canonical": False,
        "layout": "LBNHC",
        "worker_bytes": 8192,
        "one_copy": None,
    } | changes
    config = SimpleNamespace(
        groups=[SimpleNamespace(tokens_per_block=16, layer_names=facts["layers"], group_id=0)],
        worker_kv_bytes_per_block=facts["worker_bytes"],
        model=SimpleNamespace(name=facts["name"], dtype=facts["dtype"]),
        cache=SimpleNamespace(tokens_per_hash=facts["tokens_per_hash"], blocks_per_chunk=facts["chunk"]),
        parallel=SimpleNamespace(
            rank=0,
            world_size=facts["tp"] * facts["pp"],
            tp_size=facts["tp"],
            pp_size=facts["pp"],
            pcp_size=1,
            dcp_size=1,
            is_parallelism_agnostic=facts["agnostic"],
        ),
        replicated_layout=facts["replicated"],
        canonical_layout=facts["canonical"],
        kv_cache_layout=facts["layout"],
    )
    one_copy = facts["replicated"] if facts["one_copy"] is None else facts["one_copy"]
    return SimpleNamespace(config=config, blocks_per_chunk=facts["chunk"], replicated_layout=one_copy)


def identity(
    stated: dict[str, Any] | None = None, page: int = 4096, epoch: str | None = None, **changes: Any
) -> Identity:
    """The identity of an engine whose host has pages of that size."""
    described = spec(**changes)
    copies = 1 if described.replicated_layout else described.config.parallel.world_size
    used = described.config.worker_kv_bytes_per_block * copies * described.blocks_per_chunk
    options = VllmOptions.of({"url": "memory://"} | (stated or {}))
    return identity_of(described, options, -(-used // page) * page, epoch)


def llama(tp: int = 1, **changes: Any) -> Identity:
    """An engine of sharded heads, whose flag says that rows are agnostic."""
    return identity(tp=tp, agnostic=True, worker_bytes=8192 // tp, **changes)


def mla(tp: int = 1, stated: dict[str, Any] | None = None, **changes: Any) -> Identity:
    """An engine of MLA latents: one copy, except that vLLM leaves one worker out."""
    return identity(stated, tp=tp, replicated=tp > 1, **changes)


def canonical(tp: int = 1, **changes: Any) -> Identity:
    """An engine of sharded heads in the canonical layout, certified."""
    return identity(**{"tp": tp, "canonical": True, "agnostic": True, "worker_bytes": 8192 // tp} | changes)


class TestWhoShares:
    def test_sharded_heads_in_the_direct_layout_never_share_across_tp_whatever_the_flag_says(self) -> None:
        assert len({llama(tp).fingerprint() for tp in (1, 2, 4, 8)}) == 4
        assert llama(2) == identity(tp=2, agnostic=False, worker_bytes=4096)

    def test_replicated_rows_are_shared_by_all_that_the_engine_says_have_them(self) -> None:
        shared = {mla(tp).fingerprint() for tp in (2, 4, 8)}
        assert len(shared) == 1
        assert mla(1).fingerprint() not in shared
        assert mla(2).rank == 0

    def test_one_worker_joins_them_when_the_operator_says_that_it_may(self) -> None:
        assert mla(1, {"replicated": True}).fingerprint() == mla(2).fingerprint() == mla(4).fingerprint()
        assert mla(2, {"replicated": True}) == mla(2)

    def test_and_they_can_be_kept_apart(self) -> None:
        apart = [mla(tp, {"replicated": False}).fingerprint() for tp in (1, 2, 4)]
        assert len({*apart, mla(2).fingerprint()}) == 4

    def test_canonical_rows_are_shared_where_they_are_certified(self) -> None:
        assert len({canonical(tp).fingerprint() for tp in (1, 2, 4)}) == 1
        uncertified = {canonical(tp, agnostic=False).fingerprint() for tp in (1, 2, 4)}
        assert len({*uncertified, canonical(1).fingerprint()}) == 4

    def test_rows_of_different_layouts_never_share(self) -> None:
        every = [llama(1), mla(2), canonical(1), canonical(1, agnostic=False), canonical(2, replicated=True)]
        assert len({one.fingerprint() for one in every}) == len(every)

    @pytest.mark.parametrize("replicated", [None, True])
    def test_a_host_buffer_with_a_copy_for_each_worker_is_not_one_copy(self, replicated: bool | None) -> None:
        described = spec(tp=2, replicated=True, one_copy=False)
        if replicated:
            with pytest.raises(kvtier.ConfigError, match="the parts of 2 workers"):
                row_layout(described, replicated)
        else:
            assert row_layout(described) is RowLayout.JOINED

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"tp": 2}, "a row holds the parts of 2 workers, one after another, and not one copy"),
            ({"tp": 2, "agnostic": True}, "the parts of 2 workers"),
            ({"pp": 2}, "the parts of 2 workers"),
            ({"canonical": True, "agnostic": True}, "canonical rows are not one copy, or it would say so"),
        ],
    )
    def test_replicated_is_refused_where_rows_are_not_one_copy(self, changes: dict[str, Any], reason: str) -> None:
        with pytest.raises(kvtier.ConfigError, match=reason):
            identity({"replicated": True}, **changes)


CHANGES: list[dict[str, Any]] = [
    {"name": "org/other"},
    {"dtype": "float16"},
    {"tokens_per_hash": 8},
    {"chunk": 2},
    {"layers": ("layers.0.attn",)},
    {"layers": ("layers.1.attn", "layers.0.attn")},
    {"layout": "LBHNC"},
    {"layout": None},
    {"worker_bytes": 16384},
    {"worker_bytes": 8191},  # in rows of the same length
    {"pp": 2},
    {"stated": {"model_id": "name"}},
    {"stated": {"model_revision": "abc"}},
    {"stated": {"rope": {"factor": 2}}},
    {"stated": {"kv_scales": [1]}},
    {"stated": {"model_runner": "v2"}},
    {"stated": {"namespace": "team"}},
    {"epoch": "epoch-1"},
    {"stated": {"namespace": "team"}, "epoch": "epoch-1"},
]


class TestDigest:
    def test_whatever_changes_bytes_changes_it(self) -> None:
        every = [identity(), *(identity(**change) for change in CHANGES)]
        assert len({one.fingerprint() for one in every}) == len(every)

    def test_it_is_what_it_always_was(self) -> None:
        assert identity().base_dir() == "org_model_4c83e62b203f"
        assert mla(2).base_dir() == "org_model_092b1b3713f6"
        assert canonical(2).base_dir() == "org_model_736bd0fce906"
        stated = {"model_id": "m", "model_revision": "r", "rope": {"factor": 2.0}, "namespace": "n"}
        assert identity(stated, tp=2, chunk=4).base_dir() == "m_e5a9d49be87f"

    def test_the_size_of_a_hosts_memory_pages_does_not_matter(self) -> None:
        for worker_bytes in (4096, 5000, 8192, 70_000):
            small, large = (identity(worker_bytes=worker_bytes, page=page) for page in (4096, 65536))
            assert small.fingerprint() == large.fingerprint()
            assert (small.payload_bytes, large.payload_bytes) == (None, -(-worker_bytes // 4096) * 4096)

    def test_an_unresolved_dtype_is_refused(self) -> None:
        with pytest.raises(kvtier.ConfigError, match="give the resolved type"):
            identity(dtype="auto")

    @pytest.mark.parametrize("namespace", ["../x", "a/b"])
    def test_a_namespace_is_no_path(self, namespace: str) -> None:
        with pytest.raises(kvtier.InvalidInputError, match="it is a name, not a path"):
            identity({"namespace": namespace})


class TestNativeNaming:
    """`compat="vllm"` follows vLLM's own rule, right or wrong."""

    def test_it_is_the_mapper_that_vllms_own_tiers_make(self) -> None:
        engines: list[dict[str, Any]] = [
            {},
            {"tp": 2},
            {"tp": 2, "agnostic": True},
            {"tp": 2, "replicated": True},
            {"chunk": 4},
        ]
        for changes in engines:
            made = identity({"compat": "vllm"}, **changes)
            native = kvtier.FileMapper.from_offloading_spec("/kv", spec(**changes), changes.get("chunk", 1), True)
            assert made.file_mapper("/kv") == native
            assert native.base_path == f"/kv/{made.base_dir('vllm')}"

    def test_so_it_shares_sharded_heads_across_tp(self) -> None:
        one, two = (llama(tp, stated={"compat": "vllm"}).fingerprint("vllm") for tp in (1, 2))
        assert one == two


class TestWhatIsSaid:
    def test_what_is_covered_is_in_one_line(self) -> None:
        line = covered(mla(2, {"model_revision": "abc"}), None)
        assert "\n" not in line
        for part in (
            "model_name=org/model",
            "dtype=bfloat16",
            "tp_size=any (2 here)",
            "kv_cache_groups=[2 layers of 16 tokens]",
            "row_bytes=8192",
            "kv_cache_layout=LBNHC",
            "model_revision=abc",
        ):
            assert part in line
        assert "namespace" not in line

    def test_what_is_not_stated_is_named_with_its_danger(self) -> None:
        missing = not_stated(identity(layout=None))
        assert [one.split(" ")[0] for one in missing] == ["kv_cache_layout", "model_revision", "rope", "model_runner"]
        assert "model_revision (KV computed by other weights of the same name)" in missing
        stated = {"model_revision": "r", "rope": {}, "model_runner": "v1"}
        assert not_stated(identity(stated)) == []

    def test_scales_matter_where_values_are_quantised(self) -> None:
        assert any(one.startswith("kv_scales") for one in not_stated(identity(dtype="fp8")))
        assert not any(one.startswith("kv_scales") for one in not_stated(identity({"kv_scales": 1}, dtype="fp8")))

    def test_a_path_is_no_models_name(self) -> None:
        assert any(one.startswith("model_id") for one in not_stated(identity(name="/models/llama")))
        assert not any(one.startswith("model_id") for one in not_stated(identity({"model_id": "m"}, name="/models/x")))


def test_reading_a_spec_and_options_loads_no_engine() -> None:
    program = (
        "import sys, kvtier.integrations.vllm, kvtier.integrations.vllm.identity, kvtier.integrations.vllm.entry; "
        "sys.exit(any(name.split('.')[0] in ('vllm', 'torch') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
