"""What the demo found: numbers and facts, ready to be shown or to be written as JSON."""

from dataclasses import dataclass
from typing import Any

from kvtier import Difference, Identity
from kvtier.cli.demo.ranks import Plan, Rank, Report

Reports = dict[Rank, Report]


@dataclass(frozen=True)
class Part:
    """One of the two parts: rows that are stated to be replicated, or the same without that statement."""

    replicated: bool
    blocks: int
    writers: Reports
    readers: Reports

    @property
    def asked(self) -> int:
        """Blocks that readers looked up."""
        return sum(report.asked for report in self.readers.values())

    @property
    def hits(self) -> int:
        """Blocks that readers found."""
        return sum(report.hits for report in self.readers.values())

    @property
    def equal(self) -> int:
        """Blocks that readers loaded and whose every byte was right."""
        return sum(report.equal for report in self.readers.values())

    @property
    def namespaces(self) -> dict[str, list[Rank]]:
        """Directories below the root, and the ranks that use each."""
        users: dict[str, list[Rank]] = {}
        for rank, report in {**self.writers, **self.readers}.items():
            users.setdefault(report.namespace, []).append(rank)
        return users

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "replicated": self.replicated,
            "blocks": self.blocks,
            "namespaces": {name: list(map(str, ranks)) for name, ranks in self.namespaces.items()},
            "asked": self.asked,
            "hits": self.hits,
            "bytes_equal": self.equal,
            "writers": [_rank_as_json(rank, report) for rank, report in self.writers.items()],
            "readers": [_rank_as_json(rank, report) for rank, report in self.readers.items()],
        }


@dataclass(frozen=True)
class Outcome:
    """The whole demo."""

    plan: Plan
    root: str
    root_is_kept: bool
    medium: str
    """What blocks are kept by: a file system, or objects."""

    shared: Part
    unshared: Part
    differences: list[Difference]
    """Where the identities of a writer and of a reader differ in the second part."""

    reasons: dict[str, str]
    """What goes wrong between engines that differ in a field and share blocks all the same."""

    seconds: float

    @property
    def problems(self) -> list[str]:
        """What is not as it must be; empty when the demo succeeded."""
        shared, unshared = self.shared, self.unshared
        checks = {
            f"only {shared.hits} of {shared.asked} lookups hit": shared.hits == shared.asked,
            f"only {shared.equal} of {shared.hits} blocks are byte-equal": shared.equal == shared.hits,
            f"replicated ranks use {len(shared.namespaces)} namespaces": len(shared.namespaces) == 1,
            f"{unshared.hits} lookups hit rows of another TP size": unshared.hits == 0,
            "the identities of different TP sizes don't differ": bool(self.differences),
        }
        return [problem for problem, is_fine in checks.items() if not is_fine]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "ok": not self.problems,
            "problems": self.problems,
            "model": self.plan.model,
            "rows": self.plan.rows,
            "row_bytes": self.plan.row_bytes,
            "root": self.root,
            "root_is_kept": self.root_is_kept,
            "medium": self.medium,
            "shared": self.shared.as_json(),
            "unshared": self.unshared.as_json(),
            "differences": [
                {"field": d.field, "writer": d.left, "reader": d.right, "protects_from": self.reasons.get(d.field)}
                for d in self.differences
            ],
            "seconds": round(self.seconds, 3),
        }


def differences_between(writer: Identity, reader: Identity) -> tuple[list[Difference], dict[str, str]]:
    """Where two identities differ, and for each fact of them what it protects from."""
    reasons = {explanation.field: explanation.protects_from for explanation in writer.explain()}
    return writer.diff(reader), reasons


def _rank_as_json(rank: Rank, report: Report) -> dict[str, Any]:
    moved = report.stored + report.already_there if rank.role == "writer" else report.hits
    rate = report.moved_bytes / report.moving_seconds / 1e9 if report.moving_seconds else None
    shown: dict[str, Any] = {"tp_size": rank.tp_size, "rank": rank.number, "pid": report.pid, "blocks": moved}
    if rank.role == "writer":
        shown["already_there"] = report.already_there
    else:
        shown |= {"asked": report.asked, "hits": report.hits, "bytes_equal": report.equal}
    return shown | {"moved_bytes": report.moved_bytes, "gb_per_s": rate and round(rate, 3)}
