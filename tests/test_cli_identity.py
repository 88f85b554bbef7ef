"""``kvtier identity show``, ``diff`` and ``explain``."""

import json
import pathlib
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kvtier import Identity
from kvtier.cli import app

FACTS: dict[str, Any] = {"model_name": "org/m", "tokens_per_hash": 16, "dtype": "bfloat16", "row_bytes": 4096}
OPTIONS = ["--model-name", "org/m", "--tokens-per-hash", "16", "--dtype", "bfloat16", "--row-bytes", "4096"]


def run(*arguments: str | pathlib.Path) -> Result:
    return CliRunner().invoke(app, ["identity", *map(str, arguments)], env={"COLUMNS": "400"})


def run_json(*arguments: str | pathlib.Path) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def write_namespace(root: pathlib.Path, identity: Identity, *, ranks: int = 1, **written_by: str) -> pathlib.Path:
    """A namespace as kvtier makes it; gives its base directory."""
    base = root / identity.base_dir()
    base.mkdir(parents=True)
    base.joinpath("config.json").write_text(json.dumps({"fields": identity.fields, "written_by": written_by}))
    for rank in range(ranks):
        (root / f"{base.name}_r{rank}").mkdir()
    return base


@pytest.fixture
def base(tmp_path: pathlib.Path) -> pathlib.Path:
    return write_namespace(tmp_path, Identity(**FACTS), ranks=12, kvtier="0.1.0", display_name="org/m")


class TestShow:
    def test_of_a_namespace_by_each_of_its_paths(self, base: pathlib.Path) -> None:
        for place in (
            base,
            base / "config.json",
            base.with_name(f"{base.name}_r7"),
            f"{base}/",
            base.as_uri(),
        ):
            shown = run_json("show", place)
            assert shown == {
                "name": str(place),
                "kind": "kvtier",
                "fingerprint": Identity(**FACTS).fingerprint(),
                "base_dir": base.name,
                "blocks_dirs": [f"{base.name}_r{rank}" for rank in range(12)],
                "written_by": {"kvtier": "0.1.0", "display_name": "org/m"},
                "fields": Identity(**FACTS).fields,
                "warning": None,
            }

    def test_of_the_engines_own_namespace(self, tmp_path: pathlib.Path) -> None:
        mapper = Identity(**FACTS).file_mapper(tmp_path)
        base = pathlib.Path(mapper.base_path)
        base.mkdir()
        (base / "config.json").write_text(json.dumps(mapper.get_run_config(), indent=2, sort_keys=True))
        shown = run_json("show", base)
        assert (shown["kind"], shown["fields"], shown["warning"]) == ("vllm", mapper.fields, None)

    def test_of_facts(self) -> None:
        shown = run_json("show", *OPTIONS, "--rope", '{"factor": 2.0}', "--tp-size", "4", "--rank", "3")
        identity = Identity(**FACTS, rope={"factor": 2}, tp_size=4, rank=3)
        assert shown["fields"] == identity.fields
        assert (shown["base_dir"], shown["blocks_dirs"]) == (identity.base_dir(), [identity.blocks_dir()])
        vllm = run_json("show", *OPTIONS, "--compat", "vllm")
        assert vllm["base_dir"] == Identity(**FACTS).base_dir("vllm")
        assert run_json("show", *OPTIONS[:6])["base_dir"] is None

    def test_text_names_what_people_look_for(self, base: pathlib.Path) -> None:
        shown = run("show", base)
        assert shown.exit_code == 0
        assert base.name in shown.stdout
        assert Identity(**FACTS).fingerprint() in shown.stdout
        assert "storage_format" in shown.stdout

    def test_an_edited_file_is_noticed(self, base: pathlib.Path) -> None:
        config = base / "config.json"
        config.write_text(config.read_text().replace('"tp_size": 1', '"tp_size": 2'))
        assert "was edited" in run_json("show", base)["warning"]
        assert "was edited" in run("show", base).stderr

    def test_markup_in_names_is_text(self, tmp_path: pathlib.Path) -> None:
        base = write_namespace(tmp_path, Identity(**{**FACTS, "model_name": "[red]x[/red]"}))
        assert '"[red]x[/red]"' in run("show", base / "config.json").stdout


class TestDiff:
    def test_of_one_identity(self, base: pathlib.Path) -> None:
        answer = run("diff", base, base / "config.json")
        assert answer.exit_code == 0
        assert "share blocks" in answer.stdout
        assert run_json("diff", base, base) == {
            "left": str(base),
            "right": str(base),
            "compatible": True,
            "differences": [],
            "warnings": [],
        }

    def test_of_two_exits_with_1_and_names_each_field(self, base: pathlib.Path) -> None:
        other = write_namespace(base.parent, Identity(**FACTS, tp_size=4, rope={"factor": 2}))
        answer = run("diff", base, other)
        assert answer.exit_code == 1
        assert "tp_size" in answer.stdout
        assert "(absent)" in answer.stdout
        answer = run("diff", base, other, "--json")
        assert answer.exit_code == 1
        assert json.loads(answer.stdout)["differences"] == [
            {"field": "tp_size", "left": 1, "right": 4},
            {"field": "rope", "right": {"factor": 2}},
        ]

    def test_with_facts(self, base: pathlib.Path) -> None:
        assert run("diff", base, *OPTIONS).exit_code == 0
        # The row length comes with the rows, so it may be left out.
        assert run("diff", base, *OPTIONS[:6]).exit_code == 0
        answer = run_json("diff", base, *OPTIONS, "--model-revision", "abc")
        assert answer["differences"] == [{"field": "model_revision", "right": "abc"}]

    @pytest.mark.parametrize("row_bytes", ['"4096"', "4096.0", "-1", "true", "null"])
    def test_with_facts_and_a_damaged_row_length(self, base: pathlib.Path, row_bytes: str) -> None:
        config = base / "config.json"
        config.write_text(config.read_text().replace('"row_bytes": 4096', f'"row_bytes": {row_bytes}'))
        answer = run_json("diff", base, *OPTIONS[:6])
        assert answer["differences"] == [{"field": "row_bytes", "left": json.loads(row_bytes)}]

    def test_with_facts_of_the_engines_own_kind(self, tmp_path: pathlib.Path) -> None:
        config = tmp_path / "config.json"
        mapper = Identity(**FACTS).file_mapper(tmp_path)
        config.write_text(json.dumps(mapper.get_run_config(), indent=2, sort_keys=True))
        assert run("diff", config, *OPTIONS).exit_code == 0
        answer = run_json("diff", config, *OPTIONS, "--tp-size", "2")
        assert answer["differences"] == [{"field": "tp_size", "left": 1, "right": 2}]

    def test_of_two_that_hash_in_two_ways(self, tmp_path: pathlib.Path) -> None:
        identity = Identity(**FACTS)
        places = [write_namespace(tmp_path / seed, identity, hash_seed=seed) for seed in ("one", "two")]
        answer = run("diff", *places)
        assert answer.exit_code == 1
        assert "hash_seed" in answer.stdout


class TestExplain:
    def test_of_a_namespace(self, base: pathlib.Path) -> None:
        by_field = {line["field"]: line for line in run_json("explain", base)}
        assert by_field["dtype"]["role"] == "hashed"
        assert by_field["model_revision"] == {
            "field": "model_revision",
            "role": "absent",
            "protects_from": "KV computed by other weights of the same name",
            "note": None,
        }

    def test_of_facts_says_what_is_collapsed_and_why(self) -> None:
        sharing = ["--tp-size", "4", "--parallel-agnostic", "--replicated-layout"]
        by_field = {line["field"]: line for line in run_json("explain", *OPTIONS, *sharing)}
        assert by_field["tp_size"]["role"] == "collapsed"
        assert by_field["tp_size"]["value"] == 4
        assert "every rank" in by_field["tp_size"]["note"]
        shown = run("explain", *OPTIONS, *sharing).stdout
        assert "collapsed: engines that differ in one of these share blocks all the same" in shown
        assert "absent: not stated, so nothing protects from a difference" in shown


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            (["show"], "give a config.json, a namespace's directory, or facts"),
            (["show", "/no/such/place"], "there is no /no/such/place"),
            (["show", "s3://bucket/x"], "is not on this machine"),
            (["show", "file://host/x"], "is not on this machine"),
            (["diff"], "give two namespaces, or one and the facts"),
            (["show", "--tp-size", "2"], "needs --model-name and --tokens-per-hash and --dtype too"),
            (["show", *OPTIONS, "--tp-size", "0"], "tp_size is 0"),
            (["show", *OPTIONS, "--dtype", "auto"], "resolved type"),
            (["explain", *OPTIONS[:4], "--dtype", "auto"], "resolved type"),
            (["show", *OPTIONS, "--rope", "{"], "is no JSON"),
            (["show", *OPTIONS, "--rope", "NaN"], "rope is nan"),
            (["show", *OPTIONS, "--compat", "sglang"], "vllm"),
            (["show", *OPTIONS, "--pp-size", "2", "--replicated-layout"], "splits layers"),
            (["show", *OPTIONS, "--revision", "x"], "--revision"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_is_one_sentence_and_exit_code_2(self, arguments: list[str], reason: str) -> None:
        answer = run(*arguments)
        assert answer.exit_code == 2
        assert reason in answer.stderr
        assert "Traceback" not in answer.stderr

    def test_a_root_names_its_namespaces(self, base: pathlib.Path) -> None:
        answer = run("show", base.parent)
        assert answer.exit_code == 2
        assert f"holds namespaces, give one of them: {base.name}" in answer.stderr

    def test_a_directory_without_namespaces_says_so(self, tmp_path: pathlib.Path) -> None:
        assert "is no namespace" in run("show", tmp_path).stderr

    def test_a_half_written_file_says_where(self, base: pathlib.Path) -> None:
        (base / "config.json").write_text('{"fields": {"model_name": ')
        answer = run("diff", base, base)
        assert answer.exit_code == 2
        assert "line 1, column 27" in answer.stderr

    def test_a_namespace_and_facts_for_one_side(self, base: pathlib.Path) -> None:
        assert "not both" in run("show", base, *OPTIONS).stderr
        assert run("diff", base, base, *OPTIONS).exit_code == 2
