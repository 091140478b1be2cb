"""Memory by formula, for what cannot be traced. Pure.

Weights, gradients and optimizer state are counted. Activations have the form of Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models" (2022), section 4: so many bytes for
each token, layer and hidden unit (34 there; 43 here, for gated MLPs), 5 for each score of attention
that is held whole, and with checkpointing the input of each layer and one layer whole. Logits:
three copies in float32.

Known error: against the traces of 1024 candidates of the 7B Qwen2.5 shape (the one it was fitted
on) 0.91 to 1.41 of them, 2.4 with eager attention over rows laid one behind the other
(`benchmarks/closed_form`). A third either way is assumed of other models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.estimate.estimate import CONTEXT, Estimate
from autotune.estimate.records.events import (
    ACTIVATIONS,
    GRADIENTS,
    LOGITS,
    OPTIMIZER,
    VLLM,
    WEIGHTS,
)
from autotune.estimate.residual import Residual
from autotune.space.checkpointing import CHECKPOINTING, OFFLOAD, share_again
from autotune.space.quantization import bits_of, trains_wide
from autotune.space.vllm.memory import VllmShare

RELATIVE_SIGMA = 0.35
KNOWN_ERROR = "by formula: 0.91 to 1.41 (at most 2.4) of a trace on the 7B shape"
PER_TOKEN, PER_SCORE = 43, 5
"""Bytes for each token, layer and hidden unit; and for each score of eager attention."""
TILE = (4096, 32768)
"""The tile of TRL's fused head: `TOKEN_CHUNK_SIZE`, `_CHUNKED_LOGPROB_CHUNK_SIZE`."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
STATES = {"adafactor": 0, "sgd": 0, "adamw_8bit": 2, "paged_adamw_8bit": 2}
"""Bytes of optimizer state for each trained weight; Adam keeps two moments in the weights' type."""


@dataclass(frozen=True, kw_only=True)
class Dimensions:
    """The sizes that the formula counts with.

    Attributes:
        trained: parameters that have gradients.
        tokens: of the worst micro-batch, with padding.
        length: of its rows.
        fused_head: whether logits are held in tiles only (`stack.fused_head`).
        kept_logits_bytes: of completions, where they are kept through the update.
        vllm: what vLLM has of the device.
        teacher_bytes: weights of a model that teaches.
        judges: parameters of models beside the policy that no job quantises.
        unquantised: parameters of the others that quantisation leaves; None: not known.
    """

    parameters: int
    trained: int
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    tokens: int
    length: int
    fused_head: bool = False
    kept_logits_bytes: int = 0
    vllm: VllmShare | None = None
    teacher_bytes: int = 0
    judges: int = 0
    unquantised: int | None = None


def parts_by_formula(config: Mapping[str, Any], size: Dimensions) -> dict[str, int]:
    """Return the bytes of each part of a candidate's peak."""
    width = _BYTES.get(str(config.get("dtype", "float32")), 4)
    half = bool(config.get("bf16") or config.get("fp16") or width == 2)
    scale = 1 if width == 2 else 2  # beside float32 weights the residual stream is float32
    per_layer = PER_TOKEN * size.hidden * size.tokens * scale
    if config.get("attn_implementation") == "eager":
        per_layer += PER_SCORE * size.heads * size.tokens * size.length * scale
    again = config.get(CHECKPOINTING, True)
    inputs = round(size.layers * share_again(again, size.layers))
    activations = (size.layers - inputs) * per_layer
    if again:
        kept = 0 if again == OFFLOAD else inputs
        activations += kept * 2 * size.hidden * size.tokens * scale + per_layer
    rows, columns = logits_held(config, size)
    trained_width = 4 if trains_wide(config) else width
    state = STATES.get(str(config.get("optim")), 2 * trained_width)
    return {
        WEIGHTS: _weights_bytes(config, size, width + (2 if half and width == 4 else 0))
        + size.teacher_bytes,
        GRADIENTS: size.trained * trained_width,
        OPTIMIZER: size.trained * state,
        ACTIVATIONS: activations,
        LOGITS: size.kept_logits_bytes + 3 * 4 * rows * columns,
    }


def logits_held(config: Mapping[str, Any], size: Dimensions) -> tuple[int, int]:
    """Return (tokens, vocabulary) of the logits that are held at once."""
    if size.fused_head:
        return min(size.tokens, TILE[0]), min(size.vocabulary, TILE[1])
    chunked = config.get("loss_type") == "chunked_nll"
    return min(size.tokens, 256) if chunked else size.tokens, size.vocabulary


def _weights_bytes(config: Mapping[str, Any], size: Dimensions, width: int) -> int:
    """Return the bytes of the weights.

    parameters x width; of a quantised base: full_width x width + packed x bits / 8 x 9 / 8.
    Packed is all but the embeddings and a head of its own where nothing else is known; the eighth
    more is for the maxima and what is unpacked at a time.
    """
    bits = bits_of(config)
    if bits is None:
        return size.parameters * width
    unpacked = size.unquantised
    full_width = size.judges + (2 * size.vocabulary * size.hidden if unpacked is None else unpacked)
    full_width = min(full_width, size.parameters)
    return full_width * width + (size.parameters - full_width) * bits * 9 // 64


def closed_form(
    config: Mapping[str, Any], size: Dimensions, residual: Residual, limit_bytes: int, reason: str
) -> Estimate:
    """Return the estimate of a candidate by formula; `reason`: why it could not be traced."""
    parts = parts_by_formula(config, size)
    lasting = sum(parts[name] for name in (WEIGHTS, GRADIENTS, OPTIMIZER))
    vllm = size.vllm.added_peak(sum(parts.values()), lasting) if size.vllm is not None else 0
    note = f"could not be traced ({reason}); {KNOWN_ERROR}"
    formula_residual = replace(residual, relative_sigma=RELATIVE_SIGMA)
    return estimate_of_parts({**parts, VLLM: vllm}, formula_residual, limit_bytes, note)


def estimate_of_parts(
    parts: Mapping[str, int], residual: Residual, limit_bytes: int, note: str
) -> Estimate:
    """Return the estimate whose peak has these parts, by formula."""
    total, vllm = sum(parts.values()), parts.get(VLLM, 0)
    training_bytes = total - vllm
    expected = round(residual.corrected(training_bytes)) + vllm
    p_oom = residual.probability_above(training_bytes, limit_bytes - vllm)
    return Estimate(
        peak_allocated_bytes=total,
        peak_reserved_bytes=total,
        peak_memory_bytes=expected,
        parts={**parts, CONTEXT: expected - total},
        peak_operator="",
        peak_phase="",
        allocator_retries=0,
        method="closed form",
        notes=(note,),
        sigma_bytes=round(residual.sigma(training_bytes)),
        p_oom=p_oom,
        fits=p_oom < 0.5,
        missing_bytes=max(expected - limit_bytes, 1) if p_oom >= 0.5 else None,
    )
