"""Buckets as commands take them: what the store itself says about them."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from kvtier import KvTierError
from kvtier._kvtier import inspect_bucket
from kvtier.cli.ending import UNUSABLE, give_up


@dataclass(frozen=True)
class Bucket:
    """A place in an object store."""

    url: str
    """`scheme://bucket/prefix`."""

    options: dict[str, Any]
    """Of tiers that are opened there."""

    endpoint: str
    """Where requests go."""

    addressing: str | None = None
    """`path` or `virtual-hosted`, for S3."""

    list_seconds: float | None = None
    """How long listing took."""

    unlisted: str | None = None
    """Why it could not be listed."""

    refused: str | None = None
    """Why no object could be written, read and removed; what follows is None then."""

    put_seconds: float | None = None
    head_seconds: float | None = None
    get_seconds: float | None = None
    """Medians, for objects of 4 KiB."""

    conditional_put: bool | None = None
    """Whether the server can be asked not to overwrite."""

    conditional_delete: bool | None = None
    """Whether the server can be asked to remove one version of an object only."""

    checksums: str | None = None
    """What it does with CRC-64/NVME that comes with uploads: `compared`, `ignored` or `refused`; None but for S3."""

    @classmethod
    def look_at(cls, url: str, options: dict[str, Any]) -> Self:
        """Has the store try out the bucket at `url`; nothing stays in it. Ends the command if it can't be one."""
        try:
            found = inspect_bucket(url, options)
        except KvTierError as error:
            give_up(str(error), UNUSABLE)
        return cls(**found, options=options)

    @property
    def name(self) -> str:
        """How a person would name it, and tiers are opened."""
        return self.url

    @property
    def medium(self) -> str:
        """What blocks are kept by."""
        return f"objects, {self.addressing} addressing" if self.addressing else "objects"

    @property
    def transfers(self) -> str:
        """How bytes move to and from it."""
        return self.endpoint

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {name: value for name, value in asdict(self).items() if name != "options"}
