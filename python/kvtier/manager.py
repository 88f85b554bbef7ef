"""The tier manager: what an engine's scheduler talks to."""

import atexit
import logging
import os
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kvtier._kvtier import Identity, Tier, exit_begins
from kvtier.config import TierConfig
from kvtier.errors import KvTierError
from kvtier.metrics import TierStats

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["TierManager", "open"]

_log = logging.getLogger(__name__)

# Tiers of this process that were not shut down, oldest first.
_open_tiers: "weakref.WeakValueDictionary[int, TierManager]" = weakref.WeakValueDictionary()

EXIT_TIMEOUT = 10.0
"""Seconds that the tiers which are still open at the interpreter's exit wait for what is under way, all together."""


class TierManager(Tier):
    """Keeps KV blocks in a storage tier and moves them to and from the rows of an engine.

    Made by `kvtier.open`. All methods may be called from any thread; none of those that a scheduler calls at each step
    does IO or waits. Rows belong to the tier from the submission of a job until its result is handed out: meanwhile
    the engine doesn't write to them, and doesn't read those that are being loaded.

    As a context manager, it shuts the tier down at the end. A tier that is still open when the interpreter exits is
    shut down then.
    """

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        _open_tiers[id(self)] = self

    def stats(self) -> TierStats:
        """Counters since the tier was opened, and the moment's numbers. Takes constant time."""
        return TierStats.of(self._stats())

    def shutdown(self, timeout: float | None = EXIT_TIMEOUT) -> None:
        """Ends the tier; calling it again is harmless.

        Jobs that wait fail with kind "shutdown", those under way may finish within `timeout` seconds. Results can still
        be taken afterwards. Nothing is deleted from storage.

        Raises:
            DeadlineExceededError: The storage still holds operations. Their jobs have failed, but the rows' memory must
                stay where it is; kvtier keeps it alive, as far as it can.
        """
        _open_tiers.pop(id(self), None)
        super().shutdown(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()


def open(  # noqa: A001 - it is `kvtier.open`
    url: str | os.PathLike[str],
    *,
    identity: Identity,
    rows: "Buffer | Any",
    config: TierConfig | None = None,
    **options: Any,
) -> TierManager:
    """Opens the tier at `url` for blocks of `identity` that move to and from `rows`.

    Args:
        url: `file:///absolute/path`, a plain path, a bucket (`s3://bucket/prefix`, `gs://…`, `az://…`), or `memory://`
            (`memory://name` is shared within the process).
        identity: What the blocks are. Its `row_bytes` is filled in from the rows.
        rows: `(num_rows, row_bytes)` bytes that both sides see: a buffer (memoryview, numpy array, mmap), a DLPack
            producer (a torch tensor in host memory, of any dtype), `kvtier.HostRows`, or a list of these when one
            block is scattered over several tensors: then block `i` is the concatenation of each tensor's row `i`. Rows
            lie in one piece each (C-contiguous); there may be padding between them. The first dimension counts the
            rows; a buffer of one dimension is split by the identity's `row_bytes`. Read-only memory can be stored
            from, and not loaded into. While the tier is open, nobody may free, move or resize the memory; the tier
            holds what it can of that (torch's `share_memory_` moves it all the same).
        config: The options.
        **options: Options by name; they win over `config`.

    Raises:
        ConfigError: URL, options, identity and rows don't fit together; its message lists every problem.
        InvalidInputError: `rows` can't be used; its message says why, and what is accepted.
        UnsupportedError: Rows in device memory.
        IdentityMismatchError: The namespace on storage was written under another identity.
        StoreUnavailableError: The place can't be used: missing, not a directory, no permission, locked by another.
    """
    return TierManager(os.fspath(url), identity, rows, {**(config.as_options() if config else {}), **options})


def _shut_down_all() -> None:
    """At the interpreter's exit: the youngest first, as with nested `with` blocks."""
    exit_begins()
    until = time.monotonic() + EXIT_TIMEOUT
    for tier in reversed(list(_open_tiers.values())):
        try:
            tier.shutdown(max(0, until - time.monotonic()))
        except KvTierError as error:
            _log.warning("shutting down %r at exit: %s", tier, error)


def _forget_all() -> None:
    """In a forked child: the tiers are the parent's."""
    for tier in list(_open_tiers.values()):
        tier._abandon_in_child()  # noqa: SLF001 - of the class's own base
    _open_tiers.clear()


atexit.register(_shut_down_all)
os.register_at_fork(after_in_child=_forget_all)
