"""The native half of the `kvtier` package."""

__all__ = ["__version__"]

__version__: str
