"""The points that all estimators are asked about."""

from itertools import product
from typing import Any

from benchmarks.estimate_exactness.cases import Case
from benchmarks.host_memory.run import MODEL

QWEN_05B: dict[str, Any] = {**MODEL, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
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
