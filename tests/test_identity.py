"""Who shares blocks with whom: identities, their digests and names."""

import copy
import hashlib
import itertools
import json
import os
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kvtier
from kvtier import Identity

VECTORS: list[dict[str, Any]] = json.loads(
    (pathlib.Path(__file__).parent / "vectors" / "identity-kvtier.json").read_text()
)

GROUPS: list[dict[str, Any]] = [
    {"tokens_per_block": 64, "layer_names": ["layers.0.attn", "layers.1.attn"]},
    {"tokens_per_block": 128, "layer_names": ["layers.2.attn"]},
]
MLA: dict[str, Any] = {
    "model_name": "deepseek-ai/DeepSeek-V3",
    "tokens_per_hash": 64,
    "dtype": "fp8_ds_mla",
    "kv_cache_groups": GROUPS,
    "row_bytes": 147456,
}


def identity(**changes: Any) -> Identity:
    return Identity(**{**MLA, **changes})


def digest_of(fields: dict[str, Any]) -> str:
    """By Python alone."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# Every argument changed alone, with whether the engine's own mapper knows it.
CHANGES: list[tuple[dict[str, Any], bool]] = [
    ({"model_name": "deepseek-ai_DeepSeek-V3"}, True),
    ({"tokens_per_hash": 128}, True),
    ({"blocks_per_file": 2}, True),
    ({"tp_size": 2}, True),
    ({"pp_size": 2}, True),
    ({"pcp_size": 2}, True),
    ({"dcp_size": 2}, True),
    ({"dtype": "bfloat16"}, True),
    ({"kv_cache_groups": None}, True),
    ({"kv_cache_groups": GROUPS[:1]}, True),
    ({"kv_cache_groups": GROUPS[::-1]}, True),
    ({"kv_cache_groups": [{**GROUPS[0], "tokens_per_block": 32}, GROUPS[1]]}, True),
    ({"kv_cache_groups": [{**GROUPS[0], "layer_names": ["layers.1.attn", "layers.0.attn"]}, GROUPS[1]]}, True),
    ({"kv_cache_groups": [{**GROUPS[0], "layer_names": ["layers.0.attn", "layers.1.attN"]}, GROUPS[1]]}, True),
    ({"inference_engine": "sglang"}, True),
    ({"parallel_agnostic": True}, True),
    ({"replicated_layout": True}, True),
    ({"parallel_agnostic": True, "replicated_layout": True}, True),
    ({"canonical_format": "v1-nhd"}, True),
    ({"row_bytes": 4096}, False),
    ({"payload_bytes": 147000}, False),
    ({"worker_bytes": 1024}, False),
    ({"blocks_per_chunk": 8}, False),
    ({"kv_cache_layout": "HND"}, False),
    ({"kv_cache_layout": "NHD"}, False),
    ({"model_id": "another"}, False),
    ({"model_revision": "main"}, False),
    ({"rope": {}}, False),
    ({"rope": {"factor": 1}}, False),
    ({"rope": {"factor": 2}}, False),
    ({"rope": {"factor": "2"}}, False),
    ({"rope": {"factor": None}}, False),
    ({"kv_scales": [1, 1]}, False),
    ({"model_runner": "v2"}, False),
    ({"namespace": "team-a"}, False),
]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['name']}, {vector['kind']}")
def test_namespaces_are_where_they_always_were(vector: dict[str, Any]) -> None:
    made = Identity(**vector["arguments"])
    compat = None if vector["kind"] == "kvtier" else vector["kind"]
    config = made.config(compat)
    assert (config.kind, config.fields) == (vector["kind"], vector["fields"])
    assert made.fingerprint(compat) == config.fingerprint() == vector["sha256"]
    assert made.base_dir(compat) == vector["base_dir"]
    assert made.blocks_dir(compat) == vector["blocks_dir"]


class TestDigest:
    def test_every_fact_alone_moves_the_digest_to_a_place_of_its_own(self) -> None:
        everything = [identity(), *(identity(**change) for change, _ in CHANGES)]
        assert len({made.fingerprint() for made in everything}) == len(everything)
        assert len({made.base_dir() for made in everything}) == len(everything)

    @pytest.mark.parametrize(("change", "in_mapper"), CHANGES, ids=itertools.count())
    def test_the_vllm_kind_knows_what_the_mapper_knows(self, change: dict[str, Any], in_mapper: bool) -> None:
        made = identity(**change)
        assert (made.fingerprint("vllm") != identity().fingerprint("vllm")) is in_mapper
        assert made.config("vllm").fields == made.file_mapper("/kv").fields
        assert made.file_mapper("/kv").base_path == f"/kv/{made.base_dir('vllm')}"

    @pytest.mark.parametrize("change", [{"rank": 5}, {"rank": np.int64(5)}, {"tokens_per_hash": np.int32(64)}])
    def test_nothing_else_moves_it(self, change: dict[str, Any]) -> None:
        assert identity(**change).base_dir() == identity().base_dir()

    @given(st.permutations(list({**MLA, "rope": {"a": 1}, "tp_size": 2}.items())))
    def test_the_order_of_arguments_does_not_matter(self, items: list[tuple[str, Any]]) -> None:
        assert Identity(**dict(items)) == identity(rope={"a": 1}, tp_size=2)

    def test_it_is_what_python_calculates(self) -> None:
        for change, _ in CHANGES:
            made = identity(**change)
            assert made.fingerprint() == digest_of(made.fields)

    @given(st.sampled_from([c for c, _ in CHANGES]), st.sampled_from([c for c, _ in CHANGES]))
    def test_there_is_a_difference_exactly_when_it_differs(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        for compat in (None, "vllm"):
            a, b = identity(**one), identity(**other)
            assert bool(a.diff(b, compat)) is (a.fingerprint(compat) != b.fingerprint(compat))

    @pytest.mark.parametrize("locale", ["C", "C.UTF-8", "tr_TR.UTF-8", "de_DE.ISO-8859-1"])
    @pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
    def test_another_process_gives_the_same_path(self, locale: str, hash_seed: str) -> None:
        made = identity(
            model_name="模型/I",
            kv_cache_groups=None,
            rope={"theta": 1e6, "factor": 2.5, "ü": [1, None, {"z": 1, "İ": 2}]},
        )
        program = (
            "import contextlib, locale, sys, kvtier\n"
            "with contextlib.suppress(locale.Error): locale.setlocale(locale.LC_ALL, '')\n"
            f"sys.stdout.buffer.write(kvtier.{made!r}.block_path(bytes(range(36))).encode())"
        )
        environment = {**os.environ, "LC_ALL": locale, "PYTHONHASHSEED": hash_seed}
        shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        assert shown.stdout.decode() == made.block_path(bytes(range(36)))


class TestReplicated:
    def test_rows_are_shared_by_every_tp_size_and_rank(self) -> None:
        ranks = [(tp, rank) for tp in (1, 2, 4, 8) for rank in range(tp)]
        for compat in (None, "vllm"):
            made = [
                identity(tp_size=tp, rank=rank, parallel_agnostic=True, replicated_layout=True) for tp, rank in ranks
            ]
            assert len({one.blocks_dir(compat) for one in made}) == 1
            assert {one.rank for one in made} == {0}
            assert all(a.compatible_with(b, compat) for a, b in itertools.pairwise(made))

    def test_nothing_else_is(self) -> None:
        def places(**flags: bool) -> set[str]:
            return {identity(tp_size=tp, rank=rank, **flags).blocks_dir() for tp in (1, 2, 4) for rank in range(tp)}

        replicated = places(parallel_agnostic=True, replicated_layout=True)
        agnostic = places(parallel_agnostic=True)
        without_opt_in = places(replicated_layout=True)
        plain = places()
        assert [len(p) for p in (replicated, agnostic, without_opt_in, plain)] == [1, 1, 7, 7]
        assert len(replicated | agnostic | without_opt_in | plain) == 16

    @pytest.mark.parametrize("size", ["pp_size", "pcp_size", "dcp_size"])
    @pytest.mark.parametrize("agnostic", [True, False])
    def test_splits_of_layers_or_tokens_are_refused_with_the_reason(self, size: str, agnostic: bool) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=rf"{size} is 2 with replicated_layout.*splits .* between"):
            identity(**{size: 2}, replicated_layout=True, parallel_agnostic=agnostic)

    def test_the_difference_says_why_rows_are_not_shared(self) -> None:
        answer = identity(tp_size=2).compatible_with(identity(tp_size=4))
        assert str(answer) == "tp_size: 2 | 4"
        assert bool(answer) is False
        assert str(identity().compatible_with(identity(rank=3))) == "compatible"


class TestDiscriminators:
    def test_rope_is_the_same_however_it_is_spelled(self) -> None:
        spellings: list[Any] = [
            {"type": "yarn", "factor": 2, "theta": 10_000},
            {"factor": 2.0, "theta": 1e4, "type": "yarn"},
            json.loads('{"theta": 10000.000, "type": "yarn", "factor": 2e0}'),
        ]
        assert len({identity(rope=rope) for rope in spellings}) == 1
        assert identity(rope={"a": [1.0, (2.0,)]}) == identity(rope={"a": [1, [2]]})
        assert identity(rope={"factor": True}) != identity(rope={"factor": 1})
        assert identity(rope={"factor": 2.5}) != identity(rope={"factor": 2})
        assert identity(rope={"n": 2**53 + 1}) != identity(rope={"n": float(2**53)})

    @given(st.integers(-(2**53), 2**53))
    def test_whole_floats_are_their_integers(self, number: int) -> None:
        assert identity(kv_scales=float(number)) == identity(kv_scales=number)

    def test_payload_bytes_stand_for_the_stride(self) -> None:
        padded = identity(row_bytes=8192, payload_bytes=8000)
        assert padded.compatible_with(identity(row_bytes=16384, payload_bytes=8000))
        assert padded.compatible_with(identity(row_bytes=8000))
        assert padded.fields["row_bytes"] == 8000
        with pytest.raises(kvtier.InvalidInputError, match="payload_bytes is 9000, at most the row_bytes 8192"):
            identity(row_bytes=8192, payload_bytes=9000)

    def test_one_model_id_joins_local_paths(self) -> None:
        a = identity(model_name="/mnt/a", model_id="org/m")
        b = identity(model_name="/data/b", model_id="org/m")
        assert a.base_dir() == b.base_dir()
        assert a.base_dir().startswith("org_m_")
        assert not a.compatible_with(b, "vllm")
        assert a != b

    @pytest.mark.parametrize("dtype", ["auto", "AUTO", "", " ", "None"])
    def test_unresolved_dtypes_are_refused_with_the_reason(self, dtype: str) -> None:
        made = identity(dtype=dtype)
        for call in (made.fingerprint, made.base_dir, lambda: made.compatible_with(made)):
            with pytest.raises(kvtier.ConfigError, match="resolved type"):
                call()
        assert made.base_dir("vllm").startswith("deepseek-ai_DeepSeek-V3_")

    def test_dtypes_of_torch_and_numpy_are_named_as_engines_name_them(self) -> None:
        by_name = identity(dtype="bfloat16")
        assert identity(dtype=torch.bfloat16).base_dir() == by_name.base_dir()
        assert identity(dtype="torch.bfloat16").base_dir() == by_name.base_dir()
        assert identity(dtype=np.dtype("float16")).base_dir() == identity(dtype="float16").base_dir()
        assert identity(dtype=torch.bfloat16).base_dir("vllm") != by_name.base_dir("vllm")

    def test_the_row_length_comes_with_the_rows(self) -> None:
        early = identity(row_bytes=None)
        with pytest.raises(kvtier.ConfigError, match="row_bytes is not known yet"):
            early.base_dir()
        assert early.with_row_bytes(147456) == identity()
        assert early.fields == {name: value for name, value in identity().fields.items() if name != "row_bytes"}
        with pytest.raises(
            kvtier.InvalidInputError, match="states row_bytes 147456, but the rows are 4096 bytes apart"
        ):
            identity().with_row_bytes(4096)
        for wrong in (0, -1, True, "4096", None):
            with pytest.raises(kvtier.InvalidInputError, match=r"row_bytes is .* accepted"):
                early.with_row_bytes(wrong)  # type: ignore[arg-type]


class TestNames:
    @given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=300), st.integers(0, 2**32 - 1))
    def test_any_name_gives_a_component_that_any_file_system_takes(self, name: str, rank: int) -> None:
        made = identity(model_name=name, rank=rank)
        component = made.blocks_dir()
        assert len(component.encode()) <= 255
        assert not set(component) & set("/\\\0")
        assert all(ord(character) >= 32 for character in component)
        assert component == f"{made.base_dir()}_r{rank}"
        assert made.base_dir().endswith(f"_{made.fingerprint()[:12]}")

    def test_long_names_are_cut_at_a_character_and_kept_apart_by_the_digest(self) -> None:
        a, b = (identity(model_name="é" * 10_000 + last).base_dir() for last in "ab")
        assert a != b
        assert a.startswith("é" * 115 + "_")
        assert not a.startswith("é" * 116)

    def test_the_vllm_kind_refuses_names_that_no_file_system_takes(self) -> None:
        for name, problem in [("n\0l", "NUL"), ("\ud800", "lone surrogate"), ("x" * 10_000, "255 are possible")]:
            made = identity(model_name=name)
            assert made.base_dir()
            with pytest.raises(kvtier.ConfigError, match=problem):
                made.base_dir("vllm")

    @pytest.mark.parametrize("namespace", ["..", "a/b", "../x", "a\\b", "a\0", "a\nb", ""])
    def test_a_namespace_is_a_name_not_a_path(self, namespace: str) -> None:
        with pytest.raises(kvtier.InvalidInputError, match="namespace is"):
            identity(namespace=namespace)


class TestArguments:
    @pytest.mark.parametrize(
        "name", ["tokens_per_hash", "blocks_per_file", "tp_size", "pp_size", "pcp_size", "dcp_size", "row_bytes"]
    )
    @pytest.mark.parametrize("value", [0, -1, True, 1.5, "x", np.float64(1), np.bool_(True)])
    def test_sizes_are_positive_integers(self, name: str, value: object) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=rf"{name} is .*, an integer of at least 1 is accepted"):
            identity(**{name: value})

    def test_sizes_are_bounded(self) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=r"row_bytes is 18446744073709551616, less than 2\*\*64"):
            identity(row_bytes=2**64)
        with pytest.raises(kvtier.InvalidInputError, match="rank is 4294967296, an integer from 0 to 4294967295"):
            identity(rank=2**32)

    @pytest.mark.parametrize(
        "name", ["model_name", "inference_engine", "model_id", "model_revision", "kv_cache_layout"]
    )
    @pytest.mark.parametrize("value", [3, b"x", ["x"], ""])
    def test_texts_are_texts_that_say_something(self, name: str, value: object) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=rf"{name} is .* accepted"):
            identity(**{name: value})

    @pytest.mark.parametrize("value", [1, "false", None, np.bool_(True)])
    def test_flags_are_flags(self, value: object) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=r"parallel_agnostic is .*, True or False is accepted"):
            identity(parallel_agnostic=value)

    @pytest.mark.parametrize(
        "groups",
        [
            {},
            "groups",
            [{}],
            [{"tokens_per_block": 16}],
            [{"tokens_per_block": 16, "layer_names": ["a"], "extra": 1}],
            [{"tokens_per_block": True, "layer_names": ["a"]}],
            [{"tokens_per_block": 0, "layer_names": ["a"]}],
            [{"tokens_per_block": 16, "layer_names": "layers"}],
            [{"tokens_per_block": 16, "layer_names": [1]}],
        ],
    )
    def test_groups_are_groups(self, groups: object) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=r"kv_cache_groups.* is .* accepted"):
            identity(kv_cache_groups=groups)

    def test_rope_names_the_place_of_what_it_cannot_hold(self) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=r"rope\.factors\[1\] is nan, a finite number is accepted"):
            identity(rope={"factors": [1, float("nan")]})

    @pytest.mark.parametrize("dtype", [..., None, np.float16])
    def test_the_dtype_must_be_given(self, dtype: object) -> None:
        arguments = {**MLA, "dtype": dtype}
        if dtype is ...:
            del arguments["dtype"]
        with pytest.raises(kvtier.InvalidInputError, match=r"dtype is .*resolved element type"):
            Identity(**arguments)

    def test_one_error_lists_everything(self) -> None:
        with pytest.raises(kvtier.InvalidInputError) as caught:
            identity(
                model_name="",
                tokens_per_hash=0,
                tp_size=-1,
                dtype=None,
                namespace="a/b",
                rope={"a": {2}},
                row_bytes=1,
                payload_bytes=2,
            )
        for part in (
            "model_name is empty",
            "tokens_per_hash is 0",
            "tp_size is -1",
            "dtype is not given",
            'namespace is "a/b"',
            "rope.a is {2}",
            "payload_bytes is 2",
        ):
            assert part in str(caught.value)

    def test_an_unknown_argument_is_an_error(self) -> None:
        with pytest.raises(TypeError, match="revision"):
            identity(revision="main")

    @pytest.mark.parametrize("compat", ["VLLM", "sglang", ""])
    def test_an_unknown_kind_is_an_error(self, compat: Any) -> None:
        with pytest.raises(kvtier.InvalidInputError, match='None or "vllm" is accepted'):
            identity().fingerprint(compat)


class TestObject:
    def test_it_holds_what_was_stated(self) -> None:
        arguments: dict[str, Any] = {
            "model_name": "m",
            "tokens_per_hash": 16,
            "blocks_per_file": 2,
            "tp_size": 3,
            "pp_size": 4,
            "pcp_size": 5,
            "dcp_size": 6,
            "rank": 7,
            "dtype": "float16",
            "kv_cache_groups": GROUPS,
            "inference_engine": "sglang",
            "parallel_agnostic": False,
            "replicated_layout": False,
            "canonical_format": "v1-nhd",
            "row_bytes": 8192,
            "payload_bytes": 8000,
            "worker_bytes": 4000,
            "blocks_per_chunk": 9,
            "kv_cache_layout": "NHD",
            "model_id": "id",
            "model_revision": "r",
            "rope": {"factor": 2},
            "kv_scales": [0.5],
            "model_runner": "v1",
            "namespace": "n",
        }
        made = Identity(**arguments)
        assert {name: getattr(made, name) for name in arguments} == arguments

    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    @pytest.mark.parametrize("change", [change for change, _ in CHANGES], ids=itertools.count())
    def test_it_travels(self, change: dict[str, Any], protocol: int) -> None:
        made = identity(**change)
        travelled = pickle.loads(pickle.dumps(made, protocol))  # noqa: S301 - made here
        assert travelled == made == copy.deepcopy(made)
        assert hash(travelled) == hash(made)
        assert travelled.fingerprint() == made.fingerprint()

    def test_it_is_frozen_and_hashable(self) -> None:
        made = identity()
        with pytest.raises(AttributeError):
            made.tp_size = 3  # type: ignore[misc]
        assert len({made, identity(), identity(tp_size=2)}) == 2
        assert made != "identity"

    def test_its_repr_is_the_call_that_makes_it(self) -> None:
        made = Identity("m", 16, dtype="bfloat16", tp_size=2, rope={"factor": 2.0})
        assert (
            repr(made)
            == "Identity(model_name='m', tokens_per_hash=16, tp_size=2, dtype='bfloat16', rope={'factor': 2})"
        )
        assert eval(repr(made), {"Identity": Identity}) == made  # noqa: S307 - made here
        assert len(repr(identity(model_revision="x" * 10_000))) < 1000

    def test_kinds_never_share_a_directory(self) -> None:
        assert identity().base_dir() != identity().base_dir("vllm")
