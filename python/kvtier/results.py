"""What a tier answers: lookups, results of jobs, events."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

from kvtier.errors import error_of_kind


@final
class Lookup(enum.Enum):
    """Whether a block is here. Members are singletons: compare with `is`."""

    HIT = "hit"
    """The block is here: load it."""

    MISS = "miss"
    """The block is not here."""

    RETRY = "retry"
    """Not known yet: ask again at the next step. Turns into HIT or MISS within `lookup_timeout`."""


@final
@dataclass(frozen=True, slots=True)
class BlockError:
    """Why one block of a job failed."""

    kind: str
    """A stable name to switch on; the same names that `KvTierError.kind` has."""

    message: str
    """For a person."""


@final
@dataclass(frozen=True, slots=True)
class JobResult:
    """What became of a job. Each job has exactly one."""

    job_id: int
    """The number that it was submitted under."""

    kind: Literal["store", "load"]
    """Which way its blocks went."""

    success: bool
    """Whether every block succeeded."""

    successful_keys: tuple[bytes, ...]
    """The keys of the blocks that succeeded, as submitted."""

    failures: Mapping[bytes, BlockError]
    """The reason for each block that failed. After a failed load the bytes of its row are undefined."""

    transfer_time: float
    """Seconds from submission to the last block's end."""

    transfer_bytes: int
    """Payload bytes that moved. A block that was stored already moves none."""

    def raise_for_failures(self) -> None:
        """Raises the first block's error, as a `KvTierError` of its kind, if any block failed."""
        for key, error in self.failures.items():
            more = f" (and {len(self.failures) - 1} more blocks failed)" if len(self.failures) > 1 else ""
            raise error_of_kind(error.kind, f"{error.message}{more}", key)


@final
@dataclass(frozen=True, slots=True)
class Event:
    """Something that became true of a block, for those who route requests by content."""

    kind: Literal["stored", "removed", "cleared"]
    """`stored`: every reader sees the block (also when it was there before). `removed`: it was missing or proven bad
    when it was loaded. `cleared`: the namespace was reset, so all blocks are gone."""

    key: bytes | None = None
    """The block; None for `cleared`."""

    reason: str | None = None
    """Why it was removed, as in `BlockError.kind`; None otherwise."""
