"""Whose blocks an engine may read: an identity made of what vLLM says of itself and what the operator states."""

import enum
from pathlib import Path
from typing import Any

from kvtier import Identity
from kvtier.errors import ConfigError
from kvtier.integrations.vllm.options import VllmOptions

__all__ = ["RowLayout", "covered", "identity_of", "not_stated", "row_layout"]

_PAGE = 4096


class RowLayout(enum.Enum):
    """What a row of the host buffer holds, and so which engines can read it."""

    REPLICATED = "replicated"
    """One copy that every worker would write the same: shared by all TP sizes."""

    CANONICAL = "canonical"
    """vLLM's byte format that no parallel layout shows in: shared by all parallel layouts that certify it."""

    JOINED = "joined"
    """The parts of all workers, one after another: shared by engines of the same parallel layout."""


def row_layout(spec: Any, replicated: bool | None = None) -> RowLayout:
    """What the rows of an engine hold.

    In the direct layout, that of an engine which doesn't ask for the canonical one, vLLM's flag
    `is_parallelism_agnostic` means that the workers' parts *in order* are the same bytes. With several blocks or layers
    in a row they are not in that order, and wrong output has been seen; so the flag counts for canonical rows only.

    Args:
        spec: vLLM's `OffloadingSpec`.
        replicated: The operator's own statement, as in `VllmOptions`.

    Raises:
        ConfigError: `replicated=True` is stated of rows that are not one copy.
    """
    config = spec.config
    # The spec knows better than its configuration whether its memory holds one copy.
    one_copy = bool(config.replicated_layout) and bool(getattr(spec, "replicated_layout", True))
    canonical = bool(getattr(config, "canonical_layout", False))
    if replicated is None:
        replicated = one_copy
    elif replicated and not one_copy:
        if canonical:
            raise ConfigError(
                "replicated=True: the engine's canonical rows are not one copy, or it would say so; leave it out"
            )
        if (workers := config.parallel.world_size) != 1:
            raise ConfigError(
                f"replicated=True: the engine says that a row holds the parts of {workers} workers, one after another, "
                "and not one copy; leave it out"
            )
    if replicated:
        return RowLayout.REPLICATED
    if canonical and config.parallel.is_parallelism_agnostic:
        return RowLayout.CANONICAL
    return RowLayout.JOINED


def identity_of(
    spec: Any, options: VllmOptions, row_bytes: int, epoch: str | None = None, blocks_per_file: int | None = None
) -> Identity:
    """The identity of an engine's blocks: the same for the same inputs, in every process and version.

    Args:
        spec: vLLM's `OffloadingSpec`. Only what it holds in every process is read.
        options: What the operator states.
        row_bytes: Bytes from one row of the host buffer to the next.
        epoch: A name that no other engine's blocks have, after a reset.
        blocks_per_file: What vLLM's own tier counts, for its naming; None: the blocks of a chunk.

    Raises:
        ConfigError: The operator's statements don't fit the engine, or the dtype is not resolved.
        InvalidInputError: A statement can't be part of an identity.
        UnsupportedError: vLLM doesn't say something that is needed.
    """
    chunk = spec.blocks_per_chunk
    if options.tier.compat == "vllm":
        # As vLLM's own tiers make it, and nothing else.
        return Identity.from_offloading_spec(
            spec, blocks_per_file or chunk, parallel_agnostic=True, row_bytes=row_bytes
        )
    layout = row_layout(spec, options.replicated)
    identity = Identity.from_offloading_spec(
        spec,
        chunk,
        parallel_agnostic=layout is not RowLayout.JOINED,
        replicated_layout=layout is RowLayout.REPLICATED,
        row_bytes=row_bytes,
        payload_bytes=_payload_bytes(spec, layout, row_bytes),
        worker_bytes=(spec.config.worker_kv_bytes_per_block or None) if layout is RowLayout.JOINED else None,
        model_id=options.model_id,
        model_revision=options.model_revision,
        rope=options.rope,
        kv_scales=options.kv_scales,
        model_runner=options.model_runner,
        namespace=" ".join(part for part in (options.namespace, epoch) if part) or None,
    )
    identity.fingerprint()  # says what is wrong with the dtype before anything is opened
    return identity


def _payload_bytes(spec: Any, layout: RowLayout, row_bytes: int) -> int | None:
    """How much of a row is stored, where that is not all of it.

    vLLM pads rows to the host's memory pages. Hosts with pages of 4 KiB and of 64 KiB share blocks when both store what
    the smaller page would have made of a row.
    """
    config = spec.config
    copies = 1 if layout is RowLayout.REPLICATED else config.parallel.world_size
    used = config.worker_kv_bytes_per_block * copies * spec.blocks_per_chunk
    padded = -(-used // _PAGE) * _PAGE
    return padded if 0 < padded < row_bytes else None


def covered(identity: Identity, compat: Any) -> str:
    """The hashed fields with their values, for a log line."""
    fields = [line for line in identity.explain(compat) if line.role in {"hashed", "collapsed"}]
    return ", ".join(f"{line.field}={_shown(line)}" for line in fields if line.value is not None)


def _shown(line: Any) -> str:
    if line.field == "kv_cache_groups":
        groups = (f"{len(group['layer_names'])} layers of {group['tokens_per_block']} tokens" for group in line.value)
        return f"[{'; '.join(groups)}]"
    return f"any ({line.value} here)" if line.role == "collapsed" else str(line.value)


def not_stated(identity: Identity) -> list[str]:
    """What could change the bytes of blocks, and neither the engine nor the operator said: each with its danger."""
    absent = {line.field: line.protects_from for line in identity.explain() if line.role == "absent"}
    matter = ["kv_cache_layout", "model_revision", "rope", "model_runner"]
    if "fp8" in identity.dtype or "int8" in identity.dtype:
        matter.append("kv_scales")
    missing = [f"{name} ({absent[name]})" for name in matter if name in absent]
    if identity.model_id is None and (Path(identity.model_name).is_absolute() or identity.model_name.startswith(".")):
        missing.append("model_id (another model at the same path, or this one at another)")
    return missing
