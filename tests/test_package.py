"""What importing and installing the package gives."""

import importlib.metadata
import importlib.resources
import subprocess
import sys

import kvtier


def test_version_is_the_distributions() -> None:
    assert kvtier.__version__ == importlib.metadata.version("kvtier")


def test_package_is_typed() -> None:
    files = importlib.resources.files("kvtier")
    assert files.joinpath("py.typed").is_file()
    assert files.joinpath("_kvtier.pyi").is_file()


def test_import_loads_no_heavy_or_foreign_module() -> None:
    foreign = "{'torch', 'numpy', 'vllm', 'typer', 'rich'}"
    program = f"import sys, kvtier; print(sorted({foreign} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_command_prints_its_version() -> None:
    shown = subprocess.run([sys.executable, "-m", "kvtier", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == f"kvtier {kvtier.__version__}"
