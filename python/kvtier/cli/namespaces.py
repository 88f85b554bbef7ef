"""Namespaces on disk, found by the path of a config.json or of a directory."""

import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from kvtier import ConfigError, StoredConfig
from kvtier.cli.ending import UNUSABLE, give_up

CONFIG_FILE = "config.json"


@dataclass(frozen=True, slots=True)
class FoundNamespace:
    """A namespace on disk.

    Attributes:
        path: Its config.json.
        config: What that says.
    """

    path: Path
    config: StoredConfig

    @property
    def base_dir(self) -> str:
        """Name of the directory that holds the config.json."""
        return self.path.absolute().parent.name

    @property
    def blocks_dirs(self) -> list[str]:
        """Names of the directories beside it that hold blocks, one for each rank."""
        base = self.path.absolute().parent
        ranks = {int(found[1]): path for path in base.parent.iterdir() if (found := _rank_of(path, base.name))}
        return [ranks[rank].name for rank in sorted(ranks)]

    @property
    def warning(self) -> str | None:
        """What is wrong with it, if anything: a name that its fields don't give it."""
        if self.base_dir.endswith(f"_{self.config.digest}"):
            return None
        return (
            f"the directory is called {self.base_dir}, but these fields give the digest {self.config.digest}: "
            "config.json was edited, or was copied here, so no engine looks for blocks in this place"
        )


def find_namespace(place: str) -> FoundNamespace:
    """The namespace at a path or file URL.

    The path is that of a config.json, or of a namespace's directory with or without ``_r<rank>``. Ends the command if
    there is none, or if it can't be read.
    """
    path = _config_path(_local_path(place))
    try:
        return FoundNamespace(path, StoredConfig(path.read_bytes()))
    except OSError as error:
        give_up(f"{path} can't be read: {error.strerror}", UNUSABLE)
    except ConfigError as error:
        give_up(f"{path}: {error}", UNUSABLE)


def _local_path(place: str) -> Path:
    scheme, separator, _ = place.partition("://")
    if not separator:
        return Path(place)
    url = urllib.parse.urlsplit(place)
    if scheme != "file" or url.netloc not in ("", "localhost"):
        give_up(f"{place} is not on this machine; paths and file:// URLs are accepted", UNUSABLE)
    return Path(urllib.parse.unquote(url.path))


def _config_path(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.exists():
        give_up(f"there is no {path}", UNUSABLE)
    of_a_rank = re.fullmatch(r"(.+)_r\d+", path.absolute().name)
    bases = [path, path.absolute().with_name(of_a_rank[1])] if of_a_rank else [path]
    found = [base / CONFIG_FILE for base in bases if (base / CONFIG_FILE).exists()]
    if not found:
        inside = sorted(config.parent.name for config in path.glob(f"*/{CONFIG_FILE}"))
        reason = f"holds namespaces, give one of them: {', '.join(inside)}" if inside else "is no namespace"
        give_up(f"{path} {reason}", UNUSABLE)
    return found[0]


def _rank_of(path: Path, base: str) -> re.Match[str] | None:
    return re.fullmatch(rf"{re.escape(base)}_r(\d+)", path.name) if path.is_dir() else None
