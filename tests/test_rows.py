"""What is accepted as rows, what is refused and how, and who keeps the memory alive."""

import array
import ctypes
import gc
import mmap
import os
import weakref
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

import kvtier
from kvtier._kvtier import Rows

TORCH_DTYPES = [
    torch.uint8,
    torch.int8,
    torch.bool,
    torch.uint16,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
]


def pattern(num_rows: int, row_bytes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Bytes that differ from row to row and within a row."""
    return (np.arange(num_rows * row_bytes) % 251).astype(np.uint8).reshape(num_rows, row_bytes)


class TestSources:
    @pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
    def test_torch_tensor_of_any_dtype(self, dtype: torch.dtype) -> None:
        expected = pattern(5, 64)
        tensor = torch.from_numpy(expected.copy()).view(dtype)
        rows = Rows(tensor)
        assert (rows.num_rows, rows.row_bytes, rows.writable) == (5, 64, True)
        assert [rows.copy_of(i) for i in range(5)] == [row.tobytes() for row in expected]
        tensor.view(torch.uint8)[3] = 9
        assert rows.copy_of(3) == bytes([9]) * 64, "the rows are the tensor's memory, not a copy"

    @pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
    def test_numpy_dtype_that_the_buffer_protocol_has_no_letter_for(self, dtype: str) -> None:
        source = pattern(3, 32).view(getattr(ml_dtypes, dtype))
        assert Rows(source).copy_of(1) == source[1].tobytes()

    @pytest.mark.parametrize(
        "dtype", ["u1", "<f2", "<f4", "<f8", "<c16", "?", "S16", "V32", [("a", "<i4"), ("b", "<f4")]]
    )
    def test_numpy_array(self, dtype: Any) -> None:
        source = np.frombuffer(pattern(3, 64).tobytes(), dtype=dtype).reshape(3, -1)
        rows = Rows(source)
        assert not rows.writable, "made from bytes"
        assert rows.copy_of(2) == source[2].tobytes()

    def test_rows_of_more_dimensions(self) -> None:
        tensor = torch.arange(4 * 2 * 3 * 5, dtype=torch.int32).reshape(4, 2, 3, 5)
        rows = Rows(tensor)
        assert (rows.num_rows, rows.row_bytes) == (4, 2 * 3 * 5 * 4)
        assert rows.copy_of(3) == tensor[3].numpy().tobytes()

    def test_padding_between_rows(self) -> None:
        tensor = torch.from_numpy(pattern(6, 64))
        rows = Rows(tensor[:, 16:48])
        assert (rows.num_rows, rows.row_bytes) == (6, 32)
        assert rows.copy_of(5) == tensor[5, 16:48].numpy().tobytes()

    def test_every_second_row(self) -> None:
        source = pattern(8, 16)
        rows = Rows(source[1::2])
        assert [rows.copy_of(i) for i in range(4)] == [source[1 + 2 * i].tobytes() for i in range(4)]

    def test_dimensions_of_one_element_may_have_any_stride(self) -> None:
        source = np.lib.stride_tricks.as_strided(pattern(1, 32), shape=(1, 1, 32), strides=(-7, 999, 1))
        assert Rows(source).copy_of(0) == source.tobytes()

    def test_memoryview_with_a_shape(self) -> None:
        source = bytearray(pattern(4, 8).tobytes())
        rows = Rows(memoryview(source).cast("B", (4, 8)))
        assert (rows.num_rows, rows.row_bytes, rows.writable) == (4, 8, True)
        assert rows.copy_of(2) == bytes(source[16:24])

    @pytest.mark.parametrize(
        "make", [bytearray, bytes, lambda b: array.array("B", b)], ids=["bytearray", "bytes", "array"]
    )
    def test_buffer_of_one_dimension_is_split_by_row_bytes(self, make: Callable[[bytes], Any]) -> None:
        rows = Rows(make(pattern(4, 8).tobytes()), 8)
        assert (rows.num_rows, rows.copy_of(3)) == (4, pattern(4, 8)[3].tobytes())

    def test_mmap(self) -> None:
        with mmap.mmap(-1, 8192) as source:
            source[4096:4100] = b"abcd"
            rows = Rows(source, 4096)
            assert rows.is_aligned_to(4096)
            assert rows.copy_of(1)[:5] == b"abcd\0"
            del rows

    def test_shared_memory(self) -> None:
        memory = shared_memory.SharedMemory(create=True, size=8192)
        try:
            view = memoryview(memory.buf or b"").cast("B", (2, 4096))
            view[1, 0] = 7
            rows = Rows(view)
            assert rows.copy_of(1)[0] == 7
            del rows
            view.release()
        finally:
            memory.close()
            memory.unlink()

    def test_host_rows(self) -> None:
        source = kvtier.HostRows(3, 4096)
        memoryview(source)[2, 1] = 5
        assert Rows(source).copy_of(2)[:3] == b"\0\5\0"

    def test_list_of_tensors_is_one_scattered_row(self) -> None:
        layers = [torch.from_numpy(pattern(4, n)).clone() for n in (16, 48, 32)]
        rows = Rows([layers[0], layers[1].view(torch.bfloat16), np.asarray(layers[2])])
        assert (rows.num_rows, rows.row_bytes) == (4, 96)
        assert rows.copy_of(2) == b"".join(layer[2].numpy().tobytes() for layer in layers)
        assert Rows(tuple(layers)).copy_of(1) == b"".join(layer[1].numpy().tobytes() for layer in layers)

    def test_interleaved_parts_of_one_tensor(self) -> None:
        tensor = torch.from_numpy(pattern(4, 64))
        assert Rows([tensor[:, 32:], tensor[:, :32]]).copy_of(1) == bytes(tensor[1].roll(32).tolist())

    def test_a_list_is_read_only_when_one_part_is(self) -> None:
        assert not Rows([np.zeros((2, 4), "u1"), np.frombuffer(bytes(8), "u1").reshape(2, 4)]).writable


class OldProducer:
    """A DLPack producer from before versions and devices: `__dlpack__()` and nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self) -> Any:
        return self.tensor.__dlpack__()


class Producer(OldProducer):
    """A producer that says what it likes about its device."""

    def __init__(self, tensor: torch.Tensor, device: tuple[int, int]) -> None:
        super().__init__(tensor)
        self.device = device
        self.asked: list[dict[str, Any]] = []

    def __dlpack__(self, **options: Any) -> Any:
        self.asked.append(options)
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class TestDlpack:
    def test_producer_without_versions(self) -> None:
        tensor = torch.from_numpy(pattern(2, 16))
        assert Rows(OldProducer(tensor)).copy_of(1) == tensor[1].numpy().tobytes()

    def test_newest_known_version_is_asked_for(self) -> None:
        producer = Producer(torch.zeros(2, 16), (1, 0))
        Rows(producer)
        assert producer.asked == [{"max_version": (1, 3)}]

    def test_pinned_memory_announces_another_device_than_its_capsule(self) -> None:
        assert Rows(Producer(torch.ones(2, 16, dtype=torch.uint8), (3, 0))).copy_of(0) == b"\1" * 16

    @pytest.mark.parametrize(("device", "message"), [((2, 0), "CUDA rows are not supported yet"), ((10, 1), "type 10")])
    def test_device_memory_is_refused_before_it_is_exported(self, device: tuple[int, int], message: str) -> None:
        producer = Producer(torch.zeros(2, 16), device)
        with pytest.raises(kvtier.UnsupportedError, match=message):
            Rows(producer)
        assert producer.asked == []

    def test_what_the_producer_raises_is_in_the_message(self) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=r"source\[1\]: .* require gradient, use tensor.detach"):
            Rows([torch.zeros(2, 2), torch.zeros(2, 2, requires_grad=True)])

    def test_answer_that_is_no_capsule(self) -> None:
        class Liar:
            def __dlpack__(self, **_options: Any) -> int:
                return 3

        with pytest.raises(kvtier.InvalidInputError, match="source: the object doesn't hand over its memory"):
            Rows(Liar())

    def test_capsule_that_was_used(self) -> None:
        capsule = torch.zeros(2, 2).__dlpack__()
        from_dlpack(capsule)

        class Used:
            def __dlpack__(self, **_options: Any) -> Any:
                return capsule

        with pytest.raises(kvtier.InvalidInputError):
            Rows(Used())


class TestRefusals:
    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (torch.zeros(4, 6).t(), r"source: the bytes of each row must be in one piece.*shape \(6, 4\)"),
            (torch.zeros(4, 6)[:, ::2], "in one piece"),
            (torch.zeros(4, 6, 2).permute(0, 2, 1), "in one piece"),
            (np.zeros((4, 6), order="F"), "in one piece"),
            (np.zeros((4, 6))[::-1], "overlap or run backwards"),
            (torch.zeros(1, 6).expand(4, 6), "overlap or run backwards"),
            (torch.zeros(16).as_strided((4, 6), (2, 1)), "overlap or run backwards"),
            (torch.zeros(0, 6), "there are no bytes"),
            (torch.zeros(4, 0), "there are no bytes"),
            (torch.tensor(1.0), "a single element has no rows"),
            (torch.zeros(24), r"doesn't say how long a row is.*cast\('B', \(num_rows, row_bytes\)\)"),
            (torch.zeros(4, 6, device="meta"), "doesn't hand over its memory"),
            (torch.zeros(4, 6).to_sparse(), "doesn't hand over its memory"),
            (np.array([[object()]]), "elements are Python objects"),
            ((ctypes.py_object * 4)(), "elements are Python objects"),
            ("text", "an object of type str has no memory to share; accepted are a buffer"),
            (7, "an object of type int"),
            (None, "an object of type NoneType"),
            ([], "an empty list"),
            ([torch.zeros(4, 2), torch.zeros(5, 2)], r"source\[1\] has 5 rows, and source\[0\] has 4"),
            ([torch.zeros(4, 2), "text"], r"source\[1\]: an object of type str"),
            ([torch.zeros(8)], r"source\[0\]: an array of one dimension"),
        ],
    )
    def test_one_clear_error(self, source: Any, message: str) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=message) as refused:
            Rows(source)
        assert refused.value.kind == "invalid_input"

    def test_one_tensor_twice(self) -> None:
        tensor = torch.zeros(4, 2)
        with pytest.raises(kvtier.InvalidInputError, match=r"source\[0\] and source\[2\] are the same memory"):
            Rows([tensor, torch.zeros(4, 2), tensor])

    def test_parts_that_overlap(self) -> None:
        tensor = torch.zeros(4, 64, dtype=torch.uint8)
        with pytest.raises(kvtier.InvalidInputError, match="parts 0 and 1 share memory"):
            Rows([tensor[:, :33], tensor[:, 32:]])
        with pytest.raises(kvtier.InvalidInputError, match="parts 1 and 2 share memory"):
            Rows([torch.zeros(3, 64), tensor[:3], tensor[1:]])

    def test_rows_of_another_length_than_the_identity_says(self) -> None:
        with pytest.raises(kvtier.InvalidInputError, match="a row has 24 bytes, but row_bytes is 32"):
            Rows(torch.zeros(4, 6), 32)
        with pytest.raises(kvtier.InvalidInputError, match="100 bytes can't be split into rows of 32 bytes"):
            Rows(bytearray(100), 32)

    def test_buffer_of_one_dimension_with_gaps(self) -> None:
        with pytest.raises(kvtier.InvalidInputError, match="must be contiguous"):
            Rows(memoryview(bytearray(64))[::2], 8)

    def test_row_out_of_range(self) -> None:
        with pytest.raises(kvtier.InvalidInputError, match="row 4 is out of range: the tier has rows 0 to 3"):
            Rows(torch.zeros(4, 6)).copy_of(4)


class TestLifetimes:
    def test_a_buffer_is_held_until_the_rows_are_gone(self) -> None:
        source = bytearray(64)
        rows = Rows(source, 8)
        with pytest.raises(BufferError):
            source.extend(b"more")
        del rows
        source.extend(b"more")

    def test_a_mapping_can_be_closed_once_the_rows_are_gone(self) -> None:
        source = mmap.mmap(-1, 8192)
        rows = Rows([memoryview(source).cast("B", (2, 4096))])
        with pytest.raises(BufferError):
            source.close()
        del rows
        source.close()

    def test_a_refused_argument_is_released_at_once(self) -> None:
        source = bytearray(64)
        with pytest.raises(kvtier.InvalidInputError):
            Rows(source, 7)
        kvtier.HostRows(1, 1)
        source.extend(b"more")

    @pytest.mark.parametrize("library", ["torch", "numpy"])
    def test_an_array_outlives_its_name(self, library: str) -> None:
        source = pattern(4, 64).copy() if library == "numpy" else torch.from_numpy(pattern(4, 64)).clone()
        gone = weakref.ref(source)
        rows = Rows(source)
        del source
        gc.collect()
        others = [np.full((4, 64), 1, "u1"), torch.full((4, 64), 1, dtype=torch.uint8)]
        assert rows.copy_of(3) == pattern(4, 64)[3].tobytes()
        del rows, others
        gc.collect()
        assert gone() is None

    def test_a_tensors_storage_stays_where_it_is(self) -> None:
        tensor = torch.zeros(4, 64, dtype=torch.bfloat16)
        rows = Rows(tensor)
        with pytest.raises(RuntimeError, match="not resizable"):
            tensor.resize_(400, 64)
        assert rows.copy_of(3) == bytes(128)

    def test_nothing_leaks(self) -> None:
        def resident() -> int:
            return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")

        def use() -> None:
            for source in (torch.ones(64, 1 << 16, dtype=torch.uint8), np.ones((64, 1 << 16), "u1")):
                Rows(source)
            from_dlpack(kvtier.HostRows(64, 1 << 16))[:] = 1

        use()
        before = resident()
        for _ in range(100):
            use()
        assert resident() - before < 64 << 20, "100 rounds of 12 MiB"


class TestHostRows:
    def test_views_share_the_memory(self) -> None:
        rows = kvtier.HostRows(4, 4096)
        as_numpy, as_tensor, view = np.asarray(rows), from_dlpack(rows), memoryview(rows)
        assert [as_numpy.shape, tuple(as_tensor.shape), view.shape] == [(4, 4096)] * 3
        assert (str(as_numpy.dtype), str(as_tensor.dtype), view.format) == ("uint8", "torch.uint8", "B")
        as_tensor[1, 2] = 3
        as_numpy[3, 4] = 5
        assert (view[1, 2], view[3, 4], view[0, 0]) == (3, 5, 0)
        assert as_tensor.data_ptr() == as_numpy.ctypes.data
        assert as_tensor.data_ptr() % 4096 == 0

    def test_numpy_takes_it_by_dlpack_too(self) -> None:
        rows = kvtier.HostRows(2, 64)
        by_dlpack = np.from_dlpack(rows)
        by_dlpack[1, 1] = 8
        assert memoryview(rows)[1, 1] == 8

    @pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
    def test_capsules_of_both_versions(self, max_version: tuple[int, int] | None) -> None:
        rows = kvtier.HostRows(2, 64)
        capsule = rows.__dlpack__(max_version=max_version)
        versioned = max_version is not None and max_version >= (1, 0)
        assert ("dltensor_versioned" in repr(capsule)) == versioned
        tensor = from_dlpack(capsule)
        tensor[0, 0] = 1
        assert memoryview(rows)[0, 0] == 1

    def test_copies_and_other_devices_are_refused(self) -> None:
        rows = kvtier.HostRows(2, 64)
        assert rows.__dlpack_device__() == (1, 0)
        with pytest.raises(BufferError):
            rows.__dlpack__(max_version=(1, 0), copy=True)
        with pytest.raises(BufferError):
            rows.__dlpack__(max_version=(1, 0), dl_device=(2, 0))

    def test_memory_outlives_the_object(self) -> None:
        tensor = from_dlpack(kvtier.HostRows(4, 1 << 20))
        view = memoryview(kvtier.HostRows(4, 1 << 20))
        gc.collect()
        tensor[:] = 7
        view[3, 5] = 7
        assert int(tensor.sum()) == 7 * (4 << 20)

    def test_a_capsule_that_nobody_takes_releases_the_memory(self) -> None:
        for _ in range(100):
            kvtier.HostRows(1, 64 << 20).__dlpack__()

    def test_plain_bytes_are_seen_as_one_piece(self) -> None:
        rows = kvtier.HostRows(2, 8)
        memoryview(rows)[1, 0] = 1
        assert bytes(rows) == bytes(8) + b"\1" + bytes(7)

    def test_attributes(self) -> None:
        rows = kvtier.HostRows(2, 64, pinned="auto")
        assert (rows.num_rows, rows.row_bytes, rows.pinned, len(rows)) == (2, 64, False, 2)
        assert repr(rows) == "HostRows(num_rows=2, row_bytes=64)"

    def test_a_fresh_one_is_zeroed(self) -> None:
        assert not np.asarray(kvtier.HostRows(16, 1 << 20)).any()

    @pytest.mark.parametrize(("num_rows", "row_bytes"), [(0, 1), (1, 0), (-1, 4), (4, -1)])
    def test_numbers_must_be_positive(self, num_rows: int, row_bytes: int) -> None:
        with pytest.raises(kvtier.InvalidInputError, match=f"num_rows={num_rows}, row_bytes={row_bytes}: both must be"):
            kvtier.HostRows(num_rows, row_bytes)

    def test_more_memory_than_there_is(self) -> None:
        with pytest.raises(kvtier.StoreUnavailableError, match="no memory for 1073741824 rows"):
            kvtier.HostRows(1 << 30, 1 << 30)

    def test_pinning_needs_cuda(self) -> None:
        assert not kvtier.HostRows(1, 1, pinned=False).pinned
        with pytest.raises(kvtier.UnsupportedError, match="needs CUDA"):
            kvtier.HostRows(1, 1, pinned=True)
        with pytest.raises(kvtier.InvalidInputError, match="pinned: 'yes' given"):
            kvtier.HostRows(1, 1, pinned="yes")  # type: ignore[arg-type]
