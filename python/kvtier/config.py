"""The options of a tier."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self, final

from kvtier._kvtier import check_options

__all__ = ["TierConfig"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    """The options of a tier.

    The names are the same everywhere: here, in `kvtier.open`, in an engine's configuration and on the command line.
    Sizes are bytes, as a number or as text such as "2GiB"; times are seconds.

    Raises:
        ConfigError: Some values are not accepted, alone or together. Its message lists all of them.
    """

    compat: Literal["vllm"] | None = None
    """Whose paths and blocks to use. None: kvtier's own, verified. "vllm": those of vLLM's own `fs` tier, so that both
    read each other's blocks; they can't be verified, and its identity leaves facts out that change the bytes."""

    layout: Literal["files", "packed", "auto"] = "files"
    """How blocks lie below a `file://` root. "files": one file each. "packed": in slots of preallocated files, within
    `max_bytes` or `min_free_bytes`, on a local file system. "auto": as the root has them already; in a new one "packed"
    where the file system can, "files" elsewhere."""

    max_bytes: int | str | None = None
    """What the files of a packed pool may take, together; all processes that share it give the same. None: what the pool
    has, or no cap."""

    min_free_bytes: int | str | None = None
    """What a packed pool leaves free on its file system for everybody else. None: what the pool has, or nothing."""

    segment_bytes: int | str | None = None
    """Bytes of each file of a packed pool, in whole MiB; what is dropped at once for want of room. None: what the pool
    has, or about a 200th of `max_bytes`."""

    io_engine: Literal["auto", "threads", "uring"] = "auto"
    """How bytes move: by threads that each make one call at a time, or by a ring of Linux's io_uring. "auto" takes what
    is quicker for the layout. Where the system refuses a ring, threads do it and the log says why."""

    verify: Literal["always", "never"] = "always"
    """Whether a loaded block is compared with its checksum. "never" still checks its length, key and identity."""

    durability: Literal["none", "data", "full"] = "none"
    """What is flushed to the device before a block is published: nothing (a block torn by a power failure fails
    verification later), its data, or its data and the directory entry."""

    direct_io: Literal["auto", "on", "off"] | bool = "auto"
    """Whether the page cache is passed by. "auto": where the file system can and a row's address and length fit,
    otherwise not, for each operation. "on": as "auto", but opening fails where it can't."""

    io_threads: int | None = None
    """Threads that do IO. None: 32; where blocks come from memory (`direct_io="off"`), twice the cores, 8 to 32."""

    max_inflight_ops: int = 128
    """Blocks under way at the same time."""

    max_inflight_bytes: int | str = 256 << 20
    """Bytes under way at the same time; one block is always allowed."""

    max_queued_store_bytes: int | str = 4 << 30
    """Bytes of stores that may wait. A job that would go beyond ends at once, its blocks failed with kind "dropped"."""

    load_timeout: float = 30
    """Seconds from submission of a load to its result; what is not done by then fails with kind "timeout"."""

    store_timeout: float = 60
    """The same for stores."""

    lookup_timeout: float = 2
    """Seconds for which a request is told RETRY before a probe that doesn't answer counts as MISS."""

    exclusive: bool = False
    """Whether nobody else may open the namespace for writing. Then lookups of unknown blocks are answered MISS at once
    when the scan at the start is complete; a second opener is refused."""

    read_only: bool = False
    """Whether stores are refused and nothing on storage is changed."""

    file_mode: int | str = 0o666
    """Permission bits of block files, before the umask; as a number, or in octal as text."""

    dir_mode: int | str = 0o777
    """The same for directories."""

    quarantine: bool = False
    """Whether blocks that are proven bad are kept aside instead of removed."""

    stepwise: bool = False
    """Whether jobs and probes begin only at `end_step`, all at once: for callers that work in steps, to whom waking a
    thread at each call costs more than the call. Asking for results begins them too."""

    events: bool = True
    """Whether `take_events` has something to take."""

    endpoint: str | None = None
    """Of an object store: where the service is, as `http(s)://host[:port]`. None: the environment's, or the provider's
    own."""

    region: str | None = None
    """The region that S3 requests are signed for. None: the environment's, or us-east-1."""

    virtual_hosted_style: bool = False
    """Whether an S3 bucket is part of the host's name instead of the path."""

    access_key: str | None = None
    """The S3 access key's id, or the Azure account's name. None: the provider's own way to find credentials (variables
    of the environment, web identity, metadata services)."""

    secret_key: str | None = field(default=None, repr=False)
    """What belongs to `access_key`: the S3 secret, or the Azure account's key. Never shown."""

    session_token: str | None = field(default=None, repr=False)
    """The session token of temporary S3 keys, an Azure shared-access signature, or a Google bearer token. Never
    shown."""

    credentials_file: str | None = None
    """A Google service account's or user's credentials, as a JSON file."""

    anonymous: bool = False
    """Whether requests are sent unsigned."""

    allow_http: bool = False
    """Whether an endpoint without TLS is acceptable."""

    ca_bundle: str | None = None
    """More certificate authorities to trust, as a PEM file."""

    unsigned_payload: bool = True
    """Whether S3 payloads are left out of the signature, which spares a SHA-256 over each. The block's own checksum
    proves it all the same."""

    upload_checksum: Literal["none", "crc64nvme"] = "none"
    """Which checksum goes with S3 uploads, for the server to compare; it costs another pass over the data."""

    connect_timeout: float = 5
    """Seconds for connecting, TLS included."""

    read_timeout: float = 10
    """Seconds to wait for the next bytes of an answer, or for the server to take more of a request."""

    request_timeout: float = 60
    """Seconds for one request with its answer."""

    retries: int = 3
    """How often a request is sent again after a failure that may pass. The job's deadline holds all the same."""

    concurrency: int = 64
    """Requests under way at the same time."""

    part_bytes: int | str = 8 << 20
    """Blocks larger than this move in parts of this size, side by side; at least 5 MiB."""

    upload_rate: int | str | None = None
    """Bytes a second that uploads may use on average."""

    download_rate: int | str | None = None
    """Bytes a second that downloads may use on average."""

    hedge_quantile: float | None = None
    """A load that has waited for its answer longer than this share of the loads before (0.95, say) asks a second time
    and takes the first answer."""

    startup_check: bool = True
    """Whether opening makes sure that the bucket answers as it should; otherwise that is found out in the
    background."""

    list_at_start: bool = False
    """Whether the blocks that are in the bucket are listed in the background, so that finding them takes no probes."""

    def __post_init__(self) -> None:
        check_options(self.as_options())

    def as_options(self) -> dict[str, Any]:
        """The options by their names."""
        return asdict(self)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Takes options from elsewhere, such as an engine's configuration.

        Raises:
            ConfigError: Names are unknown, or values not accepted. Its message lists everything wrong.
        """
        check_options(dict(options))
        return cls(**options)


OPTION_NAMES = tuple(option.name for option in fields(TierConfig))
