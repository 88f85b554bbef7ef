"""Figures that must hold, and the tables that figures are shown in."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Target:
    """A figure that must hold."""

    what: str
    value: float
    bound: float
    unit: str
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        """Whether it does."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def print_targets(console: Console, targets: Iterable[Target]) -> None:
    """Prints each with what was found and whether that is enough."""
    console.print()
    shown = table("target", "found", "must be", "")
    for target in targets:
        bound = f"{'at least' if target.at_least else 'at most'} {target.bound:.3g}"
        verdict = "[green]met[/]" if target.is_met else "[bold red]missed[/]"
        shown.add_row(target.what, f"{target.value:.2f}", f"{bound} {target.unit}", verdict)
    console.print(shown)


def table(first: str, *others: str) -> Table:
    """A table with headings: a name on the left, figures beside it."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    made.add_column(first, no_wrap=True)
    for heading in others:
        made.add_column(heading, justify="right")
    return made
