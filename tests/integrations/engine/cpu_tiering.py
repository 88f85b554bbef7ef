"""vLLM's tiered offloading on its CPU platform, where vLLM itself has no worker for it.

Only the copy between the workers' KV cache and the host buffer is made here; scheduler, hashing, tiering manager, primary
tier and secondary tiers are vLLM's own.
"""

import ctypes
from collections import deque
from typing import Any

import numpy as np
import torch
from vllm.utils.math_utils import cdiv
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.gpu_worker import compute_sub_block_ptrs
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CpuWorker(OffloadingWorker):
    """Copies between one worker's KV cache and its part of the host buffer's rows, at once."""

    def __init__(self, caches: Any, region: SharedOffloadRegion, blocks_per_chunk: int, writes: bool) -> None:
        self._caches, self._region, self._blocks_per_chunk, self._writes = caches, region, blocks_per_chunk, writes
        self._cache_tensors = [one.tensor.view(torch.int8).view(-1, one.page_size_bytes) for one in caches.tensors]
        self._host_tensors = [
            region.create_next_worker_view(one.page_size_bytes * blocks_per_chunk) for one in caches.tensors
        ]
        self._done: deque[TransferResult] = deque()

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """From the KV cache to the host buffer."""
        return self._copy(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """From the host buffer to the KV cache."""
        return self._copy(job_id, src_spec, dst_spec, store=False)

    def get_finished(self) -> list[TransferResult]:
        """The copies since the last call."""
        finished = list(self._done)
        self._done.clear()
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def shutdown(self) -> None:
        """Gives the host buffer back."""
        self._host_tensors.clear()  # views of it
        self._region.cleanup()

    def _copy(self, job_id: int, source: Any, target: Any, store: bool) -> bool:
        groups = source if store else target
        from_factor, to_factor = (1, self._blocks_per_chunk) if store else (self._blocks_per_chunk, 1)
        tensors = (self._cache_tensors, self._host_tensors)
        from_tensors, to_tensors = tensors if store else tensors[::-1]
        from_begin = to_begin = moved = 0
        for group, (size, index) in enumerate(zip(groups.group_sizes, groups.block_indices, strict=True)):
            if not size:
                continue
            from_skip, to_skip = index % from_factor, index % to_factor
            from_end = from_begin + cdiv(size + from_skip, from_factor)
            to_end = to_begin + cdiv(size + to_skip, to_factor)
            from_ids, to_ids = source.block_ids[from_begin:from_end], target.block_ids[to_begin:to_end]
            from_begin, to_begin = from_end, to_end
            for ref in self._caches.group_data_refs[group]:
                begins, ends = np.empty(size, np.uint64), np.empty(size, np.uint64)
                compute_sub_block_ptrs(
                    from_ids, from_factor, begins, from_tensors[ref.tensor_idx], skip_count=from_skip
                )
                compute_sub_block_ptrs(to_ids, to_factor, ends, to_tensors[ref.tensor_idx], skip_count=to_skip)
                if not store or self._writes:
                    for begin, end in zip(begins, ends, strict=True):
                        ctypes.memmove(int(end), int(begin), ref.page_size_bytes)
                moved += size * ref.page_size_bytes
        self._done.append(TransferResult(job_id=job_id, success=True, transfer_size=moved, transfer_time=1e-6))
        return True


class CpuTieringSpec(TieringOffloadingSpec):
    """`TieringOffloadingSpec` with that worker."""

    _worker: Any

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        """The worker of this process."""
        if self._worker is None:
            rank = self.config.parallel.rank
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id,
                num_chunks=self.num_chunks,
                rank=0 if self.replicated_layout else rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            writes = not self.replicated_layout or rank == 0
            self._worker = CpuWorker(kv_caches, region, self.blocks_per_chunk, writes)
        worker: OffloadingWorker = self._worker
        return worker
