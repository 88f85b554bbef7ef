"""The exceptions that kvtier raises: one tree under `KvTierError`."""

from typing import Final


class KvTierError(Exception):
    """Base of all errors of kvtier.

    Attributes:
        kind: What went wrong, as a stable name to switch on: the same names that `BlockError.kind` and the metrics
            have.
        key: The key of the block that it is about, or None.
        path: The file, directory or URL that it is about, or None.
    """

    kind: str = "internal"
    key: bytes | None = None
    path: str | None = None


class ConfigError(KvTierError, ValueError):
    """Options that can't work, alone or together. The message lists every problem; nothing was opened."""

    kind = "config"


class InvalidInputError(KvTierError, ValueError):
    """An argument of a call is wrong; the call did nothing."""

    kind = "invalid_input"


class IdentityMismatchError(KvTierError):
    """The namespace on storage was written under another identity; the message names each field with both values."""

    kind = "identity_mismatch"


class BlockNotFoundError(KvTierError, LookupError):
    """There is no block under that key."""

    kind = "missing"


class CorruptBlockError(KvTierError):
    """The stored bytes are not the block that the key names; `kind` says in which way."""

    kind = "checksum"


class StoreUnavailableError(KvTierError):
    """The storage can't be reached, is full, or says no; later it may work."""

    kind = "unavailable"


class DeadlineExceededError(KvTierError, TimeoutError):
    """Not done within its time."""

    kind = "timeout"


class OverloadedError(KvTierError):
    """Refused, as too much is queued, overdue reads hold rows, or a bound leaves no room; nothing was done."""

    kind = "dropped"


class TierClosedError(KvTierError):
    """The tier was shut down, or its namespace reset, before the work was done."""

    kind = "shutdown"


class ForkedProcessError(KvTierError):
    """The object belongs to the process that this one was forked from; open a new one here."""

    kind = "forked"


class ReadOnlyError(KvTierError):
    """A store into a tier that was opened read-only, or a load into read-only memory."""

    kind = "read_only"


class UnsupportedError(KvTierError):
    """What was asked for is not in this build, or the block has a newer format than this build reads."""

    kind = "unsupported"


CLASS_OF_KIND: Final[dict[str, type[KvTierError]]] = {
    "config": ConfigError,
    "invalid_input": InvalidInputError,
    "identity_mismatch": IdentityMismatchError,
    "missing": BlockNotFoundError,
    "short": CorruptBlockError,
    "long": CorruptBlockError,
    "foreign": CorruptBlockError,
    "wrong_key": CorruptBlockError,
    "wrong_identity": CorruptBlockError,
    "checksum": CorruptBlockError,
    "unsupported_version": UnsupportedError,
    "io": StoreUnavailableError,
    "no_space": StoreUnavailableError,
    "capacity": OverloadedError,
    "permission": StoreUnavailableError,
    "unavailable": StoreUnavailableError,
    "timeout": DeadlineExceededError,
    "dropped": OverloadedError,
    "degraded": OverloadedError,
    "shutdown": TierClosedError,
    "reset": TierClosedError,
    "forked": ForkedProcessError,
    "read_only": ReadOnlyError,
    "unsupported": UnsupportedError,
    "internal": KvTierError,
}
"""Which class an error of the core has; of a kind that is not listed, `KvTierError`."""
