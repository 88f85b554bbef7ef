"""``kvtier identity``: what a namespace is written under, where two differ, and what protects from what."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvtier import ConfigError, Difference, Explanation, Identity, StoredConfig, canonical_json
from kvtier.cli.ending import PROBLEMS, UNUSABLE, give_up
from kvtier.cli.facts import takes_facts
from kvtier.cli.namespaces import find_namespace

app = typer.Typer(
    no_args_is_help=True,
    help="What a namespace is written under, where two differ, and what protects from what.",
)

_PLACE = typer.Argument(help="A config.json, or a namespace's directory with or without _r<rank>.", show_default=False)
_COMPAT = typer.Option(help="Take the facts as the engine's own tiers do.", show_default=False)
_JSON = typer.Option("--json", help="Print JSON, and nothing else.")

_ROLES = {
    "hashed": "engines that differ in one of these share no blocks",
    "collapsed": "engines that differ in one of these share blocks all the same",
    "unhashed": "stated, but not part of the digest",
    "absent": "not stated, so nothing protects from a difference",
}


@app.command()
@takes_facts
def show(
    stated: Identity | None,
    /,
    place: Annotated[str | None, _PLACE] = None,
    *,
    compat: Annotated[Literal["vllm"] | None, _COMPAT] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Show an identity: its fields, its digest and the directories that it names."""
    subject = _subject(place, stated, compat)
    if as_json:
        _print_json(subject.as_json())
        return
    config = subject.config
    head = {
        "kind": config.kind,
        "fingerprint": config.fingerprint(),
        "directory": subject.base_dir or "not known before row_bytes is",
        "blocks in": ", ".join(subject.blocks_dirs) or "no directory yet",
        **{f"written by, {name}": value for name, value in (config.written_by or {}).items()},
    }
    _print_table((), list(head.items()))
    _print_table(("field", "value"), [(name, _shown(value)) for name, value in config.fields.items()])
    subject.warn()


@app.command()
@takes_facts
def diff(
    stated: Identity | None,
    /,
    left: Annotated[str | None, _PLACE] = None,
    right: Annotated[str | None, _PLACE] = None,
    *,
    compat: Annotated[Literal["vllm"] | None, _COMPAT] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Compare two namespaces, or one with the facts that are given; exit code 1 if they share no blocks."""
    if left is None:
        give_up("give two namespaces, or one and the facts to compare it with", UNUSABLE)
    ours = _subject(left, None, compat)
    if stated is not None:
        compat = "vllm" if ours.config.kind == "vllm" else compat
        stated = _with_rows_of(ours.config, stated)
    theirs = _subject(right, stated, compat)
    differences = ours.config.diff(theirs.config)
    if as_json:
        _print_json(
            {
                "left": ours.name,
                "right": theirs.name,
                "compatible": not differences,
                "differences": [_difference_as_json(difference) for difference in differences],
                "warnings": [warning for subject in (ours, theirs) if (warning := subject.warning)],
            }
        )
    else:
        if differences:
            rows = [(difference.field, difference.left_shown, difference.right_shown) for difference in differences]
            _print_table(("field", ours.name, theirs.name), rows)
        else:
            typer.echo(f"{ours.name} and {theirs.name} are one identity: they share blocks")
        ours.warn()
        theirs.warn()
    if differences:
        raise typer.Exit(PROBLEMS)


@app.command()
@takes_facts
def explain(
    stated: Identity | None,
    /,
    place: Annotated[str | None, _PLACE] = None,
    *,
    compat: Annotated[Literal["vllm"] | None, _COMPAT] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Say for each fact what it protects from, and whether it is hashed, collapsed or absent."""
    subject = _subject(place, stated, compat)
    if as_json:
        _print_json([_explanation_as_json(line) for line in subject.explanations])
        return
    for role, meaning in _ROLES.items():
        lines = [line for line in subject.explanations if line.role == role]
        if lines:
            typer.secho(f"{role}: {meaning}", bold=True)
            _print_table(("field", "value", "protects from"), [_explanation_cells(line) for line in lines])
    subject.warn()


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a command is about: a namespace that was found, or an identity that was stated."""

    name: str
    config: StoredConfig
    explanations: list[Explanation]
    base_dir: str | None
    blocks_dirs: list[str]
    warning: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.config.kind,
            "fingerprint": self.config.fingerprint(),
            "base_dir": self.base_dir,
            "blocks_dirs": self.blocks_dirs,
            "written_by": self.config.written_by,
            "fields": self.config.fields,
            "warning": self.warning,
        }

    def warn(self) -> None:
        if self.warning:
            typer.secho(f"warning: {self.warning}", err=True, fg=typer.colors.YELLOW)


def _subject(place: str | None, stated: Identity | None, compat: Literal["vllm"] | None) -> _Subject:
    if place is not None and stated is not None:
        give_up("give a namespace or facts, not both for one side", UNUSABLE)
    if place is not None:
        found = find_namespace(place)
        config = found.config
        return _Subject(
            _printable(place),
            config,
            config.explain(),
            _printable(found.base_dir),
            [_printable(name) for name in found.blocks_dirs],
            found.warning,
        )
    if stated is None:
        give_up("give a config.json, a namespace's directory, or facts (see --help)", UNUSABLE)
    try:
        stated.fingerprint(compat)  # refuses what no namespace of this kind can be
        names = (stated.base_dir(compat), stated.blocks_dir(compat)) if stated.row_bytes else None
    except ConfigError as error:
        give_up(str(error), UNUSABLE)
    base_dir, blocks_dirs = (names[0], [names[1]]) if names else (None, [])
    return _Subject("the given facts", stated.config(compat), stated.explain(compat), base_dir, blocks_dirs)


def _with_rows_of(config: StoredConfig, stated: Identity) -> Identity:
    """Rows bring their length when a tier opens, so a length that isn't stated yet is no difference."""
    row_bytes = config.fields.get("row_bytes")
    if stated.row_bytes is None and stated.payload_bytes is None and type(row_bytes) is int and row_bytes > 0:
        return stated.with_row_bytes(row_bytes)
    return stated


def _difference_as_json(difference: Difference) -> dict[str, Any]:
    sides = {"left": difference.left, "right": difference.right}
    return {"field": difference.field, **{side: value for side, value in sides.items() if side != difference.absent}}


def _explanation_as_json(line: Explanation) -> dict[str, Any]:
    value = {} if line.role == "absent" else {"value": line.value}
    return {"field": line.field, "role": line.role, **value, "protects_from": line.protects_from, "note": line.note}


def _explanation_cells(line: Explanation) -> tuple[str, str, str]:
    has_value = line.role != "absent" and not (line.value is None and line.note)
    value = _shown(line.value) if has_value else ""
    return line.field, value, f"{line.protects_from} ({line.note})" if line.note else line.protects_from


def _printable(name: str) -> str:
    """A path as it can be printed: bytes that are no UTF-8 are replaced."""
    return os.fsencode(name).decode(errors="replace")


def _shown(value: Any, longest: int = 100) -> str:
    text = canonical_json(value)
    return text if len(text) <= longest else f"{text[: longest // 2]} … {text[-longest // 2 :]}"


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    console = Console(highlight=False)
    table = Table(*heads, box=None, show_header=bool(heads), pad_edge=False, padding=(0, 2, 0, 0))
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        # Not markup: values come from files.
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    console.print()
