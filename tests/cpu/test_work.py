"""The work of operators, by the shapes of their arguments."""

import pytest
import torch

from autotune.estimate.tracing.kernels.cuda import CudaRules
from autotune.estimate.tracing.operator_work import work_of

aten = torch.ops.aten


def product(operator, *shapes, before=()):
    tensors = [torch.empty(shape, device="meta") for shape in shapes]
    out = torch.empty(1, device="meta")
    return work_of(operator, operator.name(), (*before, *tensors), {}, [out], 0)


def test_a_product_counts_two_operations_for_each_pair() -> None:
    assert product(aten.mm.default, (3, 5), (5, 7)).flops == 2 * 3 * 5 * 7
    found = product(aten.addmm.default, (7,), (3, 5), (5, 7))
    assert (found.kind, found.dims, found.flops) == ("matmul", (1, 3, 5, 7), 2 * 3 * 5 * 7)
    assert product(aten.bmm.default, (2, 3, 5), (2, 5, 7)).dims == (2, 3, 5, 7)


@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        ((10, 4), (3, 4, 8), 10 * 4 * 8),  # ten tokens, each through one of three experts
        ((3, 8, 4), (4, 10), 8 * 4 * 10),  # the same from the other side
        ((8, 10), (10, 4), 8 * 10 * 4),  # the gradients of the experts: the tokens are divided
        ((3, 10, 4), (3, 4, 8), 3 * 10 * 4 * 8),
    ],
)
def test_experts_share_the_tokens_of_a_grouped_product(left, right, pairs) -> None:
    found = product(aten._grouped_mm.default, left, right)
    assert (found.kind, found.flops) == ("matmul", 2 * pairs)


def attention(operator, *arguments):
    query = torch.empty(2, 4, 64, 32, device="meta")
    out = torch.empty(2, 4, 64, 32, device="meta")
    return work_of(operator, operator.name(), (query, query, query, *arguments), {}, [out], 0)


def test_only_causal_attention_computes_half() -> None:
    whole = 4 * 2 * 4 * 64 * 64 * 32
    mask = torch.empty(2, 1, 64, 64, device="meta")
    efficient = aten._scaled_dot_product_efficient_attention.default
    # What is True here is that the softmax's sums are kept for the backward pass.
    assert attention(efficient, mask, True, 0.0, False).flops == whole
    assert attention(efficient, None, True, 0.0, True).flops == whole // 2
    flash = aten._scaled_dot_product_flash_attention.default
    assert attention(flash, 0.0, True).flops == whole // 2
    assert attention(flash).flops == whole


PACKAGE, PACKAGE_BACKWARD = aten._flash_attention_forward.default, aten._flash_attention_backward


def test_the_kernels_of_flash_attn_have_their_heads_behind_their_tokens() -> None:
    rows = torch.empty(2, 64, 4, 32, device="meta")
    found = work_of(
        PACKAGE, PACKAGE.name(), (rows, rows, rows, None, None, 64, 64, 0.0, True), {}, [rows], 0
    )
    assert (found.dims, found.flops) == ((2, 4, 64, 64, 32), 4 * 2 * 4 * 64 * 64 * 32 // 2)


def test_rows_end_to_end_see_their_own_keys_only() -> None:
    tokens, starts = torch.empty(128, 4, 32, device="meta"), torch.empty(3, device="meta")
    found = work_of(
        PACKAGE,
        PACKAGE.name(),
        (tokens, tokens, tokens, starts, starts, 64, 64, 0.0, True),
        {},
        [tokens],
        0,
    )
    assert (found.dims, found.flops) == ((2, 4, 64, 64, 32), 4 * 2 * 4 * 64 * 64 * 32 // 2)


@pytest.mark.parametrize(("starts", "rows"), [(None, 2 * 128), (3, 200 + 2 * 128)])
def test_flash_attns_backward_pass_sums_in_float32_by_whole_blocks(starts, rows) -> None:
    rules = CudaRules(workspace_bytes=0, flash=True, cudnn_first=False)
    shape = (2, 100) if starts is None else (200,)
    query = torch.empty(*shape, 4, 24, device="meta", dtype=torch.bfloat16)
    key = torch.empty(*shape, 2, 24, device="meta", dtype=torch.bfloat16)
    ends = None if starts is None else torch.empty(starts, device="meta")
    arguments = (query, query, key, key, query, query, ends, ends)
    found = list(rules.scratch_bytes(PACKAGE_BACKWARD.default, arguments, None))
    of_every_head = 200 * 4 * 24 * 2  # of dk and of dv, where heads share keys
    assert found == [rows * 4 * 32 * 4, rows * 4 * 4, of_every_head, of_every_head]
