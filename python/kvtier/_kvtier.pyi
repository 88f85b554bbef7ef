"""The native half of the `kvtier` package."""

from typing import Any, Literal, final

from typing_extensions import Buffer, CapsuleType

__all__ = ["ERROR_KINDS", "HostRows", "Rows", "__version__"]

__version__: str

ERROR_KINDS: tuple[str, ...]
"""Every value of `KvTierError.kind`."""

@final
class HostRows:
    """Page-aligned, zeroed rows owned by kvtier: `num_rows` rows of `row_bytes` bytes, back to back.

    The memory is in huge pages where the system gives them. `memoryview(rows)`, `numpy.asarray(rows)` and
    `torch.from_dlpack(rows)` are views of shape `(num_rows, row_bytes)` and bytes that share the memory and keep it
    alive.

    Args:
        num_rows: How many rows.
        row_bytes: Bytes of one row.
        pinned: Whether the memory is page-locked for fast copies from and to a GPU: "auto" pins where CUDA is there,
            True insists, False doesn't. This build has no CUDA support, so "auto" doesn't pin and True is an error.

    Raises:
        InvalidInputError: A number is not positive, or `pinned` is none of the above.
        UnsupportedError: `pinned=True` in a build without CUDA support.
        StoreUnavailableError: There is not enough memory.
    """

    def __new__(cls, num_rows: int, row_bytes: int, pinned: bool | Literal["auto"] = "auto") -> HostRows: ...
    @property
    def num_rows(self) -> int:
        """How many rows there are."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""

    @property
    def pinned(self) -> bool:
        """Whether the memory is page-locked for a GPU."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """The rows as a DLPack capsule of unsigned bytes; `copy=True` and other devices are refused."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Host memory: `(1, 0)`."""

@final
class Rows:
    """The rows of a tier: memory that kvtier and the engine both see.

    Row `i` is `row_bytes` bytes: those of the array's row `i`, or of several arrays' row `i` one after another. The
    memory stays alive, and is held where it is, until this object and every tier that uses it are gone.

    Args:
        source: What `kvtier.open` takes as `rows`.
        row_bytes: Splits an array of one dimension into rows; for others it is checked.

    Raises:
        InvalidInputError: It is no memory, or its rows overlap, are not in one piece, or have another length.
        UnsupportedError: It is memory of a device.
    """

    def __new__(cls, source: Buffer | Any, row_bytes: int | None = None) -> Rows: ...
    @property
    def num_rows(self) -> int:
        """How many rows there are."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, over all arrays."""

    @property
    def writable(self) -> bool:
        """Whether loads may write into the rows."""

    def is_aligned_to(self, align: int) -> bool:
        """Whether every piece of every row begins and ends at a multiple of `align`, as direct IO wants it."""

    def copy_of(self, row: int) -> bytes:
        """A copy of one row, for looking at it."""
