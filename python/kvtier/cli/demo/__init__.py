"""``kvtier demo``: processes stand for the ranks of two engines, and one finds what the other has stored."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from kvtier.cli.demo import screen
from kvtier.cli.demo.outcome import Outcome, Part, differences_between
from kvtier.cli.demo.ranks import ROW_BYTES, Plan, Rank, RowsKind, best_rows, identity_of
from kvtier.cli.demo.team import RankFailedError, Team
from kvtier.cli.ending import ended_by_signals, give_up
from kvtier.cli.options import TierOptions, parse_options
from kvtier.cli.places import Place, look_at
from kvtier.cli.units import parse_size

WRITERS = [Rank("writer", 2, number) for number in range(2)]
READERS = [Rank("reader", 4, number) for number in range(4)]
UNSHARED_BLOCKS = 8
"""Enough to show that nothing is found."""


def demo(
    *,
    root: Annotated[
        str | None,
        typer.Option(
            help="Directory, file:// URL or bucket (s3://, gs://, az://) to store in; blocks stay there. By default a "
            "temporary directory."
        ),
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks that the TP=2 engine stores.")] = 64,
    row_bytes: Annotated[
        int, typer.Option(parser=parse_size, metavar="SIZE", help="Bytes of one block, such as 256KiB.")
    ] = ROW_BYTES,
    model: Annotated[str, typer.Option(help="Name of the model.")] = "deepseek-ai/DeepSeek-V2-Lite",
    rows: Annotated[
        RowsKind | None, typer.Option(help="What rows are made of; by default the first of these that is installed.")
    ] = None,
    option: TierOptions = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON, and nothing else.")] = False,
) -> None:
    """What TP=2 wrote, TP=4 hits: the ranks of two engines, one process each, share blocks byte for byte."""
    console = Console(quiet=as_json, highlight=False)
    options = parse_options(option)
    with ended_by_signals(), _opened(root, options) as place:
        plan = Plan(
            url=place.name,
            options=options,
            model=model,
            row_bytes=row_bytes,
            shared_blocks=blocks,
            unshared_blocks=min(blocks, UNSHARED_BLOCKS),
            rows=rows or best_rows(),
        )
        outcome = _play(console, plan, place, root_is_kept=root is not None)
    if as_json:
        typer.echo(json.dumps(outcome.as_json(), indent=2))
    else:
        screen.show_outcome(console, outcome)
    if outcome.problems:
        raise typer.Exit(1)


@contextmanager
def _opened(root: str | None, options: dict[str, Any]) -> Iterator[Place]:
    """The root to use: the given one, or a directory that goes at the end, however that comes."""
    if root is not None:
        yield look_at(root, options)
        return
    directory = tempfile.mkdtemp(prefix="kvtier-demo-")
    try:
        yield look_at(directory, options)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _play(console: Console, plan: Plan, place: Place, *, root_is_kept: bool) -> Outcome:
    begun = time.monotonic()
    screen.show_start(console, plan, place, root_is_kept=root_is_kept)
    stores, loads = "TP=2 stores", "TP=4 loads"
    totals = {stores: plan.shared_blocks, loads: plan.shared_blocks * len(READERS)}
    try:
        # All start at once, so that the interpreters' start-up overlaps; the readers wait until the writers are done.
        with Team(plan, [*WRITERS, *READERS]) as team, screen.progress_of(console, totals) as advance:
            writers = team.collect(WRITERS, advance[stores])
            team.release(READERS)
            readers = team.collect(READERS, advance[loads])
    except RankFailedError as error:
        give_up(str(error))
    shared, unshared = (
        Part(
            replicated=replicated,
            blocks=blocks,
            writers={rank: reports[part] for rank, reports in writers.items()},
            readers={rank: reports[part] for rank, reports in readers.items()},
        )
        for part, (replicated, blocks) in enumerate([(True, plan.shared_blocks), (False, plan.unshared_blocks)])
    )
    writer, reader = (identity_of(plan, ranks[0], replicated=False) for ranks in (WRITERS, READERS))
    differences, reasons = differences_between(writer, reader)
    return Outcome(
        plan, place.name, root_is_kept, place.medium, shared, unshared, differences, reasons,
        seconds=time.monotonic() - begun,
    )  # fmt: skip
