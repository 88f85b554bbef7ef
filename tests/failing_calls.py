"""System calls that fail on demand, for good, in the process that asks for it: by a filter of the kernel's (seccomp)."""

import ctypes
import errno
import platform
from collections.abc import Iterable
from itertools import product

NUMBERS = {
    "x86_64": {
        "pread64": 17, "pwrite64": 18, "fcntl": 72, "flock": 73, "fsync": 74, "fdatasync": 75, "ftruncate": 77,
        "openat": 257, "fallocate": 285, "preadv": 295, "pwritev": 296,
    },
    "aarch64": {
        "pread64": 67, "pwrite64": 68, "fcntl": 25, "flock": 32, "fsync": 82, "fdatasync": 83, "ftruncate": 46,
        "openat": 56, "fallocate": 47, "preadv": 69, "pwritev": 70,
    },
}.get(platform.machine(), {})  # fmt: skip
"""Numbers of the calls by which a pool's files are read, written, locked and opened."""

_SECCOMP = {"x86_64": 317, "aarch64": 277}.get(platform.machine(), 0)
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_CALL, _DESCRIPTOR, _OFFSET = 0, 16, 40  # where a filter finds them: the number, the first argument, the fourth
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def fail(
    calls: Iterable[str], code: str, descriptors: Iterable[int] | None = None, offsets: Iterable[int] | None = None
) -> None:
    """From now on, in every thread, these calls fail with the error of that name.

    Args:
        calls: Names of calls, of those in `NUMBERS`.
        code: The error's name, as in `errno`.
        descriptors: On which descriptors; on all by default.
        offsets: At which bytes of a file, for calls that are told so in their fourth argument; at all by default.

    Raises:
        OSError: No such filter can be set here.
    """
    number = getattr(errno, code)
    steps: list[tuple[int, int, int, int]] = []
    for call, descriptor, offset in product(
        calls, [None] if descriptors is None else descriptors, [None] if offsets is None else offsets
    ):
        facts = [(_CALL, NUMBERS[call]), (_DESCRIPTOR, descriptor), (_OFFSET, offset)]
        wanted = [(where, value) for where, value in facts if value is not None]
        for left, (where, value) in zip(range(len(wanted) - 1, -1, -1), wanted, strict=True):
            steps += [(_LOAD, 0, 0, where), (_JUMP_IF_EQUAL, 0, 2 * left + 1, value)]
        steps.append((_RETURN, 0, 0, _ERRNO | number))
    steps.append((_RETURN, 0, 0, _ALLOW))
    instructions = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    program = ctypes.byref(_Program(len(steps), instructions))
    no_new_privileges, set_filter, all_threads = 38, 1, 1
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.syscall(_SECCOMP, set_filter, all_threads, program):
        raise OSError(ctypes.get_errno(), "no filter for system calls can be set")
