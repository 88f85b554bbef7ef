"""The native half of the `kvtier` package."""

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypedDict, final

from typing_extensions import Buffer, CapsuleType, disjoint_base

from kvtier.lookup import Lookup

__all__ = [
    "ERROR_KINDS",
    "LATENCY_BUCKETS",
    "BlockError",
    "Compatibility",
    "Difference",
    "Event",
    "Explanation",
    "Faults",
    "FileMapper",
    "HostRows",
    "Identity",
    "JobResult",
    "Rows",
    "StoredConfig",
    "Tier",
    "__version__",
    "canonical_json",
    "check_options",
    "check_place",
    "exit_begins",
    "inspect_bucket",
    "inspect_pool",
    "inspect_root",
    "remove_trial",
    "survey_bucket",
    "survey_root",
]

__version__: str

ERROR_KINDS: tuple[str, ...]
"""Every value of `KvTierError.kind`."""

LATENCY_BUCKETS: tuple[float, ...]
"""Upper bounds in seconds of the buckets of latencies."""

_Json: TypeAlias = bool | int | float | str | Sequence[_Json] | Mapping[str, _Json] | None

class _Group(TypedDict):
    tokens_per_block: int
    layer_names: Sequence[str]

class _OffloadingSpec(Protocol):
    @property
    def config(self) -> Any: ...

@final
class HostRows:
    """Page-aligned, zeroed rows owned by kvtier: `num_rows` rows of `row_bytes` bytes, back to back.

    The memory is in huge pages where the system gives them. `memoryview(rows)`, `numpy.asarray(rows)` and
    `torch.from_dlpack(rows)` are views of shape `(num_rows, row_bytes)` and bytes that share the memory and keep it
    alive.

    The memory is this process's own: a forked child can't take new views of it or open a tier over it
    (`ForkedProcessError`), and views that were there before the fork read as zeros there, whatever the parent does. So
    a fork can't disturb a load that is under way. Rows that processes share are made with
    `multiprocessing.shared_memory`.

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

def canonical_json(value: _Json, /) -> str:
    """Gives the text that identities are hashed over.

    It is what ``json.dumps(value, sort_keys=True, separators=(",", ":"))`` gives, byte for byte: pure ASCII, keys in the
    order of their code points.

    Args:
        value: None, bool, int of any size, finite float, str (lone surrogates too), and lists, tuples and dicts of
            these. Integers of other types, such as numpy's, are taken as int.

    Raises:
        InvalidInputError: For anything else, naming the place: NaN, the infinities, a dict key that is no str, nesting
            deeper than 1000 levels.
    """

@final
class FileMapper:
    """Maps block keys to file names exactly as the file mapper of vLLM's own tiers does.

    Frozen, hashable and picklable. Two mappers are equal when they give every key the same path. It refuses no
    combination, and it misses facts that change bytes: see `Identity` for kvtier's own namespaces.

    Args:
        root_dir: The directory, taken as it stands: a trailing slash stays.
        model_name: The model's name or path; its slashes become underscores in the path.
        tokens_per_hash: Tokens that one block hash covers.
        blocks_per_file: Blocks in one file.
        tp_size: Workers between which tensors are split.
        pp_size: Stages between which layers are split.
        pcp_size: Workers between which the tokens of a prompt are split while it is read.
        dcp_size: Workers between which cached tokens are split while text is produced.
        rank: The worker's number; part of the path, never hashed.
        dtype: Element type of the KV cache; its `str` is taken.
        kv_cache_groups: Dicts of ``tokens_per_block`` and ``layer_names``.
        inference_engine: The engine's name.
        parallel_agnostic: Rows are the same bytes under any parallel layout: all sizes are hashed as 1, rank is 0.
        replicated_layout: Every rank holds the same bytes. Hashed when True; collapses nothing by itself.
        canonical_format: The engine's canonical byte format, if rows are in one.

    Raises:
        InvalidInputError: If an argument has no JSON spelling.
    """

    def __new__(
        cls,
        root_dir: str | os.PathLike[str],
        model_name: str,
        tokens_per_hash: int,
        blocks_per_file: int,
        tp_size: int,
        pp_size: int,
        pcp_size: int,
        dcp_size: int,
        rank: int,
        dtype: object,
        kv_cache_groups: Sequence[Mapping[str, Any]] | None = None,
        inference_engine: str = "vllm",
        parallel_agnostic: bool = False,
        replicated_layout: bool = False,
        canonical_format: str | None = None,
    ) -> Self: ...
    @classmethod
    def from_offloading_spec(
        cls,
        root_dir: str | os.PathLike[str],
        offloading_spec: _OffloadingSpec,
        blocks_per_file: int = 1,
        parallel_agnostic: bool = False,
    ) -> Self:
        """Makes the mapper of an engine's own tier from vLLM's offloading spec, read by attribute.

        Args:
            root_dir: As for the constructor.
            offloading_spec: vLLM's ``OffloadingSpec`` (0.32, 0.33), or anything with such a ``config``.
            blocks_per_file: As for the constructor; vLLM's own tiers give their blocks per chunk.
            parallel_agnostic: The caller's opt-in. It takes effect where the spec says that rows don't depend on the
                parallel layout, or that they are replicated; without it a replicated layout keeps its TP size.

        Raises:
            InvalidInputError: If an attribute isn't of its type.
            UnsupportedError: If an attribute is missing.
        """

    @property
    def rank(self) -> int:
        """The worker's number in block paths: 0 when parallel-agnostic."""

    @property
    def fields(self) -> dict[str, Any]:
        """The hashed fields, as a new dict."""

    @property
    def base_path(self) -> str:
        """``<root_dir>/<model>_<first 12 hex digits of the SHA-256>``."""

    def get_file_name(self, key: bytes) -> str:
        """Gives the path of a block: ``<base_path>_r<rank>/<hhh>/<hh>_g<group>/<hash>.bin``.

        Args:
            key: Block hash (3 to 64 bytes), then the group index (4 bytes, big-endian).

        Raises:
            InvalidInputError: If the key has another length.
        """

    def get_run_config(self) -> dict[str, Any]:
        """Gives the fields as a new dict: two peers may exchange rows only if theirs are equal."""

    def get_config_file_path(self) -> str:
        """Gives ``<base_path>/config.json``, which all ranks share."""

    def fingerprint(self) -> str:
        """Gives the whole SHA-256 over the fields: 64 hex digits."""

    def diff(self, other: FileMapper | Mapping[str, Any]) -> list[Difference]:
        """Lists where the fields of `other`, a mapper or the run config of a peer, differ; empty when nowhere."""

    def compatible_with(self, other: FileMapper | Mapping[str, Any]) -> Compatibility:
        """Says whether rows may be exchanged with `other`, a mapper or the run config of a peer, and if not, why."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs__(self) -> tuple[Any, ...]: ...

@final
class Identity:
    """Every fact that changes a block's bytes: engines share blocks exactly when theirs are equal.

    Frozen, hashable and picklable; two identities are equal when everything stated is. What they hash depends on the
    kind of namespace that a tier opens: kvtier's own (``compat=None``) hashes all that is stated, an engine's
    (``compat="vllm"``) only what `FileMapper` does. What is not stated is not hashed, so it can be stated later without
    moving older namespaces, and it is not protected from: `explain` lists it.

    Args:
        model_name: The model's name or path, as the engine knows it.
        tokens_per_hash: Tokens that one block hash covers.
        blocks_per_file: Blocks in one file.
        tp_size: Workers between which tensors are split.
        pp_size: Stages between which layers are split.
        pcp_size: Workers between which the tokens of a prompt are split while it is read.
        dcp_size: Workers between which cached tokens are split while text is produced.
        rank: The worker's number; part of the path, never hashed.
        dtype: Element type of the KV cache, resolved; its `str` is taken, and ``torch.bfloat16`` is ``bfloat16``.
            Required. ``"auto"`` and ``""`` are refused when a namespace of kvtier's own kind is made.
        kv_cache_groups: Dicts of exactly ``tokens_per_block`` (int) and ``layer_names`` (list of str), in the engine's
            order.
        inference_engine: The engine's name.
        parallel_agnostic: The opt-in to share rows between parallel layouts: all sizes are hashed as 1, rank is 0.
        replicated_layout: Every rank holds the same bytes, as with MLA latents under TP alone. One worker may state it
            too, and then shares with every TP size. Collapses sizes only together with `parallel_agnostic`.
        canonical_format: The engine's canonical byte format, if rows are in one.
        row_bytes: Bytes from one row to the next, padding included. Filled in from the rows when a tier opens.
        payload_bytes: Bytes of a row that are stored, where strides differ between engines that share; it is hashed in
            place of `row_bytes`.
        worker_bytes: Bytes of a block that each worker keeps, where a row joins the parts of all workers.
        blocks_per_chunk: Blocks that the engine joins into one row.
        kv_cache_layout: Name of the KV layout, such as ``"HND"``.
        model_id: The model's name wherever it is loaded from; hashed in place of `model_name`.
        model_revision: Revision of the weights.
        rope: Parameters of the position encoding and other overrides of the model's configuration, as JSON. Key order
            and the spelling of numbers (``2``, ``2.0``) don't matter.
        kv_scales: Scales of a quantised KV cache, or a fingerprint of them, as JSON; numbers as in `rope`.
        model_runner: Generation of the engine's model runner, such as ``"v2"``.
        namespace: A name that keeps apart what the operator wants apart; no path: no slashes, no ``..``.

    Raises:
        InvalidInputError: One error that lists every fact that is wrong, with its value and what is accepted.
    """

    def __new__(
        cls,
        model_name: str,
        tokens_per_hash: int,
        blocks_per_file: int = 1,
        tp_size: int = 1,
        pp_size: int = 1,
        pcp_size: int = 1,
        dcp_size: int = 1,
        rank: int = 0,
        dtype: object = ...,
        kv_cache_groups: Sequence[_Group] | None = None,
        inference_engine: str = "vllm",
        parallel_agnostic: bool = False,
        replicated_layout: bool = False,
        canonical_format: str | None = None,
        *,
        row_bytes: int | None = None,
        payload_bytes: int | None = None,
        worker_bytes: int | None = None,
        blocks_per_chunk: int | None = None,
        kv_cache_layout: str | None = None,
        model_id: str | None = None,
        model_revision: str | None = None,
        rope: _Json = None,
        kv_scales: _Json = None,
        model_runner: str | None = None,
        namespace: str | None = None,
    ) -> Self: ...
    @classmethod
    def from_offloading_spec(
        cls,
        offloading_spec: _OffloadingSpec,
        blocks_per_file: int = 1,
        parallel_agnostic: bool = False,
        *,
        replicated_layout: bool | None = None,
        row_bytes: int | None = None,
        payload_bytes: int | None = None,
        worker_bytes: int | None = None,
        blocks_per_chunk: int | None = None,
        kv_cache_layout: str | None = None,
        model_id: str | None = None,
        model_revision: str | None = None,
        rope: _Json = None,
        kv_scales: _Json = None,
        model_runner: str | None = None,
        namespace: str | None = None,
    ) -> Self:
        """Makes the identity of an engine from vLLM's offloading spec, read by attribute.

        `kv_cache_layout` and `blocks_per_chunk` come from the spec where it has them; revision, RoPE and the like are
        in no spec, so whoever knows them gives them here.

        Args:
            offloading_spec: vLLM's ``OffloadingSpec`` (0.32, 0.33), or anything with such a ``config``.
            blocks_per_file: Blocks in one file; vLLM's own tiers give their blocks per chunk.
            parallel_agnostic: The caller's opt-in. It takes effect where the spec says that rows don't depend on the
                parallel layout, or that they are replicated; without it a replicated layout keeps its TP size.
            replicated_layout: The caller's own statement, in place of the spec's: vLLM leaves a single worker out.
            row_bytes: As for the constructor, and so are the rest.
            payload_bytes: As for the constructor.
            worker_bytes: As for the constructor.
            blocks_per_chunk: In place of the spec's.
            kv_cache_layout: In place of the spec's.
            model_id: As for the constructor.
            model_revision: As for the constructor.
            rope: As for the constructor.
            kv_scales: As for the constructor.
            model_runner: As for the constructor.
            namespace: As for the constructor.

        Raises:
            InvalidInputError: If an attribute or an argument isn't what it should be.
            UnsupportedError: If an attribute is missing.
        """

    @property
    def model_name(self) -> str:
        """The model's name or path, as the engine knows it."""

    @property
    def tokens_per_hash(self) -> int:
        """Tokens that one block hash covers."""

    @property
    def blocks_per_file(self) -> int:
        """Blocks in one file."""

    @property
    def tp_size(self) -> int:
        """Workers between which tensors are split, as stated; `fields` has what is hashed."""

    @property
    def pp_size(self) -> int:
        """Stages between which layers are split, as stated."""

    @property
    def pcp_size(self) -> int:
        """Workers between which prompt tokens are split, as stated."""

    @property
    def dcp_size(self) -> int:
        """Workers between which cached tokens are split, as stated."""

    @property
    def rank(self) -> int:
        """The worker's number in block paths: 0 when parallel-agnostic."""

    @property
    def dtype(self) -> str:
        """Element type of the KV cache, as stated."""

    @property
    def kv_cache_groups(self) -> list[dict[str, Any]]:
        """The KV-cache groups, as a new list of dicts."""

    @property
    def inference_engine(self) -> str:
        """The engine's name."""

    @property
    def parallel_agnostic(self) -> bool:
        """Whether parallel sizes are hashed as 1."""

    @property
    def replicated_layout(self) -> bool:
        """Whether every rank holds the same bytes."""

    @property
    def canonical_format(self) -> str | None:
        """The engine's canonical byte format, if rows are in one."""

    @property
    def row_bytes(self) -> int | None:
        """Bytes from one row to the next, if known yet."""

    @property
    def payload_bytes(self) -> int | None:
        """Bytes of a row that are stored, if not all of it."""

    @property
    def worker_bytes(self) -> int | None:
        """Bytes of a block that each worker keeps, where a row joins the parts of all workers."""

    @property
    def blocks_per_chunk(self) -> int | None:
        """Blocks that the engine joins into one row."""

    @property
    def kv_cache_layout(self) -> str | None:
        """Name of the KV layout."""

    @property
    def model_id(self) -> str | None:
        """The model's name wherever it is loaded from."""

    @property
    def model_revision(self) -> str | None:
        """Revision of the weights."""

    @property
    def rope(self) -> Any:
        """Parameters of the position encoding, whole floats as integers; None when not stated."""

    @property
    def kv_scales(self) -> Any:
        """Scales of a quantised KV cache, whole floats as integers; None when not stated."""

    @property
    def model_runner(self) -> str | None:
        """Generation of the engine's model runner."""

    @property
    def namespace(self) -> str | None:
        """The operator's name for the namespace."""

    @property
    def fields(self) -> dict[str, Any]:
        """What a namespace of kvtier's own kind hashes, as far as it is known, as a new dict."""

    def with_row_bytes(self, row_bytes: int) -> Self:
        """Gives the same identity with the row length that the engine's buffer turned out to have.

        Raises:
            InvalidInputError: If another length was stated, or `payload_bytes` don't fit into it.
        """

    def fingerprint(self, compat: Literal["vllm"] | None = None) -> str:
        """Gives the whole SHA-256 over the fields that are known: 64 hex digits.

        Raises:
            ConfigError: If the dtype isn't resolved (kvtier's own kind only).
        """

    def diff(self, other: Identity, compat: Literal["vllm"] | None = None) -> list[Difference]:
        """Lists where the hashed fields of the two differ; empty when they share blocks."""

    def compatible_with(self, other: Identity, compat: Literal["vllm"] | None = None) -> Compatibility:
        """Says whether the two share blocks, and if not, why.

        Raises:
            ConfigError: If a dtype isn't resolved (kvtier's own kind only).
        """

    def explain(self, compat: Literal["vllm"] | None = None) -> list[Explanation]:
        """Says for every fact what it protects from, and whether it is hashed, collapsed or absent."""

    def config(self, compat: Literal["vllm"] | None = None) -> StoredConfig:
        """Gives what ``config.json`` would say of it, to compare with one that exists."""

    def file_mapper(self, root_dir: str | os.PathLike[str]) -> FileMapper:
        """Gives the engine's own mapper of the same facts."""

    def base_dir(self, compat: Literal["vllm"] | None = None) -> str:
        """Gives the name of the directory below a root, or prefix in a bucket, that holds ``config.json``.

        Raises:
            ConfigError: If no such namespace can be opened: the row length isn't known yet, the dtype isn't resolved,
                or the engine's own naming gives no valid name.
        """

    def blocks_dir(self, compat: Literal["vllm"] | None = None) -> str:
        """Gives the name of the directory that holds this rank's blocks: ``<base_dir>_r<rank>``; errors as there."""

    def block_path(self, key: bytes, compat: Literal["vllm"] | None = None) -> str:
        """Gives the path of a block below a root, or in a bucket below its prefix.

        Args:
            key: Block hash (3 to 64 bytes), then the group index (4 bytes, big-endian).
            compat: The kind of namespace.

        Raises:
            InvalidInputError: If the key has another length.
            ConfigError: As for `base_dir`.
        """

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]: ...

@final
class StoredConfig:
    """The identity that a namespace was written under: what its ``config.json`` says.

    Args:
        text: The file's bytes, in kvtier's layout or in that of an engine's own tier.

    Raises:
        ConfigError: If it can't be understood, saying why and where.
    """

    def __new__(cls, text: bytes) -> Self: ...
    @property
    def fields(self) -> dict[str, Any]:
        """The hashed fields, as a new dict."""

    @property
    def kind(self) -> Literal["kvtier", "vllm"]:
        """The kind of namespace that hashes such fields."""

    @property
    def digest(self) -> str:
        """The 12 hex digits that the fields give a directory's name."""

    @property
    def written_by(self) -> dict[str, str] | None:
        """What is recorded and not hashed (version, display name, hash algorithm and seed); None in vLLM's files."""

    def fingerprint(self) -> str:
        """Gives the whole SHA-256 over the fields: 64 hex digits."""

    def diff(self, other: StoredConfig) -> list[Difference]:
        """Lists where the two differ so that one can't find the other's blocks.

        That is every field, and the hash algorithm and seed where both are known.
        """

    def compatible_with(self, other: StoredConfig) -> Compatibility:
        """Says whether the two share blocks, and if not, why."""

    def explain(self) -> list[Explanation]:
        """Says for every field what it protects from, and whether it is hashed, collapsed or absent."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Difference:
    """One place where two identities differ; its `str` is ``tp_size: 2 | 4``."""

    @property
    def field(self) -> str:
        """The field, with the way into it: ``kv_cache_groups[0].layer_names[3]``."""

    @property
    def left(self) -> Any:
        """The left one's value; None also when it is absent there."""

    @property
    def right(self) -> Any:
        """The right one's value; None also when it is absent there."""

    @property
    def absent(self) -> Literal["left", "right"] | None:
        """The side on which the field is absent, which is not the same as null."""

    @property
    def left_shown(self) -> str:
        """The left value for people: JSON, shortened when long, or ``(absent)``."""

    @property
    def right_shown(self) -> str:
        """The right value for people."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Compatibility:
    """Whether two identities share blocks. True when they do; its `str` has a line for each difference."""

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Why they don't; empty when they do."""

    def __bool__(self) -> bool: ...

@final
class Explanation:
    """One fact of an identity, explained."""

    @property
    def field(self) -> str:
        """The fact's name."""

    @property
    def value(self) -> Any:
        """Its value as stated; None when it is absent."""

    @property
    def role(self) -> Literal["hashed", "collapsed", "absent", "unhashed"]:
        """What it does: part of the digest, part of it as 1, not stated, or stated but not part of it."""

    @property
    def protects_from(self) -> str:
        """What goes wrong between two engines that differ in it and share blocks all the same."""

    @property
    def note(self) -> str | None:
        """Why it has this role, where that isn't plain."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

def check_options(options: dict[str, Any]) -> None:
    """Checks the options of a tier.

    Raises:
        ConfigError: Lists everything that is wrong with them.
    """

def inspect_root(url: str) -> dict[str, Any]:
    """Finds out by trying what the directory at `url` can do, and leaves it as it was; see `kvtier.cli.roots`.

    Raises:
        ConfigError: It is no directory, or the URL can't be used.
        StoreUnavailableError: It can't be entered.
    """

def inspect_pool(url: str, blocks: bool) -> dict[str, Any]:
    """Goes over the packed pool below the directory at `url`, which stays as it was; see `kvtier.cli.pool`.

    Args:
        url: As in `kvtier.open`.
        blocks: Whether each block is read, and compared with its entry in the table.

    Raises:
        ConfigError: There is no pool, or the URL can't be used.
        UnsupportedError: A newer kvtier made it.
    """

def survey_root(url: str, patience: float) -> tuple[list[dict[str, Any]], int]:
    """Looks at the namespaces in the directory at `url` without listing all of it; see `kvtier.cli.doctor.survey`.

    Args:
        url: As in `kvtier.open`.
        patience: Seconds after which blocks are estimated from what was counted.

    Returns:
        What was found of each namespace, and how many were reset and are not deleted yet.

    Raises:
        ConfigError: It is no directory, or the URL can't be used.
        StoreUnavailableError: It can't be listed.
    """

def check_place(url: str, options: dict[str, Any]) -> Literal["directory", "memory", "bucket"]:
    """What kind of place a URL names, whether it is there or not.

    Raises:
        ConfigError: The URL can't be used, or an option is not for such a place.
    """

def inspect_bucket(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Finds out by trying what the bucket at `url` can do, and leaves nothing in it; see `kvtier.cli.buckets`.

    Raises:
        ConfigError: It is no bucket, or the options can't be used.
    """

def survey_bucket(url: str, options: dict[str, Any], patience: float) -> list[dict[str, Any]]:
    """Looks at the namespaces in the bucket at `url`, as `survey_root` does; blocks are counted for `patience` seconds.

    Raises:
        ConfigError: It is no bucket, or the options can't be used.
        StoreUnavailableError: It can't be listed.
    """

def remove_trial(url: str, options: dict[str, Any]) -> int:
    """Removes all objects below a prefix of a bucket that was made for trials: its last part begins with ``.kvtier-``.

    Returns:
        How many there were.

    Raises:
        ConfigError: It is no bucket, or the options can't be used.
        InvalidInputError: It is another prefix.
    """

def exit_begins() -> None:
    """The interpreter's exit has begun, on this thread: only it emits log records and releases memory from now on."""

@disjoint_base
class Tier:
    """One tier: the methods that are called at every step of an engine. `kvtier.TierManager` adds the rest.

    Keys are the engine's: the block's hash (3 to 64 bytes) and its group's index (4 bytes, big-endian).

    Args:
        url: As in `kvtier.open`.
        identity: As in `kvtier.open`.
        rows: As in `kvtier.open`.
        options: Options by name, as in `TierConfig`.
        faults: What goes wrong in the storage, for tests.
    """

    def __new__(
        cls, url: str, identity: Identity, rows: Buffer | Any, options: dict[str, Any], faults: Faults | None = None
    ) -> Self: ...
    def lookup(self, key: bytes, request: Hashable | None = None) -> Lookup:
        """Whether the block is here: `Lookup.HIT`, `MISS`, or `RETRY` (ask again at the next step).

        Args:
            key: The block's key.
            request: Whoever asks. What it was told stays so until `release`, except that a completed store turns it
                to HIT and a failed load to MISS. Without one, an answer is worth its moment.
        """

    def lookup_many(self, keys: Iterable[bytes], request: Hashable | None = None) -> list[Lookup]:
        """`lookup` for each of the keys, in order."""

    def release(self, request: Hashable) -> None:
        """The request is over: what it was told is forgotten. Unknown ones are ignored."""

    def submit_store(
        self, job_id: int, keys: Iterable[bytes], row_ids: Buffer | Iterable[int], stream: Any | None = None
    ) -> None:
        """Stores row `row_ids[i]` under `keys[i]`, in the background; the result comes from `get_finished_jobs`.

        Args:
            job_id: A number from 0 to 2**64 - 1 that no job has whose result was not taken yet.
            keys: The blocks' keys.
            row_ids: As many row numbers: a buffer of int32 or int64, or integers. No row that an open job loads into.
            stream: For rows in device memory, which are not supported yet: None.

        Raises:
            InvalidInputError: An argument is wrong; nothing was submitted.
            ReadOnlyError: The tier was opened read-only.
            TierClosedError: The tier was shut down.
        """

    def submit_load(
        self, job_id: int, keys: Iterable[bytes], row_ids: Buffer | Iterable[int], stream: Any | None = None
    ) -> None:
        """Loads the block under `keys[i]` into row `row_ids[i]`, in the background.

        The result comes from `get_finished_jobs`. Arguments and errors are those of `submit_store`, except that a
        read-only tier can load, read-only rows can't be loaded into, and a row is for one block and no other open job
        until the result is handed out.
        """

    def get_finished_jobs(self) -> list[JobResult]:
        """The results of jobs that have finished since the last call; each job's exactly once."""

    def end_step(self) -> None:
        """A step of the caller is over: what was asked and submitted in it begins.

        Of use where the tier was opened with `stepwise=True`; otherwise everything begins at once, and this does
        nothing.
        """

    def wait(self, job_id: int | None = None, timeout: float | None = None) -> bool:
        """Waits until the job's result can be taken, or any result where no job is named.

        Returns:
            False when `timeout` seconds have passed first.

        Raises:
            InvalidInputError: No such job is open.
        """

    def drain_jobs(self, timeout: float | None = None) -> bool:
        """Waits until every job has its result.

        Returns:
            False when `timeout` seconds have passed first.
        """

    def fileno(self) -> int:
        """A descriptor that is readable while results wait, for select, epoll or asyncio. It belongs to the tier."""

    def touch(self, keys: Iterable[bytes]) -> None:
        """These blocks were used just now."""

    def pin(self, keys: Iterable[bytes], until: float | None = None) -> list[bool]:
        """Keeps blocks of a packed pool when this process makes room, however seldom they are used.

        A pin is this process's own and ends with `unpin`, with the time, with `reset` (whoever resets), and when the
        process has closed the namespace. Another process that shares the pool doesn't know of it. Pinning a pinned block
        again gives it the new `until`. Where blocks lie in files, memory or a bucket none is ever dropped for room: there
        a pin has nothing to do.

        Args:
            keys: The blocks' keys.
            until: When the pin ends, in seconds since 1970, as `time.time()` gives them; a time that has passed pins
                nothing. None for a pin without an end.

        Returns:
            For each key, whether its block is known to be here, and so is pinned now. False pins nothing: ask again when
            the block was stored.

        Raises:
            OverloadedError: With kind "capacity", when the blocks that this process has pinned, in all of its tiers there,
                would take more than half of the pool's `max_bytes` (of what the pool takes, if it has no cap). Nothing was
                pinned then.
            InvalidInputError: A key or `until` is wrong.
        """

    def unpin(self, keys: Iterable[bytes]) -> None:
        """Takes pins back. Keys that are not pinned are left alone."""

    def take_events(self) -> list[Event]:
        """What has happened to blocks since the last call, in order."""

    def store(self, keys: Iterable[bytes], tensors: Buffer | Any) -> JobResult:
        """Stores blocks from memory beside the tier's rows, and waits for the result. Ctrl-C ends it.

        Args:
            keys: The blocks' keys.
            tensors: As many blocks: a list with a buffer or DLPack producer for each, of any shape, whose bytes are in
                one piece; or one array whose row `i` is the block of `keys[i]`. Nobody else writes to the memory
                meanwhile.

        Returns:
            What became of each block; `JobResult.raise_for_failures` turns failures into an exception.

        Raises:
            InvalidInputError: An argument is wrong, or a block has another length than the tier's rows.
            ReadOnlyError: The tier was opened read-only.
        """

    def load(self, keys: Iterable[bytes], tensors: Buffer | Any) -> JobResult:
        """Loads blocks into memory beside the tier's rows, and waits for the result. Ctrl-C ends it.

        Arguments, result and errors are those of `store`; the memory must be writable, and nobody else touches it
        meanwhile. The bytes of a block that failed are undefined.
        """

    def forget(self) -> None:
        """Forgets which blocks are here and what requests were told; storage stays as it is."""

    def reset(self, timeout: float | None = 30.0) -> None:
        """Takes all blocks of the namespace away, for every process. Open jobs fail with kind "reset".

        Args:
            timeout: Seconds to wait for what is under way; Ctrl-C ends the wait as well.

        Raises:
            StoreUnavailableError: The storage was not done with what is under way, or can't be reset: the blocks may be
                there still.
            ReadOnlyError: The tier was opened read-only.
        """

    def shutdown(self, timeout: float | None = 10.0) -> None:
        """Ends the tier; see `kvtier.TierManager.shutdown`."""

    @property
    def closed(self) -> bool:
        """Whether `shutdown` was called."""

    @property
    def place(self) -> str:
        """Where the blocks are, without secrets."""

    @property
    def io_engine(self) -> str:
        """How bytes move: "threads", "uring" or "network"."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""

    def _stats(self) -> dict[str, Any]:
        """Counters and the moment's numbers, as nested dictionaries."""

    def _abandon_in_child(self) -> None:
        """In a forked child: gives up locks on storage that are shared with the parent."""

@final
class JobResult:
    """What became of a job. Each job has exactly one."""

    def __new__(
        cls,
        job_id: int,
        kind: Literal["store", "load"],
        success: bool,
        successful_keys: Iterable[bytes],
        failures: Mapping[bytes, BlockError],
        transfer_time: float,
        transfer_bytes: int,
    ) -> Self: ...
    @property
    def job_id(self) -> int:
        """The number that it was submitted under."""

    @property
    def kind(self) -> Literal["store", "load"]:
        """Which way its blocks went."""

    @property
    def success(self) -> bool:
        """Whether every block succeeded."""

    @property
    def successful_keys(self) -> tuple[bytes, ...]:
        """The keys of the blocks that succeeded, as submitted."""

    @property
    def failures(self) -> Mapping[bytes, BlockError]:
        """The reason for each block that failed. After a failed load the bytes of its row are undefined."""

    @property
    def transfer_time(self) -> float:
        """Seconds from submission to the last block's end."""

    @property
    def transfer_bytes(self) -> int:
        """Payload bytes that moved. A block that was stored already moves none."""

    def raise_for_failures(self) -> None:
        """Raises the first failed block's error, as a `KvTierError` of its kind, if any block failed."""

    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

    def __getnewargs__(self) -> tuple[Any, ...]: ...

@final
class BlockError:
    """Why one block of a job failed."""

    def __new__(cls, kind: str, message: str) -> Self: ...
    @property
    def kind(self) -> str:
        """A stable name to switch on; the same names that `KvTierError.kind` has."""

    @property
    def message(self) -> str:
        """For a person."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs__(self) -> tuple[str, str]: ...

@final
class Event:
    """Something that became true of a block, for those who route requests by content."""

    def __new__(
        cls, kind: Literal["stored", "removed", "cleared"], key: bytes | None = None, reason: str | None = None
    ) -> Self: ...
    @property
    def kind(self) -> Literal["stored", "removed", "cleared"]:
        """What happened.

        `stored`: every reader sees the block (also when it was there before). `removed`: it was missing or proven bad
        when it was loaded. `cleared`: the namespace was reset, so all blocks are gone.
        """

    @property
    def key(self) -> bytes | None:
        """The block; None for `cleared`."""

    @property
    def reason(self) -> str | None:
        """Why it was removed, as in `BlockError.kind`; None otherwise."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __getnewargs__(self) -> tuple[str, bytes | None, str | None]: ...

@final
class Faults:
    """A script of what goes wrong in the storage of a tier, for tests of what stands above it."""

    def __new__(cls) -> Self: ...
    def inject(
        self,
        operation: Literal["store", "load", "probe"],
        what: Literal["fail", "panic", "lose", "stall", "stall_in_row", "stall_answer", "delay"],
        *,
        key: bytes | None = None,
        after: int = 0,
        times: int = 1,
        kind: str | None = None,
        seconds: float | None = None,
    ) -> None:
        """Adds a fault behind those that are there; the first that fits an operation happens to it.

        Args:
            operation: Which operations it is for.
            what: "fail" with `kind`; "panic" on the IO thread; "lose" the answer; "stall" before the operation, while
                its row is touched ("stall_in_row"), or after it ("stall_answer"), until `release`; "delay" by
                `seconds`.
            key: Only this block's operations; None for all.
            after: How many operations go well before.
            times: How many go wrong then.
            kind: The kind of the failure, one of `KvTierError.kind`.
            seconds: The delay.
        """

    def release(self) -> None:
        """Lets everything go on that has stalled."""

    @property
    def stalled(self) -> int:
        """How many operations are stalled now."""

    @property
    def pending(self) -> int:
        """How many faults have not happened yet."""

    def clear(self) -> None:
        """Drops the faults that have not happened yet."""
