"""The namespaces of a root, as the store finds them."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from kvtier import KvTierError, StoredConfig
from kvtier._kvtier import survey_bucket, survey_root
from kvtier.cli.buckets import Bucket
from kvtier.cli.places import Place


@dataclass(frozen=True)
class Blocks:
    """The blocks of one rank."""

    blocks_dir: str
    """Name of their directory below the root."""

    unreadable: str | None = None
    """Why it could not be listed; the numbers mean nothing then."""

    blocks: int = 0
    """How many there are; an estimate unless `exact`."""

    bytes: int = 0
    """The bytes of their files, estimated from some of them."""

    exact: bool = True
    """Whether each block was counted."""

    quarantined: int = 0
    """Blocks that were proven bad and kept aside."""

    being_written: int = 0
    """Files that somebody is writing."""

    abandoned: int = 0
    """Files whose writer is gone."""

    undecided: int = 0
    """Files that are either, where locks can't tell."""


@dataclass(frozen=True)
class Namespace:
    """What was written under one identity."""

    base_dir: str
    """Name of the directory with its ``config.json``."""

    config: StoredConfig | None
    unreadable: str | None
    """Why there is no `config`."""

    ranks: list[Blocks]

    @property
    def is_misplaced(self) -> bool:
        """Whether its fields give another name than it has, so that nobody looks for blocks here."""
        return self.config is not None and not self.base_dir.endswith(f"_{self.config.digest}")

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        config = self.config
        return {
            "base_dir": self.base_dir,
            "unreadable": self.unreadable,
            "kind": config and config.kind,
            "fields": config and config.fields,
            "written_by": config and config.written_by,
            "ranks": [asdict(rank) for rank in self.ranks],
        }


@dataclass(frozen=True)
class Survey:
    """Everything of kvtier's, or of an engine's own tier, in a root."""

    namespaces: list[Namespace]
    in_trash: int
    """Namespaces that were reset and are not deleted yet."""

    unreadable: str | None = None
    """Why the root could not be listed."""

    @classmethod
    def of(cls, place: Place, patience: float) -> Self:
        """Looks at everything, for about as many seconds as `patience`."""
        try:
            if isinstance(place, Bucket):
                found, in_trash = survey_bucket(place.url, place.options, patience), 0
            else:
                found, in_trash = survey_root(place.path, patience)
        except KvTierError as error:
            return cls([], 0, str(error))
        namespaces = [
            Namespace(
                base_dir=namespace["base_dir"],
                config=namespace.get("config"),
                unreadable=namespace.get("unreadable"),
                ranks=[Blocks(**rank) for rank in namespace["ranks"]],
            )
            for namespace in found
        ]
        return cls(namespaces, in_trash)
