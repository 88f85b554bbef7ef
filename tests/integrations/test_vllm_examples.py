"""The configurations of the guide and of `examples/vllm` are the same, and each makes a tier that works."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvtier.integrations.vllm.options import VllmOptions

from .conftest import StartScheduler

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "vllm").glob("*.json"))


def blocks_of_the_guide() -> dict[str, Any]:
    """Its JSON, by the name beside it."""
    text = (ROOT / "docs" / "vllm.md").read_text()
    return {
        name: json.loads(block)
        for name, block in re.findall(r"^```json (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    }


def placed(tier: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    """An entry whose place is here, and not on a disk or a service of somebody's."""
    if tier["url"].startswith("file://"):
        room = {"max_bytes": "256MiB"} if "max_bytes" in tier else {}
        return {**tier, **room, "url": f"file://{tmp_path}"}
    return {**tier, "url": request.getfixturevalue("s3_url"), "allow_http": True}


def test_the_guide_shows_the_examples() -> None:
    examples = {path.stem: json.loads(path.read_text()) for path in EXAMPLES}
    shown = blocks_of_the_guide()
    assert len(examples) == 3
    assert {name: block for name, block in shown.items() if isinstance(block, dict)} == examples


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_keeps_blocks_and_finds_them_again(
    path: Path, start: StartScheduler, tmp_path: Path, request: pytest.FixtureRequest, vllm: SimpleNamespace
) -> None:
    example = json.loads(path.read_text())
    extra = example["kv_connector_extra_config"]
    assert example["kv_connector"] == "OffloadingConnector"
    assert extra["spec_name"] == vllm.Spec.__name__
    assert extra.keys() <= {"spec_name", "cpu_bytes_to_use", "blocks_per_chunk", "secondary_tiers"}
    tiers = [placed(tier, tmp_path, request) for tier in extra["secondary_tiers"]]
    engine = {"blocks_per_chunk": extra.get("blocks_per_chunk", 1)}
    first = start(*tiers, **engine)
    first.store(range(6))
    first.shutdown()
    assert start(*tiers, **engine).hits(range(8)) == 6


def test_moving_reads_old_blocks_and_writes_new_ones(start: StartScheduler, tmp_path: Path) -> None:
    tiers = [{**tier, "url": f"file://{tmp_path}"} for tier in blocks_of_the_guide()["moving"]]
    start({"type": "fs", "root_dir": str(tmp_path)}).store(range(4))
    moving = start(*tiers)
    assert moving.hits(range(8)) == 4
    moving.store(range(4, 8))
    moving.shutdown()
    assert start(tiers[0]).hits(range(8)) == 4  # the new ones
    assert start({"type": "fs", "root_dir": str(tmp_path)}).hits(range(8)) == 4  # the old ones, untouched


def test_every_option_is_in_the_guide() -> None:
    cells = re.findall(r"^\|([^|]*)\|", (ROOT / "docs" / "vllm.md").read_text(), re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert set(VllmOptions.__dataclass_fields__) - {"tier"} <= documented


def test_every_metric_is_in_the_guide(vllm: SimpleNamespace) -> None:
    text = (ROOT / "docs" / "vllm.md").read_text()
    for name in vllm.Tier.build_metric_definitions({}):
        assert f"`{name.removeprefix('kvtier:')}`" in text
