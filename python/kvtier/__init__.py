"""kvtier: the storage tier below GPU and host memory in KV-cache offloading of LLM engines."""

from kvtier._kvtier import HostRows, __version__
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

__all__ = [
    "BlockNotFoundError",
    "ConfigError",
    "CorruptBlockError",
    "DeadlineExceededError",
    "ForkedProcessError",
    "HostRows",
    "IdentityMismatchError",
    "InvalidInputError",
    "KvTierError",
    "OverloadedError",
    "ReadOnlyError",
    "StoreUnavailableError",
    "TierClosedError",
    "UnsupportedError",
    "__version__",
]
