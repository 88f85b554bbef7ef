"""What makes the next reads of a file come from the device."""

import ctypes
import os
from pathlib import Path


def flush(root: Path) -> None:
    """Waits until the file system of `root` has written all that was left to it."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), "syncfs failed")
    finally:
        os.close(descriptor)


def drop_from_page_cache(root: Path) -> None:
    """Drops what is in the page cache of the files below `root`, which must be flushed."""
    for path in root.rglob("*"):
        if not path.is_file():
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
