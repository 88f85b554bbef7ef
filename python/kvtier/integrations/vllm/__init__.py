"""kvtier as a secondary tier of vLLM's KV offloading: see `docs/vllm.md`.

Nothing else of kvtier imports vLLM, and importing this doesn't either: vLLM's other processes, which only register the
tier, need not load it.
"""

import contextlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtier.integrations.vllm.manager import KvTierSecondaryTierManager

__all__ = ["KvTierSecondaryTierManager", "register"]

_log = logging.getLogger(__name__)


def register() -> None:
    """Gives vLLM's factory of tiers the short name `kvtier`.

    vLLM calls it once or more in each of its processes, by the entry point in `vllm.general_plugins`.
    """
    try:
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: PLC0415
    except ImportError as error:
        _log.debug("this vLLM has no secondary tiers, so kvtier can't be one: %s", error)
        return
    with contextlib.suppress(ValueError):  # registered already
        SecondaryTierFactory.register_tier("kvtier", __name__, "KvTierSecondaryTierManager")


def __getattr__(name: str) -> Any:
    """Loads the tier when vLLM asks for it."""
    if name == "KvTierSecondaryTierManager":
        from kvtier.integrations.vllm.manager import KvTierSecondaryTierManager  # noqa: PLC0415

        return KvTierSecondaryTierManager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
