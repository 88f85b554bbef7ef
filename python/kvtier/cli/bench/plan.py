"""What is measured, and how much that writes."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from kvtier import TierConfig
from kvtier.cli.buckets import Bucket
from kvtier.cli.ending import UNUSABLE, give_up
from kvtier.cli.places import Place
from kvtier.cli.units import show_size

ROW_BYTES = (64 << 10, 256 << 10, 2 << 20)
"""Small, usual, large."""

BYTES = 256 << 20
BYTES_IN_BUCKETS = 32 << 20
"""There somebody may pay for traffic."""

QUICK_BYTES = 32 << 20
ROUNDS = 3
MOST_SAMPLES = 100
"""Blocks that latency is measured with, one at a time."""

LEAST_FREE = 0.05
"""Share of a file system that stays free."""

PAGE = 4096
POOL_PASSES = 1.3
"""A pool has room for so many times what one measurement stores."""

SEGMENTS = 24
"""A pool has about as many at least, each with room for some blocks."""

SEGMENT_BLOCKS = 8
BEGUN = 4
"""Segments that are there without being full, at most."""

MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """One way to keep rows of one size. In a bucket there is only one."""

    row_bytes: int
    layout: str | None
    io_engine: str | None

    @property
    def block_bytes(self) -> int:
        """What a row takes on storage: padding and a page more."""
        return self.row_bytes + -self.row_bytes % PAGE + PAGE

    def options(self, stored: int) -> dict[str, Any]:
        """Those of its tier, which is to hold what one measurement stores: so many bytes."""
        chosen: dict[str, Any] = {"layout": self.layout, "io_engine": self.io_engine}
        if self.layout == "packed":
            segment, chosen["max_bytes"] = self.pool(stored)
            chosen["segment_bytes"] = segment
        return {name: value for name, value in chosen.items() if value}

    def pool(self, stored: int) -> tuple[int, int]:
        """Bytes of a segment, and of all: with several passes some are reclaimed, as happens in the long run."""
        whole = POOL_PASSES * stored
        segment = -(-max(SEGMENT_BLOCKS * self.block_bytes, int(whole / SEGMENTS), 2 * MIB) // MIB) * MIB
        return segment, max(int(whole), SEGMENTS * segment)


@dataclass(frozen=True)
class Plan:
    """Everything that is measured."""

    cases: list[Case]
    bytes: int
    """What each measurement stores at most."""

    rounds: int
    warm: int
    left_out: dict[str, str]
    """What can't be measured here, and why."""

    def blocks(self, case: Case) -> int:
        """How many blocks a measurement of throughput stores."""
        return max(8, self.bytes // case.block_bytes)

    def samples(self, case: Case) -> int:
        """How many blocks latency is measured with."""
        return min(MOST_SAMPLES, self.blocks(case) // 4)

    def stored(self, case: Case) -> int:
        """Bytes that one measurement of a case stores at most, warming up apart."""
        return (self.blocks(case) + self.samples(case)) * case.block_bytes

    def on_storage(self, case: Case) -> int:
        """Bytes that lie there until the end."""
        stored = self.stored(case) + self.warm * self.blocks(case) * case.block_bytes
        if case.layout != "packed":
            return stored
        segment, pool = case.pool(self.stored(case))
        return min(pool, stored + BEGUN * segment)

    @property
    def total_bytes(self) -> int:
        """What lies on storage at the end at most."""
        return self.rounds * sum(self.on_storage(case) for case in self.cases)

    def turns(self) -> Iterator[Case]:
        """The cases as they are measured: there and back, so that what gets slower or faster meanwhile does for all."""
        for number in range(self.rounds):
            yield from reversed(self.cases) if number % 2 else self.cases

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "cases": [asdict(case) for case in self.cases],
            "bytes": self.bytes,
            "rounds": self.rounds,
            "warm": self.warm,
            "most_bytes": self.total_bytes,
            "left_out": self.left_out,
        }


def plan_for(
    place: Place,
    *,
    row_sizes: list[int] | None,
    layouts: list[str] | None,
    io_engines: list[str] | None,
    size: int | None,
    rounds: int | None,
    warm: int,
    quick: bool,
) -> Plan:
    """Plans what was asked for. Ends the command if that can't be had at the place, or if there is no room for it."""
    if place.refused:
        give_up(f"nothing can be stored at {place.name}: {place.refused}", UNUSABLE)
    left_out: dict[str, str] = {}
    if isinstance(place, Bucket):
        if layouts or io_engines:
            give_up("layouts and IO engines are for directories; a bucket has one way only", UNUSABLE)
        ways: list[tuple[str | None, str | None]] = [(None, None)]
    else:
        if place.ring_refused:
            left_out["uring"] = place.ring_refused
        ways = [
            (layout, engine)
            for layout in _chosen("layout", layouts, {})
            for engine in _chosen("io_engine", io_engines, left_out)
        ]
    default = QUICK_BYTES if quick else BYTES_IN_BUCKETS if isinstance(place, Bucket) else BYTES
    plan = Plan(
        cases=[Case(row_bytes, *way) for row_bytes in row_sizes or ROW_BYTES for way in ways],
        bytes=size or default,
        rounds=rounds or (1 if quick else ROUNDS),
        warm=warm,
        left_out=left_out,
    )
    if not isinstance(place, Bucket):
        room = place.free_bytes - int(LEAST_FREE * place.total_bytes)
        if plan.total_bytes > room:
            give_up(
                f"this needs {show_size(plan.total_bytes)}, and {show_size(max(0, room))} can be used at {place.name}: "
                "give a smaller --bytes or fewer --rounds, --quick, or measure fewer things",
                UNUSABLE,
            )
    return plan


def _chosen(option: str, given: list[str] | None, left_out: dict[str, str]) -> list[str]:
    """The values of an option that are measured: those that were given, or all that the package knows."""
    [choices] = [get_args(field.type) for field in fields(TierConfig) if field.name == option]
    known = [choice for choice in choices if choice != "auto"]
    for value in given or []:
        if value not in known:
            give_up(f"--{option.replace('_', '-')} {value!r} can't be measured; give {' or '.join(known)}", UNUSABLE)
        if value in left_out:
            give_up(f"{option}={value!r} can't be had here: {left_out[value]}", UNUSABLE)
    return [value for value in dict.fromkeys(given or known) if value not in left_out]
