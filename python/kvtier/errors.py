"""The exceptions that kvtier raises: one tree under `KvTierError`."""

from typing import ClassVar


class KvTierError(Exception):
    """Base of all errors of kvtier.

    Attributes:
        kind: What went wrong, as a stable name to switch on: the same names that `BlockError.kind` and the metrics
            have.
        key: The key of the block that it is about, or None.
        path: The file, directory or URL that it is about, or None.
    """

    default_kind: ClassVar[str] = "internal"

    def __init__(
        self, message: str, *, kind: str | None = None, key: bytes | None = None, path: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind or self.default_kind
        self.key = key
        self.path = path


class ConfigError(KvTierError, ValueError):
    """Options that can't work, alone or together. The message lists every problem; nothing was opened."""

    default_kind = "config"


class InvalidInputError(KvTierError, ValueError):
    """An argument of a call is wrong; the call did nothing."""

    default_kind = "invalid_input"


class IdentityMismatchError(KvTierError):
    """The namespace on storage was written under another identity; the message names each field with both values."""

    default_kind = "identity_mismatch"


class BlockNotFoundError(KvTierError, LookupError):
    """There is no block under that key."""

    default_kind = "missing"


class CorruptBlockError(KvTierError):
    """The stored bytes are not the block that the key names; `kind` says in which way."""

    default_kind = "checksum"


class StoreUnavailableError(KvTierError):
    """The storage can't be reached, is full, or says no; later it may work."""

    default_kind = "unavailable"


class DeadlineExceededError(KvTierError, TimeoutError):
    """Not done within its time."""

    default_kind = "timeout"


class OverloadedError(KvTierError):
    """Refused at once, because too much is queued or overdue reads hold rows; nothing was done."""

    default_kind = "dropped"


class TierClosedError(KvTierError):
    """The tier was shut down, or its namespace reset, before the work was done."""

    default_kind = "shutdown"


class ForkedProcessError(KvTierError):
    """The object belongs to the process that this one was forked from; open a new one here."""

    default_kind = "forked"


class ReadOnlyError(KvTierError):
    """A store into a tier that was opened read-only, or a load into read-only memory."""

    default_kind = "read_only"


class UnsupportedError(KvTierError):
    """What was asked for is not in this build, or the block has a newer format than this build reads."""

    default_kind = "unsupported"


_CLASSES: dict[str, type[KvTierError]] = {
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


def error_of_kind(kind: str, message: str, key: bytes | None = None, path: str | None = None) -> KvTierError:
    """The exception for a failure of `kind`; a kind that this version doesn't know is a plain `KvTierError`."""
    return _CLASSES.get(kind, KvTierError)(message, kind=kind, key=key, path=path)
