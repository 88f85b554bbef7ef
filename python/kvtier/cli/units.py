"""Sizes and rates as people read and write them."""

import re

import typer

_FACTORS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _FACTORS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}


def parse_size(given: str | int) -> int:
    """Bytes of a size such as ``4096``, ``256KiB`` or ``1.5 GiB``; for typer's options, whose defaults pass as well.

    Raises:
        typer.BadParameter: It is no size, or not positive, or not a whole number of bytes.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", str(given).strip().lower())
    factor = _FACTORS.get(found[2]) if found else None
    size = float(found[1]) * factor if found and factor else 0
    if size < 1 or size != int(size) or size > 1 << 62:
        raise typer.BadParameter(f"{given!r} is no size; give bytes, or a size such as 256KiB or 2MiB")
    return int(size)


def show_size(size: float) -> str:
    """``1990656`` as ``1.9 MiB``."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 1023.95 or unit == "TiB":
            break
    return f"{size:.1f} {unit}".replace(".0 ", " ")


def show_count(count: int, what: str) -> str:
    """``1,234 blocks``, and ``1 block``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def show_rate(size: float, seconds: float) -> str:
    """Bytes in so many seconds as ``1.31 GB/s``; a dash where nothing moved."""
    return f"{size / seconds / 1e9:.2f} GB/s" if size and seconds else "-"
