"""What follows from what was found: what a tier will do with it, and what to change."""

import enum
import stat
from dataclasses import dataclass
from pathlib import Path

from kvtier import KvTierError
from kvtier.cli.doctor.survey import Namespace, Survey
from kvtier.cli.doctor.throughput import Throughput
from kvtier.cli.pool import find
from kvtier.cli.roots import Root
from kvtier.cli.units import show_count, show_size

PAGE = 4096
POOL_FILE_SYSTEMS = ("ext4", "xfs", "tmpfs")
LITTLE_SPACE = 0.05
"""Share of a file system below which it is about to be full."""


class State(enum.Enum):
    """How good something is."""

    FINE = "fine"
    NOTE = "note"
    """It works; something about it is worth knowing."""

    PROBLEM = "problem"
    """It doesn't work, or soon won't."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    state: State
    found: str
    """What it is like."""

    used: str = ""
    """What a tier will do with it."""

    change: str = ""
    """What would make it better."""

    def as_json(self) -> dict[str, str]:
        """For ``--json``."""
        return {
            "subject": self.subject,
            "state": self.state.value,
            "found": self.found,
            "used": self.used,
            "change": self.change,
        }


def of_root(root: Root, row_bytes: int | None) -> list[Finding]:
    """Everything about the directory itself, for rows of that length if it is known."""
    findings = [_file_system(root), _permissions(root)]
    if not root.refused:
        findings += [_publishing(root), _locks(root), _direct_io(root), _io_uring(root)]
        if row_bytes:
            findings.append(_rows(root, row_bytes))
    return [*findings, _pool(root), *_room(root, row_bytes)]


def of_namespaces(survey: Survey) -> list[Finding]:
    """What is not as it should be in the namespaces; nothing when all is well."""
    if survey.unreadable:
        return [Finding("namespaces", State.PROBLEM, survey.unreadable, change="let this user list the root")]
    findings = []
    for namespace in survey.namespaces:
        findings += _namespace(namespace)
    if survey.in_trash:
        found = f"{survey.in_trash} were reset and are not deleted yet"
        findings.append(Finding("trash", State.NOTE, found, "the next tier opened at this root deletes them"))
    return findings


def of_throughput(measured: list[Throughput]) -> list[Finding]:
    """What went wrong while rows were moved."""
    return [
        Finding("throughput", State.PROBLEM, f"rows of {show_size(throughput.row_bytes)}: {throughput.failure}")
        for throughput in measured
        if throughput.failure
    ]


def _file_system(root: Root) -> Finding:
    if root.file_system == "tmpfs":
        used = "blocks lie in this machine's memory and are gone after a restart"
        return Finding("file system", State.NOTE, "tmpfs", used, "for blocks that last, take a disk")
    if root.reads_into_rows:
        return Finding("file system", State.FINE, root.file_system, "loads read straight into the engine's rows")
    used = "loads read into memory of kvtier's own and are copied: a read here may hang, and rows must not wait for it"
    return Finding("file system", State.NOTE, root.file_system, used, "a local ext4, xfs or btrfs needs no copy")


def _permissions(root: Root) -> Finding:
    status = Path(root.path).stat()
    found = f"{stat.filemode(status.st_mode)}, owner {status.st_uid}:{status.st_gid}"
    if root.read_only:
        change = "mount it writable, or open tiers with read_only=True"
        return Finding("permissions", State.PROBLEM, f"{found}, mounted read-only", "nothing can be stored", change)
    if root.refused:
        change = "let this user write here, or open tiers with read_only=True"
        return Finding("permissions", State.PROBLEM, f"{found}; {root.refused}", "nothing can be stored", change)
    shared = status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_IWOTH
    if shared and not status.st_mode & stat.S_ISGID:
        change = (
            "for a root that users of a group share: chmod g+s, and file_mode and dir_mode as in docs/operations.md"
        )
        return Finding("permissions", State.NOTE, found, "new directories belong to each writer's own group", change)
    return Finding("permissions", State.FINE, found, "files and directories can be made")


def _publishing(root: Root) -> Finding:
    if root.unnamed_files:
        return Finding("publishing", State.FINE, f"{root.publishing} work", "a killed writer leaves nothing behind")
    used = "unfinished files have names in .tmp; what a killed writer leaves goes when the namespace is opened again"
    return Finding("publishing", State.NOTE, f"{root.publishing} (O_TMPFILE doesn't work)", used)


def _locks(root: Root) -> Finding:
    if root.locks:
        return Finding("locks", State.FINE, "flock works", "exclusive=True can be promised, dead writers are told")
    used = "exclusive=True is refused; unfinished files of dead writers stay"
    return Finding(
        "locks", State.NOTE, "flock doesn't work", used, "mount with locks, or remove old files in .tmp by hand"
    )


def _direct_io(root: Root) -> Finding:
    align = root.direct_io_alignment
    if align:
        used = f"rows whose address and length are multiples of {align} bypass the page cache"
        return Finding("direct IO", State.FINE, f"works, alignment {align}", used)
    used = 'all goes through the page cache; direct_io="on" is refused'
    return Finding("direct IO", State.NOTE, f"not on {root.file_system}", used)


def _io_uring(root: Root) -> Finding:
    if not root.ring_refused:
        used = 'io_engine="uring" makes transfers through a ring; "auto" does where a layout gains by it'
        return Finding("io_uring", State.FINE, "works", used)
    change = "if more speed is wanted: allow it in the container's seccomp profile, or set kernel.io_uring_disabled=0"
    return Finding("io_uring", State.NOTE, root.ring_refused, "threads make all transfers", change)


def _rows(root: Root, row_bytes: int) -> Finding:
    extra = -row_bytes % PAGE + PAGE
    found = f"{row_bytes} bytes; a block file has {extra} more ({100 * extra / row_bytes:.1f} %)"
    align = root.direct_io_alignment
    if not align or row_bytes % align == 0:
        return Finding("rows", State.FINE, found, "moved without a copy, if the buffer is aligned" if align else "")
    change = f"let the engine pad rows to a multiple of {align}"
    return Finding("rows", State.NOTE, found, "each row is copied on its way, since its length is not aligned", change)


def _pool(root: Root) -> Finding:
    try:
        pool = find(root.path)
    except KvTierError as error:
        return Finding("pool", State.PROBLEM, str(error), "tiers can't be opened here")
    if pool is None:
        if root.file_system in POOL_FILE_SYSTEMS:
            return Finding("pool", State.FINE, 'none; layout="packed" with max_bytes makes one')
        change = "for a pool, take a local ext4 or xfs"
        return Finding("pool", State.NOTE, f"none, and there can't be one on {root.file_system}", change=change)
    used = 'tiers are opened with layout="packed" or "auto"'
    bound = f" of {show_size(pool.max_bytes)}" if pool.max_bytes else ""
    found = f"{show_count(pool.blocks, 'block')} in {show_count(pool.segments, 'segment')}, "
    found += f"{show_size(pool.used_bytes)}{bound}"
    if pool.damaged_pages or pool.unusable:
        damaged = f"{pool.damaged_pages + pool.unusable:,} damaged tables or segments"
        return Finding("pool", State.NOTE, f"{found}; {damaged}", f"{used}; they are rebuilt or used anew then")
    return Finding("pool", State.FINE, found, used)


def _room(root: Root, row_bytes: int | None) -> list[Finding]:
    share = root.free_bytes / root.total_bytes if root.total_bytes else 1
    found = f"{show_size(root.free_bytes)} of {show_size(root.total_bytes)} free"
    if row_bytes:
        blocks = root.free_bytes // (row_bytes + -row_bytes % PAGE + PAGE)
        found += f", {show_count(blocks, 'block')}"
    used = "blocks in files have no bound; those of a pool are kept within max_bytes"
    change = "make room: docs/operations.md says how to do it safely" if share < LITTLE_SPACE else ""
    findings = [Finding("space", State.PROBLEM if change else State.NOTE, found, used, change)]
    if root.total_files:
        share = root.free_files / root.total_files
        found = f"{root.free_files:,} of {root.total_files:,} free"
        change = "make room, or a file system with more inodes" if share < LITTLE_SPACE else ""
        used = "one a block, and up to a million for directories"
        findings.append(Finding("inodes", State.PROBLEM if change else State.FINE, found, used, change))
    return findings


def _namespace(namespace: Namespace) -> list[Finding]:
    def finding(state: State, found: str, used: str = "", change: str = "") -> Finding:
        return Finding(namespace.base_dir, state, found, used, change)

    findings = []
    if namespace.unreadable:
        change = "restore config.json, or remove the namespace: docs/operations.md"
        findings.append(finding(State.PROBLEM, namespace.unreadable, "it can't be opened", change))
    elif namespace.is_misplaced:
        found = "its config.json gives another digest than its name has: it was edited, or copied here"
        change = "restore config.json, or remove the namespace: docs/operations.md"
        findings.append(finding(State.PROBLEM, found, "its blocks are found by nobody", change))
    elif namespace.config and namespace.config.kind == "vllm":
        used = "blocks are raw, as vLLM's own tier stores them: only their length can be checked"
        findings.append(finding(State.NOTE, 'compat="vllm"', used))
    for rank in namespace.ranks:
        where = rank.blocks_dir.removeprefix(namespace.base_dir).lstrip("_")
        if rank.unreadable:
            findings.append(finding(State.PROBLEM, f"{where}: {rank.unreadable}", change="let this user list it"))
        if rank.abandoned:
            used = "removed when the namespace is opened again for storing"
            findings.append(
                finding(State.NOTE, f"{where}: {show_count(rank.abandoned, 'unfinished file')} of dead writers", used)
            )
        if rank.undecided:
            change = "remove those in .tmp that are older than any running writer"
            findings.append(
                finding(State.NOTE, f"{where}: {show_count(rank.undecided, 'unfinished file')}", "kept", change)
            )
        if rank.quarantined:
            change = "find out why, then remove them from .quarantine"
            findings.append(
                finding(State.NOTE, f"{where}: {show_count(rank.quarantined, 'bad block')} in quarantine", "", change)
            )
    return findings
