"""The answers to a lookup."""

import enum
from typing import final


@final
class Lookup(enum.Enum):
    """Whether a block is here. Members are singletons: compare with `is`."""

    HIT = "hit"
    """The block is here: load it."""

    MISS = "miss"
    """The block is not here."""

    RETRY = "retry"
    """Not known yet: ask again at the next step. Turns into HIT or MISS within `lookup_timeout`."""
