"""What CUDA dispatches and takes; figures are of torch's CUDA allocator on a virtual A100."""

import torch
import torch.nn.functional as F

from autotune.estimate.tracing.kernels.cuda import CudaRules, dispatched_as_on_cuda

RULES = CudaRules(workspace_bytes=0, flash=True, cudnn_first=False)
aten = torch.ops.aten


def kept_types(tensor: torch.Tensor) -> list[torch.dtype]:
    types: list[torch.dtype] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: types.append(t.dtype) or t, lambda t: t
    ):
        F.dropout(tensor, 0.1)
    return types


def test_dropout_keeps_a_mask_of_one_byte_an_element_only_as_on_cuda():
    tensor = torch.ones(8, requires_grad=True)
    assert kept_types(tensor) == [torch.float32]
    with dispatched_as_on_cuda():
        assert kept_types(tensor) == [torch.bool]
    assert kept_types(tensor) == [torch.float32]


def test_autocast_runs_in_float32_what_cuda_runs_in_float32():
    tensor = torch.ones(8, dtype=torch.bfloat16)
    with dispatched_as_on_cuda(), torch.autocast("cpu", torch.bfloat16):
        assert tensor.pow(2).dtype == torch.rsqrt(tensor).dtype == torch.float32
        assert tensor.softmax(-1).dtype == tensor.sum().dtype == torch.float32
        assert tensor.softmax(-1, dtype=torch.bfloat16).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.rsqrt(tensor).dtype == torch.bfloat16


def scratch(operator, args, out):
    return sum(RULES.scratch_bytes(operator, args, out))


def test_a_long_embeddings_gradient_takes_partial_sums():
    backward, table = aten.embedding_dense_backward.default, torch.empty(1000, 256)
    assert scratch(backward, (None, torch.empty(5376)), table) == 1731224
    assert scratch(backward, (None, torch.empty(3072)), table) == 0


def test_the_efficient_attentions_backward_workspace():
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    for size, real in ((64, 262400), (80, 524416), (128, 524416), (256, 3146240)):
        heads = torch.empty(2, 4, 100, size)
        assert scratch(backward, (None, heads, heads), None) == real + 3200


def test_grouped_heads_with_a_mask_take_no_efficient_kernel():
    query, key = (torch.empty(2, heads, 100, 64, dtype=torch.bfloat16) for heads in (4, 2))
    mask = torch.empty(2, 1, 100, 100)
    assert RULES.attention(query, key, key, mask) == "math"
    assert RULES.attention(query, query, query, mask) == "efficient"
