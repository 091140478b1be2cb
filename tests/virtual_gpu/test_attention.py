"""Which attention kernel torch takes on Hopper, by its own code, and what it keeps."""

from typing import Any

import pytest

from autotune.space.cudnn_attention import VARIABLE

ATTENTION = """
import json, torch, torch.nn.functional as F
options = {"dtype": torch.bfloat16, "device": "cuda", "requires_grad": True}
query = torch.randn(2, 12, 512, 128, **options)
key, value = (torch.randn(2, 2, 512, 128, **options) for _ in range(2))
out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
saved = out.grad_fn
print(json.dumps([saved.name(), list(saved._saved_key.shape)]))
"""


@pytest.mark.parametrize(
    ("variables", "kernel"), [({}, "CudnnAttention"), ({VARIABLE: "1"}, "FlashAttention")]
)
def test_cudnn_is_first_unless_it_is_left_out_and_repeats_no_heads(
    variables: dict[str, str], kernel: str, virtual_gpu: Any
) -> None:
    printed = virtual_gpu("h200").run("-c", ATTENTION, **variables)
    assert f"ScaledDotProduct{kernel}Backward0" in printed
    assert "[2, 2, 512, 128]" in printed
