"""The points that all estimators are asked about."""

from itertools import product
from typing import Any

from benchmarks.estimate_exactness.cases import Case

QWEN_05B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
"""The shape of Qwen2.5-0.5B."""
LARGE = "qwen2.5-0.5b"


def points() -> list[Case]:
    """Small models in all ways, and a shape that people train, in some."""
    small = [
        Case(
            model=model, method=method, dtype=dtype, checkpointing=checkpointing, loss=loss, shape=s
        )
        for model, (method, loss), (dtype, checkpointing), s in product(
            ("qwen2-untied", "llama-deep"),
            (("full", "nll"), ("full", "chunked_nll"), ("lora-all-16", "nll")),
            (("float32", "off"), ("bfloat16", "on")),
            ("4x96", "1x384"),
        )
    ]
    large = [
        Case(model=LARGE, method=method, loss="nll", shape=shape)
        for method, shape in product(("full", "lora-all-16"), ("1x384", "4x96", "6x129"))
    ]
    return small + large
