"""One real vLLM engine on the CPU: `serve.py JSON`, with the arguments of `main`; its last line is a result.

Each prompt is a name; its 1000 tokens follow from the name.
"""

import json
import os
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)
os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    # For the engine's own processes.
    "PYTHONPATH": os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])]),
}
sys.path.insert(0, HERE)

LABELS = ("tier", "direction", "kind")
UNDER_WAY = ("queued_load_blocks", "queued_store_blocks", "inflight_blocks")


def tokens_of(prompt: str) -> list[int]:
    """1000 tokens that no other prompt begins with."""
    salt = zlib.crc32(prompt.encode())
    return [(i * 7919 + i * i + salt * (i % 7 + 1)) % 1000 + 5 for i in range(1000)]


def main(model: str, tp: int, tiers: list[dict[str, Any]], prompts: list[str], pause: str | None) -> dict[str, Any]:
    """Serves the prompts one after another; before `pause` it says PAUSE and waits for a line.

    Without tiers the engine has no offloading at all.
    """
    from prometheus_client import REGISTRY  # noqa: PLC0415
    from vllm import LLM, SamplingParams  # noqa: PLC0415
    from vllm.config import KVTransferConfig  # noqa: PLC0415
    from vllm.inputs import TokensPrompt  # noqa: PLC0415

    def samples() -> Iterator[tuple[str, dict[str, str], float]]:
        for sample in (sample for metric in REGISTRY.collect() for sample in metric.samples):
            if sample.name.startswith("kvtier:"):
                yield sample.name.removeprefix("kvtier:"), sample.labels, sample.value

    def counters() -> dict[str, float]:
        return {
            ":".join([name.removesuffix("_total"), *(labels[part] for part in LABELS if part in labels)]): value
            for name, labels, value in samples()
            if name.endswith("_total")
        }

    def is_idle() -> bool:
        return not any(value for name, _, value in samples() if name in UNDER_WAY)

    def settle() -> None:
        """Stores end, and counters are told, in steps of the engine; short prompts make steps and store nothing."""
        until, before, same = time.monotonic() + 120, None, 0
        while same < 2 and time.monotonic() < until:
            for _ in range(5):
                llm.generate([TokensPrompt(prompt_token_ids=[9] * 8)], sampling, use_tqdm=False)
                time.sleep(0.02)
            now = counters()
            same, before = same + 1 if now == before and is_idle() else 0, now

    offloading = KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "cpu_tiering",
            "cpu_bytes_to_use": 256 << 20,
            "secondary_tiers": tiers,
        },
    )
    llm = LLM(
        model=model,
        skip_tokenizer_init=True,
        max_model_len=2048,
        enforce_eager=True,
        enable_prefix_caching=True,
        seed=0,
        dtype="float32",
        tensor_parallel_size=tp,
        distributed_executor_backend="mp" if tp > 1 else None,
        # For MLA the choice would depend on the processor, and the other one can't take this dtype.
        attention_backend="CPU_MLA" if Path(model).name == "mla" else None,
        disable_log_stats=False,
        kv_transfer_config=offloading if tiers else None,
    )
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    answers = {}
    for prompt in prompts:
        if prompt == pause:
            print("PAUSE", flush=True)  # noqa: T201
            sys.stdin.readline()
        begun = time.monotonic()
        (output,) = llm.generate([TokensPrompt(prompt_token_ids=tokens_of(prompt))], sampling, use_tqdm=False)
        answers[prompt] = {
            "tokens": list(output.outputs[0].token_ids),
            "cached": output.num_cached_tokens,
            "seconds": round(time.monotonic() - begun, 3),
        }
        settle()
    now = counters()
    llm.llm_engine.engine_core.shutdown()
    return {"answers": answers, "counters": now}


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(**json.loads(sys.argv[1]))), flush=True)  # noqa: T201
