"""Makes two tiny models with random weights: `models.py llama|mla DIRECTORY`."""

import sys
from typing import Any

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

COMMON: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "initializer_range": 0.08,  # wide enough that the next token is not a matter of rounding
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make(name: str) -> PreTrainedModel:
    """The model of that name; its weights are the same each time."""
    torch.manual_seed(0)
    if name == "llama":
        config = LlamaConfig(**COMMON, num_key_value_heads=4, head_dim=32)
        return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    return DeepseekV3ForCausalLM(  # type: ignore[no-untyped-call]
        DeepseekV3Config(
            **COMMON,
            moe_intermediate_size=64,
            num_key_value_heads=8,
            q_lora_rank=96,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=COMMON["num_hidden_layers"],
        )
    )


if __name__ == "__main__":
    made = make(sys.argv[1])
    torch.nn.Module.to(made, torch.bfloat16)
    made.save_pretrained(sys.argv[2])
