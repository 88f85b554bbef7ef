"""The mapper gives the fields and paths of an engine's own tiers."""

import copy
import hashlib
import json
import pathlib
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kvtier
from kvtier import FileMapper, Identity

VECTORS: list[dict[str, Any]] = json.loads((pathlib.Path(__file__).parent / "vectors" / "identity.json").read_text())
MODEL = "deepseek-ai/DeepSeek-V3"
DTYPE = "fp8_ds_mla"
GROUPS: list[dict[str, Any]] = [
    {"tokens_per_block": 64, "layer_names": ["layers.0.attn", "layers.1.attn"]},
    {"tokens_per_block": 128, "layer_names": ["layers.2.attn"]},
]

any_text = st.text(st.characters(exclude_categories=()), max_size=12)
any_number = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()


def mapper(**changes: Any) -> FileMapper:
    arguments: dict[str, Any] = {
        "root_dir": "/kv",
        "model_name": "m",
        "tokens_per_hash": 16,
        "blocks_per_file": 1,
        "tp_size": 1,
        "pp_size": 1,
        "pcp_size": 1,
        "dcp_size": 1,
        "rank": 0,
        "dtype": "float16",
    }
    return FileMapper(**{**arguments, **changes})


def digest_of(fields: dict[str, Any]) -> str:
    """By Python alone."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_mapper_gives_what_the_engines_own_gives(vector: dict[str, Any]) -> None:
    made = FileMapper(**vector["arguments"])
    assert made.fields == made.get_run_config() == vector["fields"]
    assert kvtier.canonical_json(made.fields) == vector["canonical_json"]
    assert (made.base_path, made.rank) == (vector["base_path"], vector["rank"])
    assert made.get_config_file_path() == vector["config_path"]
    for block in vector["blocks"]:
        key = bytes.fromhex(block["hash"]) + block["group"].to_bytes(4, "big")
        assert made.get_file_name(key) == block["path"]


class TestFileMapper:
    def test_attributes_are_copies(self) -> None:
        made = mapper()
        made.fields["model_name"] = "another"
        made.get_run_config().clear()
        assert made.fields["model_name"] == "m"

    def test_defaults_are_the_engines(self) -> None:
        assert mapper() == mapper(
            kv_cache_groups=None,
            inference_engine="vllm",
            parallel_agnostic=False,
            replicated_layout=False,
            canonical_format=None,
        )
        assert mapper(kv_cache_groups=[]) == mapper()
        positional = FileMapper("/kv", "m", 16, 1, 1, 1, 1, 1, 0, "float16", None, "vllm", False, False, None)
        assert positional == mapper()

    @pytest.mark.parametrize("value", [True, False, None, 0, -1, 1.0, 2**80, "16", [16]])
    def test_whatever_json_can_spell_is_hashed_as_it_stands(self, value: Any) -> None:
        made = mapper(tokens_per_hash=value)
        assert kvtier.canonical_json(made.fields) == json.dumps(
            {**mapper().fields, "tokens_per_hash": value}, sort_keys=True, separators=(",", ":")
        )
        assert type(made.fields["tokens_per_hash"]) is type(value)

    def test_nothing_is_refused_that_the_engines_mapper_takes(self) -> None:
        made = mapper(model_name="", dtype="auto", pp_size=4, replicated_layout=True, parallel_agnostic=True, rank=-7)
        assert made.rank == 0
        assert made.fields["pp_size"] == 1
        assert mapper(rank=-7).get_file_name(bytes(8)) == f"{mapper().base_path}_r-7/000/00_g0/00000000.bin"
        assert len(mapper(model_name="x" * 10_000).base_path) > 10_000
        assert "\0" in mapper(model_name="a\0b").base_path

    @given(
        model_name=any_text,
        tokens_per_hash=any_number,
        tp_size=any_number,
        rank=st.integers(),
        dtype=any_text,
        groups=st.lists(st.fixed_dictionaries({"tokens_per_block": any_number, "layer_names": st.lists(any_text)})),
        agnostic=st.booleans(),
        replicated=st.booleans(),
        canonical_format=st.none() | any_text,
    )
    def test_any_arguments_give_what_the_format_says(
        self,
        *,
        model_name: str,
        tokens_per_hash: Any,
        tp_size: Any,
        rank: int,
        dtype: str,
        groups: list[Any],
        agnostic: bool,
        replicated: bool,
        canonical_format: str | None,
    ) -> None:
        made = mapper(
            model_name=model_name,
            tokens_per_hash=tokens_per_hash,
            tp_size=tp_size,
            rank=rank,
            dtype=dtype,
            kv_cache_groups=groups,
            parallel_agnostic=agnostic,
            replicated_layout=replicated,
            canonical_format=canonical_format,
        )
        fields = {
            "model_name": model_name,
            "tokens_per_hash": tokens_per_hash,
            "blocks_per_file": 1,
            "tp_size": 1 if agnostic else tp_size,
            "pp_size": 1,
            "pcp_size": 1,
            "dcp_size": 1,
            "dtype": dtype,
            "kv_cache_groups": groups,
            "inference_engine": "vllm",
            **({} if agnostic else {"parallel_agnostic": False}),
            **({"replicated_layout": True} if replicated else {}),
            **({} if canonical_format is None else {"canonical_format": canonical_format}),
        }
        assert made.fields == fields
        assert made.base_path == f"/kv/{model_name.replace('/', '_')}_{digest_of(fields)[:12]}"
        assert made.rank == (0 if agnostic else rank)

    def test_dtypes_are_taken_by_their_text(self) -> None:
        assert mapper(dtype=torch.bfloat16).fields["dtype"] == "torch.bfloat16"
        assert mapper(dtype=np.dtype("float16")) == mapper()
        assert mapper(dtype=None).fields["dtype"] == "None"

    def test_roots_are_taken_as_they_stand(self) -> None:
        name = mapper().base_path.removeprefix("/kv/")
        for root, path in [("/kv/", f"/kv//{name}"), ("", f"/{name}"), (".", f"./{name}"), ("a b/é", f"a b/é/{name}")]:
            assert mapper(root_dir=root).base_path == path
        assert mapper(root_dir=pathlib.Path("/kv")) == mapper()

    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("root_dir", b"/kv"),
            ("root_dir", 3),
            ("rank", "0"),
            ("rank", True),
            ("rank", 1.0),
            ("pp_size", object()),
            ("model_name", 3),
            ("inference_engine", None),
        ],
    )
    def test_what_has_no_spelling_is_refused_by_name(self, argument: str, value: object) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=f"{argument} is .* accepted"):
            mapper(**{argument: value})

    def test_lone_surrogates_have_a_path(self) -> None:
        made = mapper(model_name="a\ud800/b", root_dir="/\udcff")
        assert made.base_path == f"/\udcff/a\ud800_b_{digest_of(made.fields)[:12]}"
        assert made.get_file_name(bytes(36)).startswith(made.base_path)

    @pytest.mark.parametrize("hash_bytes", [0, 1, 2, 65, 200])
    def test_hashes_outside_3_to_64_bytes_are_refused(self, hash_bytes: int) -> None:
        with pytest.raises(kvtier.InvalidInputError, match="3 to 64 bytes"):
            mapper().get_file_name(bytes(hash_bytes + 4))

    @given(st.binary(min_size=3, max_size=64), st.integers(0, 2**32 - 1))
    def test_block_paths(self, block_hash: bytes, group: int) -> None:
        key = block_hash + group.to_bytes(4, "big")
        digits = block_hash.hex()
        path = f"/{digits[:3]}/{digits[3:5]}_g{group}/{digits}.bin"
        assert mapper(rank=3).get_file_name(key) == f"{mapper().base_path}_r3{path}"

    def test_equal_mappers_give_equal_paths(self) -> None:
        assert mapper() == mapper()
        assert hash(mapper()) == hash(mapper())
        assert mapper() != mapper(rank=1)
        assert mapper() != mapper(root_dir="/other")
        assert mapper(parallel_agnostic=True, tp_size=2) == mapper(parallel_agnostic=True, rank=5)
        assert mapper() != "mapper"

    def test_mappers_travel(self) -> None:
        made = mapper(model_name="a/\ud800é", kv_cache_groups=GROUPS, tp_size=2, rank=1, canonical_format="v1-nhd")
        for travelled in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):  # noqa: S301 - made here
            assert travelled == made
            assert travelled.fields == made.fields

    def test_mappers_are_frozen(self) -> None:
        with pytest.raises(AttributeError):
            mapper().rank = 3  # type: ignore[misc]

    def test_peers_compare_run_configs(self) -> None:
        ours, theirs = mapper(tp_size=2), mapper(tp_size=4)
        answer = ours.compatible_with(theirs.get_run_config())
        assert not answer
        assert [str(difference) for difference in answer.differences] == ["tp_size: 2 | 4"]
        assert ours.compatible_with(mapper(tp_size=2, rank=1, root_dir="/x"))
        assert ours.diff(theirs) == list(ours.compatible_with(theirs).differences)
        assert (ours.fingerprint() == theirs.fingerprint()) is False
        assert ours.fingerprint() == digest_of(ours.fields)
        with pytest.raises(kvtier.InvalidInputError, match="a FileMapper or a run config"):
            ours.compatible_with(3)  # type: ignore[arg-type]


def offloading_spec(**changes: Any) -> SimpleNamespace:
    """What vLLM 0.33 hands to a tier; `dropped` attributes are missing."""
    facts: dict[str, Any] = {
        "tp_size": 2,
        "rank": 1,
        "is_parallelism_agnostic": False,
        "replicated_layout": True,
        "canonical_layout": False,
        "kv_cache_layout": "LBNHC",
        "dropped": (),
        **changes,
    }
    parallel = SimpleNamespace(
        rank=facts["rank"],
        world_size=facts["tp_size"],
        tp_size=facts["tp_size"],
        pp_size=1,
        pcp_size=1,
        dcp_size=1,
        is_parallelism_agnostic=facts["is_parallelism_agnostic"],
    )
    groups = [
        SimpleNamespace(tokens_per_block=g["tokens_per_block"], layer_names=tuple(g["layer_names"]), group_id=i)
        for i, g in enumerate(GROUPS)
    ]
    config = SimpleNamespace(
        groups=tuple(groups),
        model=SimpleNamespace(name=MODEL, dtype=DTYPE),
        cache=SimpleNamespace(tokens_per_hash=64, blocks_per_chunk=8),
        parallel=parallel,
        replicated_layout=facts["replicated_layout"],
        canonical_layout=facts["canonical_layout"],
        kv_cache_layout=facts["kv_cache_layout"],
    )
    for path in facts["dropped"]:
        *parts, last = path.split(".")
        owner = config
        for part in parts:
            owner = getattr(owner, part)
        delattr(owner, last)
    return SimpleNamespace(config=config)


class TestOffloadingSpec:
    @pytest.mark.parametrize("opted_in", [True, False])
    @pytest.mark.parametrize("agnostic", [True, False])
    @pytest.mark.parametrize("replicated", [True, False])
    def test_collapsing_needs_the_engines_word_and_the_callers(
        self, *, opted_in: bool, agnostic: bool, replicated: bool
    ) -> None:
        spec = offloading_spec(is_parallelism_agnostic=agnostic, replicated_layout=replicated)
        made = FileMapper.from_offloading_spec("/kv", spec, 8, opted_in)
        expected = FileMapper(
            "/kv",
            MODEL,
            64,
            8,
            2,
            1,
            1,
            1,
            1,
            DTYPE,
            kv_cache_groups=GROUPS,
            parallel_agnostic=opted_in and (agnostic or replicated),
            replicated_layout=opted_in and replicated,
        )
        assert made == expected
        by_identity = Identity.from_offloading_spec(spec, 8, opted_in).file_mapper("/kv")
        assert by_identity == expected

    def test_replicated_rows_share_across_tp_sizes_only_when_opted_in(self) -> None:
        specs = [offloading_spec(tp_size=tp, rank=rank) for tp in (2, 4, 8) for rank in (0, tp - 1)]
        shared = {FileMapper.from_offloading_spec("/kv", spec, parallel_agnostic=True) for spec in specs}
        assert len(shared) == 1
        only = shared.pop()
        assert only.rank == 0
        assert "parallel_agnostic" not in only.fields
        assert len({FileMapper.from_offloading_spec("/kv", spec).base_path for spec in specs}) == 3

    def test_one_worker_may_state_that_its_rows_are_replicated(self) -> None:
        alone = offloading_spec(tp_size=1, rank=0, replicated_layout=False, is_parallelism_agnostic=False)
        stated = Identity.from_offloading_spec(alone, parallel_agnostic=True, replicated_layout=True)
        several = Identity.from_offloading_spec(offloading_spec(tp_size=4), parallel_agnostic=True)
        assert stated.compatible_with(several)
        assert not Identity.from_offloading_spec(alone, parallel_agnostic=True).compatible_with(several)

    @pytest.mark.parametrize(
        ("layout", "name"), [("LBNHC", "v1-nhd"), ("LBHNC", "v1-hnd"), ("SomethingNew", "v1-somethingnew")]
    )
    def test_canonical_rows_name_their_format(self, layout: str, name: str) -> None:
        spec = offloading_spec(canonical_layout=True, kv_cache_layout=layout)
        made = FileMapper.from_offloading_spec("/kv", spec, parallel_agnostic=True)
        assert made.fields["canonical_format"] == name
        direct = FileMapper.from_offloading_spec("/kv", offloading_spec(kv_cache_layout=layout), parallel_agnostic=True)
        assert "canonical_format" not in direct.fields

    def test_what_the_engine_knows_is_part_of_the_identity(self) -> None:
        made = Identity.from_offloading_spec(offloading_spec(), parallel_agnostic=True, model_revision="abc")
        assert (made.kv_cache_layout, made.blocks_per_chunk, made.model_revision) == ("LBNHC", 8, "abc")
        other = Identity.from_offloading_spec(offloading_spec(kv_cache_layout="LBHNC"), parallel_agnostic=True)
        assert not other.compatible_with(Identity.from_offloading_spec(offloading_spec(), parallel_agnostic=True))
        overridden = Identity.from_offloading_spec(offloading_spec(), kv_cache_layout="X", blocks_per_chunk=2)
        assert (overridden.kv_cache_layout, overridden.blocks_per_chunk) == ("X", 2)

    def test_attributes_that_older_engines_lack_are_not_needed(self) -> None:
        older = offloading_spec(
            replicated_layout=False,
            dropped=(
                "replicated_layout",
                "canonical_layout",
                "kv_cache_layout",
                "parallel.is_parallelism_agnostic",
                "parallel.pcp_size",
                "parallel.dcp_size",
                "cache.blocks_per_chunk",
            ),
        )
        newer = offloading_spec(replicated_layout=False)
        assert FileMapper.from_offloading_spec("/kv", older, 1, True) == FileMapper.from_offloading_spec(
            "/kv", newer, parallel_agnostic=True
        )
        assert Identity.from_offloading_spec(older).kv_cache_layout is None

    @pytest.mark.parametrize(
        "path", ["groups", "model.name", "model.dtype", "cache.tokens_per_hash", "parallel.tp_size"]
    )
    def test_a_missing_attribute_is_named(self, path: str) -> None:
        with pytest.raises(
            kvtier.UnsupportedError, match=f"offloading_spec.config.{path} is missing.*vLLM 0.32 and 0.33"
        ):
            FileMapper.from_offloading_spec("/kv", offloading_spec(dropped=(path,)))
        with pytest.raises(kvtier.UnsupportedError, match=r"offloading_spec\.config is missing"):
            Identity.from_offloading_spec(object())  # type: ignore[arg-type]

    def test_attributes_of_the_wrong_type_are_named(self) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=r"config\.parallel\.tp_size is True, an integer"):
            FileMapper.from_offloading_spec("/kv", offloading_spec(tp_size=True))
        with pytest.raises(kvtier.InvalidInputError, match="names no kv_cache_layout"):
            Identity.from_offloading_spec(offloading_spec(canonical_layout=True, kv_cache_layout=None))
