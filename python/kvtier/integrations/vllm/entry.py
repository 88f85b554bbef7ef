"""Which entry of `secondary_tiers` a tier was made of, and what the operator wrote there."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from kvtier.integrations.vllm.options import ACCEPTED

__all__ = ["Entry"]

_log = logging.getLogger(__name__)

# What vLLM's factory takes out of an entry before it makes the tier.
_FACTORY_KEYS: Final = frozenset({"type", "module_path", "backpressure"})


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of `secondary_tiers`, as the tier that was made of it finds it."""

    options: Mapping[str, Any]
    """What the operator wrote."""

    label: str
    """The tier's number, from 1, and its type: what vLLM's own metrics have in the label `tier`."""

    @classmethod
    def of(cls, spec: Any, tier_type: str, arguments: Mapping[str, Any], taken: Collection[str] = ()) -> Self:
        """Finds the entry that a tier's constructor is called for.

        Keywords that newer versions of vLLM pass, and no operator wrote, are ignored. An option that an operator has
        misspelt is not.

        Args:
            spec: vLLM's `OffloadingSpec`.
            tier_type: The entry's type.
            arguments: The keywords that are left to the tier.
            taken: Labels of tiers that the same engine has made before.
        """
        entries = (getattr(spec, "extra_config", None) or {}).get("secondary_tiers") or []
        for number, entry in enumerate(entries, start=1):
            label = f"{number}:{tier_type}"
            options = {name: value for name, value in entry.items() if name not in _FACTORY_KEYS}
            if entry.get("type") == tier_type and label not in taken and options.items() <= arguments.items():
                break
        else:
            # Made by hand: what can stand in a configuration is taken for an option.
            label = tier_type
            options = {name: value for name, value in arguments.items() if name in ACCEPTED or _is_json(value)}
        if ignored := arguments.keys() - options.keys():
            _log.debug("%s: keywords of vLLM that kvtier doesn't use: %s", label, ", ".join(sorted(ignored)))
        return cls(options, label)


def _is_json(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | list | dict)
