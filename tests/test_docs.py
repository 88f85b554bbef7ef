"""What the documents say is so: code runs, links lead somewhere, tables are complete."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvtier import TierConfig, TierStats, TrafficStats
from kvtier._kvtier import ERROR_KINDS
from kvtier.cli.demo.ranks import ROW_BYTES, Plan, Rank, best_rows, identity_of

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def code_blocks() -> list[tuple[str, str]]:
    found = []
    for document in DOCUMENTS:
        blocks = re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
        found += [(f"{document.name}-{number}", block) for number, block in enumerate(blocks)]
    return found


@pytest.mark.parametrize(("name", "code"), code_blocks(), ids=lambda value: value if len(value) < 40 else "")
def test_code_in_documents_runs(name: str, code: str, tmp_path: Path) -> None:
    if "import torch" in code:
        pytest.importorskip("torch")
    program = tmp_path / f"{name}.py"
    program.write_text(code)
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(program)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_readme_has_code() -> None:
    assert any(name.startswith("README") for name, _ in code_blocks())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        leads_to = document.parent / path if path else document
        assert leads_to.exists(), target
        assert not anchor or anchor in anchors(leads_to), target


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def first_cells(document: str) -> set[str]:
    """The code in the first cells of a document's tables."""
    rows = re.findall(r"^\|([^|]*)\|", (ROOT / document).read_text(), re.MULTILINE)
    return {code.lstrip(".") for row in rows for code in re.findall(r"`([^`]+)`", row)}


def test_every_option_is_in_a_guide() -> None:
    documented = first_cells("docs/tuning.md") | first_cells("docs/objects.md")
    assert {field.name for field in dataclasses.fields(TierConfig)} - documented == set()


def test_every_kind_of_failure_is_in_the_operating_guide() -> None:
    assert set(ERROR_KINDS) - first_cells("docs/operations.md") == set()


def test_every_metric_is_in_the_operating_guide() -> None:
    metrics = {field.name for statistics in (TierStats, TrafficStats) for field in dataclasses.fields(statistics)}
    assert metrics - first_cells("docs/operations.md") == set()


def test_the_demo_in_the_readme_is_todays() -> None:
    plan = Plan(
        url="", options={}, model="deepseek-ai/DeepSeek-V2-Lite", row_bytes=ROW_BYTES, shared_blocks=0, unshared_blocks=0,
        rows=best_rows(),
    )  # fmt: skip
    readme = (ROOT / "README.md").read_text()
    for rank, replicated in (
        (Rank("writer", 2, 0), True),
        (Rank("writer", 2, 0), False),
        (Rank("reader", 4, 0), False),
    ):
        assert f"{identity_of(plan, rank, replicated=replicated).blocks_dir()}" in readme
