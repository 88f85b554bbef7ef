"""kvtier: the storage tier below GPU and host memory in KV-cache offloading of LLM engines."""

from kvtier._kvtier import (
    BlockError,
    Compatibility,
    Difference,
    Event,
    Explanation,
    FileMapper,
    HostRows,
    Identity,
    JobResult,
    StoredConfig,
    __version__,
    canonical_json,
)
from kvtier.config import TierConfig
from kvtier.errors import (
    BlockNotFoundError,
    ConfigError,
    CorruptBlockError,
    DeadlineExceededError,
    ForkedProcessError,
    IdentityMismatchError,
    InvalidInputError,
    KvTierError,
    OverloadedError,
    ReadOnlyError,
    StoreUnavailableError,
    TierClosedError,
    UnsupportedError,
)
from kvtier.lookup import Lookup
from kvtier.manager import TierManager, open  # noqa: A004 - read as `kvtier.open`
from kvtier.metrics import TierStats, TrafficStats

__all__ = [
    "BlockError",
    "BlockNotFoundError",
    "Compatibility",
    "ConfigError",
    "CorruptBlockError",
    "DeadlineExceededError",
    "Difference",
    "Event",
    "Explanation",
    "FileMapper",
    "ForkedProcessError",
    "HostRows",
    "Identity",
    "IdentityMismatchError",
    "InvalidInputError",
    "JobResult",
    "KvTierError",
    "Lookup",
    "OverloadedError",
    "ReadOnlyError",
    "StoreUnavailableError",
    "StoredConfig",
    "TierClosedError",
    "TierConfig",
    "TierManager",
    "TierStats",
    "TrafficStats",
    "UnsupportedError",
    "__version__",
    "canonical_json",
    "open",
]
