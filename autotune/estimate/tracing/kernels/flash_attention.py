"""FlashAttention's packages by what their kernels allocate, whether they are installed or not.

torch has the same kernels (aten/src/ATen/native/transformers/cuda/flash_attn is flash-attn 2): rows
of one length, or laid one behind the other with their starts. They keep queries, keys, values, the
output and a float32 log of the softmax's sums; what the backward pass takes inside is in
`cuda.py`. Around them runs transformers' own code, which takes padding out and puts it back.
Known error: FlashAttention 3 and 4 are taken to allocate what 2 does; of grouped heads their
backward passes add keys' and values' gradients up in float32, and 4 keeps two logs of sums more. A
sink of attention (gpt-oss) gets no gradient: one number a head.
Runs in a child only.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from autotune.training.patching import replaced, require

IMPLEMENTATIONS = {f"flash_attention_{number}": number for number in (2, 3, 4)}
"""What `attn_implementation` calls them, and transformers' number of each."""
_UTILS = "transformers.modeling_flash_attention_utils"
_OPERATOR = "_flash_attention_forward"
"""torch's own, which stands for the packages'."""
_MULTIPLE = 8
"""Sizes of heads are padded to a multiple of this (flash_attn_interface.py)."""


@contextlib.contextmanager
def flash_attention_installed(implementation: Any) -> Iterator[None]:
    """Let transformers find the package of this implementation, if it is one of these; what a model
    takes in its place, too, which the hub gives."""
    if implementation not in IMPLEMENTATIONS:
        yield
        return
    with _selective_checkpointing(IMPLEMENTATIONS[implementation]), _packages():
        yield


@contextlib.contextmanager
def _selective_checkpointing(number: int) -> Iterator[None]:
    """Let TRL's selective checkpointing keep what it keeps of the kernels' operators, by their
    names; FlashAttention 4 has none, and is computed again."""
    try:
        module = importlib.import_module("trl.models.selective_activation_checkpointing")
    except ImportError:  # before TRL 1.16
        yield
        return
    require(module, "_ATEN_ATTENTION_PACKET_NAMES")
    names = module._ATEN_ATTENTION_PACKET_NAMES
    operators = () if number == IMPLEMENTATIONS["flash_attention_4"] else (_OPERATOR,)
    with replaced(module, "_ATEN_ATTENTION_PACKET_NAMES", (*names, *operators)):
        yield


@contextlib.contextmanager
def _packages() -> Iterator[None]:
    """Let transformers find the packages, and take these kernels for theirs."""
    utils = importlib.import_module(_UTILS)
    require(
        utils, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", "_lazy_imports", "_loaded_implementation"
    )
    packages = utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX
    checks = {
        "general_availability_check": lambda *_, **__: True,
        "supported_devices": ((lambda: True, "cuda"),),
    }
    unpad = utils._unpad_input

    def functions(name: Any, *_: Any, **__: Any) -> Any:
        if "/" in str(name):
            _register(name)
        return _rows, _rows_end_to_end, None, _pad, unpad

    real = dict(packages)
    packages.update({number: {**package, **checks} for number, package in real.items()})
    try:
        with (
            replaced(utils, "_lazy_imports", functions),
            replaced(utils, "_loaded_implementation", None),
        ):
            yield
    finally:
        packages.update(real)


def _register(name: str) -> None:
    """Do what transformers' `load_and_register_attn_kernel` does with a kernel of the hub."""
    from transformers.integrations.flash_attention import flash_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(name, flash_attention_forward)
    MASKS.register(name, MASKS["flash_attention_2"])


def _rows(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
    s_aux: Any = None,
) -> Any:
    """Stand for `flash_attn_func`: rows of one length, as (rows, length, heads, size)."""
    return _kernel((q, k, v), (None, None, q.shape[1], k.shape[1]), dropout_p, causal)


def _rows_end_to_end(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
    s_aux: Any = None,
) -> Any:
    """Stand for `flash_attn_varlen_func`: rows one behind the other, as (tokens, heads, size)."""
    longest = int(max_seqlen_q), int(max_seqlen_k)
    return _kernel((q, k, v), (cu_seqlens_q, cu_seqlens_k, *longest), dropout_p, causal)


def _kernel(states: Any, lengths: Any, dropout: float, causal: bool) -> Any:
    size = states[0].shape[-1]
    if size % _MULTIPLE:
        states = [F.pad(state, [0, _MULTIPLE - size % _MULTIPLE]) for state in states]
    kernel = getattr(torch.ops.aten, _OPERATOR)
    out = kernel(*states, *lengths, dropout, causal, return_debug_mask=False)[0]
    return out[..., :size]


class _Padded(torch.autograd.Function):
    """`flash_attn.bert_padding.IndexPutFirstAxis`."""

    @staticmethod
    def forward(context: Any, values: Any, indices: Any, count: int) -> Any:
        """Return values at their places, zeros elsewhere."""
        context.save_for_backward(indices)
        out = torch.zeros(count, *values.shape[1:], device=values.device, dtype=values.dtype)
        out[indices] = values
        return out

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Return the gradients at the places."""
        (indices,) = context.saved_tensors
        return gradients[0][indices], None, None


def _pad(states: Any, indices: Any, batch: int, length: int) -> Any:
    """Stand for `flash_attn.bert_padding.pad_input`."""
    padded: Any = _Padded.apply(states, indices, batch * length)
    return padded.view(batch, length, *states.shape[1:])
