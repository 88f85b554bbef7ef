"""kvtier: the storage tier below GPU and host memory in KV-cache offloading of LLM engines."""

from kvtier._kvtier import __version__

__all__ = ["__version__"]
