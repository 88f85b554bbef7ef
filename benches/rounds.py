"""Rounds of vLLM's tiers: each tier moves and looks up the same blocks in a place of its own, in changing order."""

import hashlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from drive import Asked, Drive, HostBuffer
from passes import WAYS, Pass, Passes, Way
from tiers import Storage

JOBS = (1, 8, 32)
LONE_JOB = (256 << 10, 32)
"""Bytes of a row and blocks of the one job that is loaded by itself."""

DIRECTORIES = 32
"""Two levels of directories are made before the clock runs, as in a tier that has been in use."""


@dataclass
class Measured:
    """All that was measured in one storage."""

    kind: str
    names: tuple[str, ...]
    moved: dict[tuple[int, int], list[Passes]] = field(default_factory=dict)
    """Rounds by the bytes of a row and the blocks of a job."""

    asked: list[dict[str, dict[str, Asked]]] = field(default_factory=list)
    """Rounds of lookups: by tier, and whether the keys are there."""

    submitted: list[dict[str, dict[tuple[Way, int], float]]] = field(default_factory=list)
    """Rounds of submissions: us per key of the scheduler's thread, by tier, and by direction and blocks of a job."""

    lone_job: list[dict[str, float]] = field(default_factory=list)
    """Rounds of one job that is loaded by itself: seconds, by tier."""


def plan(storage: Storage, row_sizes: list[int] | None, share: int) -> dict[int, int]:
    """What each tier stores and loads in a round, by the bytes of a row."""
    return {size: storage.round_bytes.get(size, 64 << 20) // share for size in row_sizes or storage.round_bytes}


def steps_of(planned: dict[int, int], rounds: int) -> int:
    """How many times `measure` and `measure_calls` together call `done`."""
    return rounds * (len(planned) * len(JOBS) + 1)


def measure(storage: Storage, planned: dict[int, int], rounds: int, done: Callable[[], None]) -> Measured:
    """Moves blocks of all sizes in jobs of all sizes."""
    measured = Measured(storage.kind, storage.names)
    for row_bytes, total in planned.items():
        buffer = HostBuffer(max(total // row_bytes, DIRECTORIES), row_bytes)
        for per_job in JOBS:
            of_size = measured.moved.setdefault((row_bytes, per_job), [])
            for number in range(rounds):
                place = f"{row_bytes}-{per_job}-{number}"
                turns = _in_turn(storage.names, number)
                of_size.append({name: _pass(storage, name, f"{place}-{turn}", buffer, per_job) for turn, name in turns})
                done()
    return measured


def measure_calls(measured: Measured, storage: Storage, rounds: int, done: Callable[[], None]) -> None:
    """Measures what the scheduler's thread does, and one job by itself.

    For files `storage` is a place in memory, so that no disk is in it.
    """
    for number in range(rounds):
        turns = list(_in_turn(storage.names, number))
        measured.asked.append({name: _ask(storage, name, f"asked-{number}-{turn}") for turn, name in turns})
        measured.submitted.append({name: _submit(storage, name, f"submit-{number}-{turn}") for turn, name in turns})
        measured.lone_job.append({name: _lone_job(storage, name, f"lone-{number}-{turn}") for turn, name in turns})
        done()


def _in_turn(names: tuple[str, ...], number: int) -> list[tuple[int, str]]:
    first = number % len(names)
    return list(enumerate(names[first:] + names[:first]))


def _pass(storage: Storage, name: str, place: str, buffer: HostBuffer, per_job: int) -> Pass:
    keys = [_key(number) for number in range(buffer.count)]
    drive = Drive(storage.open(name, place, buffer.view))
    drive.move("store", [_key(-number - 1) for number in range(DIRECTORIES)], buffer.row_bytes, per_job)
    storage.settle(place)
    moved = {}
    for way in WAYS:
        moved[way] = drive.move(way, keys, buffer.row_bytes, per_job)
        if way == "store":
            storage.settle(place)
            buffer.clear()
    drive.tier.shutdown()
    if not buffer.is_as_made():
        raise SystemExit(f"{name} loaded other bytes than it stored")
    return Pass(**moved)


def _ask(storage: Storage, name: str, place: str) -> dict[str, Asked]:
    count = storage.lookups
    buffer = HostBuffer(count, 4096)
    keys = [_key(number) for number in range(count)]
    drive = Drive(storage.open(name, place, buffer.view))
    drive.move("store", keys, buffer.row_bytes, 32)
    others = [_key(number) for number in range(count, 2 * count)]
    mixed = [key for pair in zip(keys, others, strict=True) for key in pair]
    asked = {"there": drive.ask(keys), "not there": drive.ask(others)}
    drive.tier.shutdown()
    # Another engine, which has stored none of them.
    drive = Drive(storage.open(name, place, buffer.view))
    asked["another's, half there"] = drive.ask(mixed[:count])
    drive.tier.shutdown()
    return asked


def _submit(storage: Storage, name: str, place: str) -> dict[tuple[Way, int], float]:
    found: dict[tuple[Way, int], float] = {}
    for per_job in JOBS:
        count = storage.jobs * per_job
        buffer = HostBuffer(count, 4096)
        drive = Drive(storage.open(name, f"{place}-{per_job}", buffer.view))
        drive.move("store", [_key(-number - 1) for number in range(min(DIRECTORIES, count))], buffer.row_bytes, per_job)
        for way in WAYS:
            found[way, per_job] = drive.submit(way, [_key(number) for number in range(count)], per_job)
        drive.tier.shutdown()
    return found


def _lone_job(storage: Storage, name: str, place: str) -> float:
    row_bytes, blocks = LONE_JOB
    buffer = HostBuffer(blocks, row_bytes)
    keys = [_key(number) for number in range(blocks)]
    drive = Drive(storage.open(name, place, buffer.view))
    drive.move("store", keys, row_bytes, blocks)
    times = [drive.move("load", keys, row_bytes, blocks, step=0.00005).seconds for _ in range(5)]
    drive.tier.shutdown()
    return statistics.median(times)


def _key(number: int) -> bytes:
    """A few directories hold all blocks."""
    directory = hashlib.sha256(b"directory %d" % (number % DIRECTORIES)).digest()[:3]
    return directory + hashlib.sha256(b"block %d" % number).digest()[3:] + bytes(4)
