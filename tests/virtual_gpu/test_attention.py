"""Which attention kernel torch takes on Hopper, by its own code, and what it keeps."""

from typing import Any

import pytest

from autotune.space.trl_config import CUDNN_LAST

pytestmark = pytest.mark.nightly("virtual_gpu")

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
    ("variables", "kernel"), [({}, "CudnnAttention"), ({CUDNN_LAST: "1"}, "FlashAttention")]
)
def test_cudnn_is_first_unless_it_is_left_out_and_repeats_no_heads(
    variables: dict[str, str], kernel: str, virtual_gpu: Any
) -> None:
    printed = virtual_gpu("h200").run("-c", ATTENTION, **variables)
    assert f"ScaledDotProduct{kernel}Backward0" in printed
    assert "[2, 2, 512, 128]" in printed


CEILINGS = """
import json, sys
from pathlib import Path
from autotune.estimate.speed.measuring import worker
chosen, sdpa_kernel = [], worker.sdpa_kernel
worker.sdpa_kernel = lambda kernel: chosen.append(kernel) or sdpa_kernel(kernel)
sizes = {"matmul": [16], "attention": [32], "attention_tokens": 64, "moved_bytes": [49152],
         "operator_elements": 4096, "buffer_bytes": 1 << 20}
request = {"device_kind": "cuda", "device_index": 0, "threads": 2, "sizes": sizes}
folder = Path(sys.argv[1])
(folder / "request.json").write_text(json.dumps(request))
worker.measure(folder)
rates = json.loads((folder / "reply.json").read_text())["ceilings"]["attention"]
print(json.dumps([len(rates), sum(rate[-1] for rate in rates), len(chosen)]))
"""


def test_cudnns_attention_is_measured_beside_the_others(tmp_path: Any, virtual_gpu: Any) -> None:
    printed = virtual_gpu("h200").run("-c", CEILINGS, str(tmp_path))
    # Forward and backward, with a mask and without, in three formats; cuDNN's in two of them.
    assert "[20, 8, 4]" in printed
