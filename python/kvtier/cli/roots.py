"""Roots as commands take them: what the store itself says about a directory."""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from kvtier import KvTierError
from kvtier._kvtier import inspect_root
from kvtier.cli.ending import UNUSABLE, give_up


@dataclass(frozen=True)
class Root:
    """A directory that blocks can be kept in, perhaps."""

    path: str
    """Absolute, without symbolic links."""

    file_system: str
    """Its usual name."""

    reads_into_rows: bool
    """Whether reads are trusted to end, and so may go straight into an engine's rows."""

    read_only: bool
    """Whether it is mounted read-only."""

    total_bytes: int
    free_bytes: int
    """Bytes that this user can still write."""

    total_files: int
    """Files that it can hold; 0 where it has no such limit."""

    free_files: int
    """Files that this user can still make, where there is a limit."""

    ring_refused: str | None
    """Why this process can't use io_uring; None where it can."""

    refused: str | None = None
    """Why nothing could be tried; what follows is None then."""

    publishing: str | None = None
    """How files get their names when they are complete."""

    unnamed_files: bool | None = None
    """Whether unfinished files have no name, so that a killed writer leaves none behind."""

    direct_io_alignment: int | None = None
    """Bytes to which addresses, lengths and offsets have to be aligned; None where all goes through the page cache."""

    locks: bool | None = None
    """Whether files can be locked."""

    options: dict[str, Any] = field(default_factory=dict)
    """Of tiers that are opened there."""

    @classmethod
    def look_at(cls, url: str, options: dict[str, Any] | None = None) -> Self:
        """Has the store try out the directory at `url`, which stays as it was. Ends the command if it isn't one."""
        try:
            found: dict[str, Any] = inspect_root(url)
        except KvTierError as error:
            give_up(str(error), UNUSABLE)
        return cls(**{**found, "path": str(found["path"])}, options=options or {})

    @property
    def name(self) -> str:
        """How a person would name it, and tiers are opened."""
        return self.path

    @property
    def medium(self) -> str:
        """What blocks are kept by."""
        return self.file_system

    @property
    def transfers(self) -> str:
        """How bytes move to and from it."""
        return "direct IO" if self.direct_io_alignment else "through the page cache"

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {name: value for name, value in asdict(self).items() if name != "options"}
