"""Why two engines share no blocks: differences, explanations, stored configs."""

import json
import pathlib
from typing import Any

import pytest

import kvtier
from kvtier import Identity, StoredConfig

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


class TestDiff:
    def test_each_difference_is_named_with_both_values(self) -> None:
        found = identity(rope={"factor": 1}).diff(identity(tp_size=4, dtype="bfloat16"))
        assert [(d.field, d.left, d.right, d.absent) for d in found] == [
            ("tp_size", 1, 4, None),
            ("dtype", "fp8_ds_mla", "bfloat16", None),
            ("rope", {"factor": 1}, None, "right"),
        ]
        assert [str(d) for d in found] == [
            "tp_size: 1 | 4",
            'dtype: "fp8_ds_mla" | "bfloat16"',
            'rope: {"factor":1} | (absent)',
        ]
        assert repr(found[0]) == "<Difference tp_size: 1 | 4>"
        assert found[0] == identity().diff(identity(tp_size=4))[0]

    def test_it_goes_into_lists_and_dicts(self) -> None:
        other = [{**GROUPS[0], "layer_names": ["layers.0.attn", "layers.9.attn"]}, GROUPS[1]]
        found = identity(rope={"a": {"b": 1}}).diff(identity(kv_cache_groups=other, rope={"a": {"b": 2, "c": None}}))
        assert [str(d) for d in found] == [
            'kv_cache_groups[0].layer_names[1]: "layers.1.attn" | "layers.9.attn"',
            "rope.a.b: 1 | 2",
            "rope.a.c: (absent) | null",
        ]


class TestExplain:
    def test_every_fact_is_explained(self) -> None:
        explained = identity(tp_size=4, parallel_agnostic=True, replicated_layout=True, rope={"f": 1}).explain()
        by_name = {line.field: line for line in explained}
        assert by_name["tp_size"].role == "collapsed"
        assert by_name["tp_size"].value == 4
        assert "every rank is stated to hold the same bytes" in (by_name["tp_size"].note or "")
        assert by_name["rope"].role == "hashed"
        assert by_name["model_revision"].role == "absent"
        assert by_name["model_revision"].value is None
        assert by_name["rank"].role == "collapsed"
        assert all(line.protects_from for line in explained)
        assert set(identity().fields) <= set(by_name)

    def test_the_vllm_kind_says_what_it_leaves_out(self) -> None:
        by_name = {line.field: line for line in identity(rope={"f": 1}).explain("vllm")}
        assert by_name["rope"].role == "unhashed"
        assert by_name["model_revision"].role == "absent"
        assert "the engine's own naming leaves it out" in (by_name["model_revision"].note or "")

    def test_the_documentation_has_the_same_table(self) -> None:
        text = (pathlib.Path(__file__).parent.parent / "docs" / "identity.md").read_text()
        for line in identity().explain():
            assert f"| `{line.field}` | {line.protects_from} |" in text


class TestStoredConfig:
    def test_the_engines_own_file_is_read(self) -> None:
        # As vLLM's tier writes it: json.dump(run_config, indent=2, sort_keys=True).
        run_config = identity(model_name="é\ud800").file_mapper("/kv").get_run_config()
        stored = StoredConfig(json.dumps(run_config, indent=2, sort_keys=True).encode())
        assert (stored.kind, stored.fields, stored.written_by) == ("vllm", run_config, None)
        assert stored.fingerprint() == identity(model_name="é\ud800").fingerprint("vllm")
        assert stored.digest == stored.fingerprint()[:12]

    def test_an_edited_file_is_another_identity(self) -> None:
        original = identity().config()
        text = json.dumps({"fields": {**original.fields, "tp_size": 1.0, "new_field": None}})
        edited = StoredConfig(text.encode())
        assert [str(d) for d in original.diff(edited)] == ["tp_size: 1 | 1.0", "new_field: (absent) | null"]
        assert not original.compatible_with(edited)
        assert edited.digest != original.digest

    def test_what_keeps_hashes_apart_is_a_difference_though_it_is_not_hashed(self) -> None:
        def stored(**written_by: str) -> StoredConfig:
            return StoredConfig(json.dumps({"fields": identity().fields, "written_by": written_by}).encode())

        assert [str(d) for d in stored(hash_seed="1").diff(stored(hash_seed="2"))] == [
            'written_by.hash_seed: "1" | "2"'
        ]
        assert stored(hash_seed="1", kvtier="1").compatible_with(stored(kvtier="2", display_name="x"))
        assert stored(hash_seed="1").written_by == {"hash_seed": "1"}

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (b"", "it is empty"),
            (b"{", "line 1, column 2"),
            (b'{"fields": {}', "line 1, column 14"),
            (b'{"model_name": 1, "model_name": 1}', "is given twice"),
            (b'{"model_name": NaN}', "a JSON value is expected"),
            (b'{"other": 1}', "it has neither"),
            (b"[1]", "it holds no JSON object"),
            (b'{"fields": ' * 100_000, "nested deeper"),
            ('{"model_name": "é"}'.encode("latin-1"), "not UTF-8"),
        ],
    )
    def test_a_file_that_says_nothing_says_why(self, text: bytes, problem: str) -> None:
        with pytest.raises(kvtier.ConfigError, match=problem):
            StoredConfig(text)


class TestOnDisk:
    def test_a_tier_writes_what_its_identity_says(self, tmp_path: pathlib.Path) -> None:
        made = identity(row_bytes=4096, model_name="组织/m")
        with kvtier.open(tmp_path, identity=made, rows=kvtier.HostRows(1, 4096)):
            stored = StoredConfig((tmp_path / made.base_dir() / "config.json").read_bytes())
        assert stored.fields == made.fields
        assert stored.compatible_with(made.config())
        assert stored.written_by == {"kvtier": kvtier.__version__, "display_name": "组织/m"}

    def test_in_the_engines_kind_it_is_the_engines_own_file(self, tmp_path: pathlib.Path) -> None:
        made = identity(row_bytes=4096, model_name="组织/m\x7f")
        mapper = made.file_mapper(tmp_path)
        with kvtier.open(tmp_path, identity=made, rows=kvtier.HostRows(1, 4096), compat="vllm"):
            written = pathlib.Path(mapper.get_config_file_path()).read_text()
        assert written == json.dumps(mapper.get_run_config(), indent=2, sort_keys=True)

    def test_an_edited_file_keeps_the_tier_from_opening(self, tmp_path: pathlib.Path) -> None:
        made, rows = identity(row_bytes=4096), kvtier.HostRows(1, 4096)
        config = tmp_path / made.base_dir() / "config.json"
        config.parent.mkdir()
        config.write_text(json.dumps({"fields": {**made.fields, "tp_size": 8, "rope": {"factor": 2}}}))
        with pytest.raises(kvtier.IdentityMismatchError) as caught:
            kvtier.open(tmp_path, identity=made, rows=rows)
        assert 'tp_size is 8 on storage, 1 here; rope is {"factor":2} on storage, (absent) here' in str(caught.value)
        config.write_text('{"fields": {"model_')
        before = config.read_bytes()
        with pytest.raises(kvtier.IdentityMismatchError, match=r"config\.json is unreadable: .*line 1, column 20"):
            kvtier.open(tmp_path, identity=made, rows=rows)
        assert config.read_bytes() == before
