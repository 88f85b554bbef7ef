"""For tests of what stands above a tier: keys, and storage that misbehaves on demand."""

import hashlib
from typing import Any

from kvtier._kvtier import Faults
from kvtier.manager import TierManager

__all__ = ["Faults", "make_key", "open_faulty"]


def make_key(number: int, group: int = 0) -> bytes:
    """The key of the block that a test calls `number`: a 32-byte hash and the group's index."""
    return hashlib.sha256(b"%d" % number).digest() + group.to_bytes(4, "big")


def open_faulty(url: str, faults: Faults, *, identity: Any, rows: Any, **options: Any) -> TierManager:
    """Opens a tier as `kvtier.open` does, whose storage does what the script says.

    Args:
        url: As in `kvtier.open`.
        faults: The script; faults can be added at any time.
        identity: As in `kvtier.open`.
        rows: As in `kvtier.open`.
        **options: As in `kvtier.open`.
    """
    return TierManager(url, identity, rows, options, faults)
