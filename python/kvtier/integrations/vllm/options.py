"""What an operator may say in an entry of `secondary_tiers`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, Self

from kvtier.config import OPTION_NAMES, TierConfig
from kvtier.errors import ConfigError

__all__ = ["ACCEPTED", "VllmOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """The options of a tier in vLLM: those of `TierConfig` by the same names, and these.

    Raises:
        ConfigError: Some are unknown, or have values that are not accepted, alone or together. Its message lists all.
    """

    url: str
    """Where the blocks are, as for `kvtier.open`."""

    locality: Literal["LOCAL", "REMOTE"] | None = None
    """What events and per-request filters of tiers say of the place; None says nothing."""

    replicated: bool | None = None
    """Whether each row is one copy that every worker would write the same, so that engines of all TP sizes share it.
    None: as the engine says. True: also for an engine with one worker, all of whose groups are MLA. False: never."""

    model_id: str | None = None
    """The model's name wherever it is loaded from."""

    model_revision: str | None = None
    """Revision of the weights."""

    rope: Any = None
    """Overrides of the position encoding and of the model's configuration, as JSON."""

    kv_scales: Any = None
    """Scales of a quantised KV cache, or a fingerprint of them, as JSON."""

    model_runner: str | None = None
    """Generation of the model runner."""

    namespace: str | None = None
    """A name that keeps apart what should be apart."""

    enable_kv_events: bool = False
    """Whether the engine's KV events tell of the blocks here. The engine's own flag must be on too."""

    on_reset: Literal["keep", "new_epoch", "delete"] = "keep"
    """What a reset of the engine's caches, as after new weights under the old name, does to the blocks here."""

    tier: TierConfig = TierConfig()  # noqa: RUF009 - frozen
    """The options that `kvtier.open` has as well."""

    @property
    def in_objects(self) -> bool:
        """Whether the blocks are objects of a store, and not files."""
        scheme, separator, _ = self.url.partition("://")
        return bool(separator) and scheme not in {"file", "memory"}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Takes options as the operator wrote them."""
        problems = [_unknown(name) for name in given if name not in ACCEPTED]
        own = {name: value for name, value in given.items() if name in _OWN and value is not None}
        if "url" not in own:
            problems.append('url is missing; give the place of the blocks, such as "file:///mnt/nvme/kv"')
        problems += [problem for name, value in own.items() if (problem := _problem_with(name, value))]
        tier = {name: value for name, value in given.items() if name in _SHARED and value is not None}
        if tier.get("compat") == "vllm":
            problems += [
                f'{name} has no place in vLLM\'s own naming; leave it out, or compat="vllm"'
                for name in _NOT_IN_VLLM
                if name in own
            ]
            if own.get("on_reset") == "new_epoch":
                problems.append('on_reset="new_epoch" has no place in vLLM\'s own naming; take "delete" or "keep"')
        if tier.get("read_only") is True and own.get("on_reset") == "delete":
            problems.append('on_reset="delete" with read_only: a read-only tier deletes nothing; take "new_epoch"')
        config = TierConfig()
        try:
            config = TierConfig(**tier)
        except ConfigError as error:
            problems.append(str(error))
        if problems:
            raise ConfigError(
                "\n  - ".join([f"{len(problems)} problems with the options of the kvtier tier:", *problems])
            )
        return cls(**own, tier=config)


_OWN: Final = tuple(field.name for field in fields(VllmOptions) if field.name != "tier")
# These follow from being in vLLM.
_SHARED: Final = tuple(name for name in OPTION_NAMES if name not in {"stepwise", "events"})
ACCEPTED: Final = (*_OWN, *_SHARED)
"""The names of all options."""

_NOT_IN_VLLM: Final = (
    "replicated",
    "model_id",
    "model_revision",
    "rope",
    "kv_scales",
    "model_runner",
    "namespace",
)
_CHOICES: Final = {"locality": ("LOCAL", "REMOTE"), "on_reset": ("keep", "new_epoch", "delete")}
_FLAGS: Final = ("replicated", "enable_kv_events")
_JSON: Final = ("rope", "kv_scales")

# Options of vLLM's own tiers, and what says the same here.
_ELSEWHERE: Final = {
    "root_dir": 'url="file:///..."',
    "n_read_threads": "io_threads",
    "n_write_threads": "io_threads",
    "store_config": 'url="s3://bucket/prefix" with endpoint, region and the like',
    "prefix": 'url="s3://bucket/prefix"',
    "events": "enable_kv_events",
}


def _unknown(name: str) -> str:
    hint = f" ({_ELSEWHERE[name]} says it here)" if name in _ELSEWHERE else ""
    return f"there is no option {name!r}{hint}; accepted are {', '.join(ACCEPTED)}"


def _problem_with(name: str, value: Any) -> str | None:
    """What is wrong with the value of an own option; what identity thinks of texts and JSON, it says itself."""
    if name in _JSON:
        return None
    if name in _FLAGS:
        return None if isinstance(value, bool) else f"{name}={value!r} is not accepted; give true or false"
    if not isinstance(value, str):
        return f"{name}={value!r} is not accepted; give text"
    if name in _CHOICES and value not in _CHOICES[name]:
        accepted = " or ".join(f'"{choice}"' for choice in _CHOICES[name])
        return f"{name}={value!r} is not accepted; give {accepted}"
    return None
