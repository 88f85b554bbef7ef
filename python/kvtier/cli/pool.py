"""``kvtier pool``: what is in a packed pool, and whether everything in it agrees."""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.table import Table

from kvtier import KvTierError
from kvtier._kvtier import inspect_pool
from kvtier.cli.ending import PROBLEMS, UNUSABLE, ended_by_signals, give_up
from kvtier.cli.units import show_count, show_size

app = typer.Typer(no_args_is_help=True, help="What is in a packed pool, and whether everything in it agrees.")

_ROOT = typer.Argument(help="Directory or file:// URL that the pool lies below.", show_default=False)
_JSON = typer.Option("--json", help="Print JSON, and nothing else.")


@dataclass(frozen=True)
class Namespace:
    """One namespace's part of a pool."""

    name: str
    segments: int
    blocks: int
    """That can be found."""

    dead: int
    """That failed verification; their slots are used again when their segment is reclaimed."""

    free_slots: int
    bytes: int
    """Payload of the blocks."""

    row_bytes: int | None
    """Payload of one block; None without any."""


@dataclass(frozen=True)
class Pool:
    """A pool as it was found."""

    pool: str
    segment_bytes: int
    max_bytes: int | None
    min_free_bytes: int | None
    most_segments: int | None
    segments: int
    owned: int
    """Segments that some process is storing into."""

    unusable: int
    """Segments that hold nothing that could be found: half made, damaged, or others'."""

    outdated: int
    """Segments of namespaces that were reset since; their room is used next."""

    used_bytes: int
    """On the device."""

    age_at_reclaim: float | None
    """Seconds since the oldest segment was begun, once the pool is full: about how long a block stays that nobody
    uses."""

    damaged_pages: int
    namespaces: tuple[Namespace, ...]

    @property
    def blocks(self) -> int:
        """That can be found, of all namespaces."""
        return sum(namespace.blocks for namespace in self.namespaces)

    @classmethod
    def of(cls, found: dict[str, Any]) -> Self:
        """What the core has found, summed up."""
        segments = found["segments"]
        usable = [segment for segment in segments if "unusable" not in segment]
        current = [segment for segment in usable if segment["current"]]
        most = found["most_segments"]
        born = [segment["born_unix_ns"] / 1e9 for segment in current if not segment["owned"]]
        full = most is not None and len(segments) >= most
        return cls(
            pool=found["pool"],
            segment_bytes=found["segment_bytes"],
            max_bytes=found["max_bytes"],
            min_free_bytes=found["min_free_bytes"],
            most_segments=most,
            segments=len(segments),
            owned=sum(segment["owned"] for segment in segments),
            unusable=len(segments) - len(usable),
            outdated=len(usable) - len(current),
            used_bytes=found["used_bytes"],
            age_at_reclaim=max(0.0, time.time() - min(born)) if full and born else None,
            damaged_pages=sum(segment["damaged_pages"] for segment in segments),
            namespaces=tuple(
                _namespace(namespace["name"], [s for s in current if s["namespace"] == namespace["name"]])
                for namespace in found["namespaces"]
            ),
        )


def find(root: str) -> Pool | None:
    """The pool below the directory `root`, if there is one.

    Raises:
        KvTierError: There is one, and it can't be used.
    """
    return Pool.of(inspect_pool(root, False)) if (Path(root) / "kvtier-pool").is_dir() else None


def _namespace(name: str, segments: list[dict[str, Any]]) -> Namespace:
    def total(field: str) -> int:
        return sum(segment[field] for segment in segments)

    return Namespace(
        name=name,
        segments=len(segments),
        blocks=total("blocks"),
        dead=total("dead"),
        free_slots=total("free"),
        bytes=sum(segment["blocks"] * segment["payload_bytes"] for segment in segments),
        row_bytes=segments[0]["payload_bytes"] if segments else None,
    )


@app.command()
def info(
    root: Annotated[str, _ROOT],
    *,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Show a pool: geometry, owners, usage, namespaces, and how old blocks become."""
    pool = Pool.of(_look(root, blocks=False))
    if as_json:
        typer.echo(json.dumps(asdict(pool), indent=2))
        return
    bounds = [f"at most {show_size(pool.max_bytes)}"] if pool.max_bytes else []
    bounds += [f"leaves {show_size(pool.min_free_bytes)} free"] if pool.min_free_bytes else []
    most = f" of {pool.most_segments:,}" if pool.most_segments is not None else ""
    states = [(pool.owned, "stored into now"), (pool.outdated, "reset since"), (pool.unusable, "unusable")]
    shown = [f"{count:,} {what}" for count, what in states if count]
    head = {
        "pool": pool.pool,
        "bounds": ", ".join(bounds),
        "segments": f"{pool.segments:,}{most}, of {show_size(pool.segment_bytes)}" + "".join(f", {s}" for s in shown),
        "on disk": show_size(pool.used_bytes),
        "age at reclaim": _age(pool.age_at_reclaim),
    }
    if pool.damaged_pages:
        head["damaged"] = f"{show_count(pool.damaged_pages, 'table page')}, rebuilt when a tier is opened"
    _print((), head.items())
    rows = [
        (
            namespace.name,
            f"{namespace.blocks:,}",
            show_size(namespace.row_bytes) if namespace.row_bytes else "-",
            show_size(namespace.bytes),
            f"{namespace.segments:,}",
            f"{namespace.free_slots:,}",
            f"{namespace.dead:,}",
        )
        for namespace in pool.namespaces
    ]
    _print(("namespace", "blocks", "of", "payload", "segments", "free slots", "dead"), rows)


@app.command()
def check(
    root: Annotated[str, _ROOT],
    *,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Read every block of a pool, and compare it with its entry in the table. Changes nothing.

    Exit code 0: all agree. 1: some don't; while tiers store there, what changes meanwhile may seem so. 2: no pool.
    """
    with ended_by_signals():
        found = _look(root, blocks=True)
    pool = Pool.of(found)
    wrong = [
        {"segment": segment["segment"], "slot": slot, "kind": kind, "message": message}
        for segment in found["segments"]
        for slot, kind, message in segment["wrong"]
    ]
    unusable = [
        {"segment": segment["segment"], "message": segment["unusable"]}
        for segment in found["segments"]
        if "unusable" in segment
    ]
    if as_json:
        report = {
            "ok": not wrong and not pool.damaged_pages,
            "blocks": pool.blocks,
            "wrong": wrong,
            "unusable": unusable,
        }
        typer.echo(json.dumps({**report, "damaged_pages": pool.damaged_pages}, indent=2))
    else:
        for problem in wrong:
            typer.echo(f"{problem['segment']:08x}.seg, slot {problem['slot']}: {problem['message']}")
        for problem in unusable:
            typer.echo(f"{problem['segment']:08x}.seg is not used: {problem['message']}")
        if pool.damaged_pages:
            typer.echo(f"{show_count(pool.damaged_pages, 'table page')} can't be read; a tier rebuilds them")
        typer.echo(
            f"{show_count(pool.blocks, 'block')} in {show_count(pool.segments, 'segment')}, {len(wrong):,} wrong"
        )
    if wrong or pool.damaged_pages:
        raise typer.Exit(PROBLEMS)


def _look(root: str, *, blocks: bool) -> dict[str, Any]:
    try:
        return inspect_pool(root, blocks)
    except KvTierError as error:
        give_up(str(error), UNUSABLE)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "nothing is reclaimed yet"
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _print(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(box=None, show_header=bool(columns), pad_edge=False, padding=(0, 3, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)
