"""How a command ends early: with one sentence, an exit code, and nothing left behind."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

PROBLEMS = 1
"""Exit code: the command ran, and something is not as it must be."""

UNUSABLE = 2
"""Exit code: what the command was given can't be used; nothing was done."""


def give_up(reason: str, code: int = PROBLEMS) -> NoReturn:
    """Prints the reason and ends the command."""
    typer.secho(f"kvtier: {reason}", err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Lets SIGINT and SIGTERM end the command the orderly way: what has to be cleaned up is, and the code says why."""

    def end(number: int, _frame: FrameType | None) -> None:
        # Once: a second signal must not interrupt the cleaning up.
        for later in (signal.SIGINT, signal.SIGTERM):
            signal.signal(later, signal.SIG_IGN)
        give_up(f"ended by {signal.Signals(number).name}", 128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
