"""Memory and time of a decoder's training step by arithmetic on its shape, without a trace. Pure.

Made for the first line of a plan, which comes before anything can be traced. The form follows from
what a layer does; its constants are fitted to the traces of `benchmarks/first_line`, which has the
errors too; the head is TRL's fused one, as its code has it. Not modelled: eager attention,
offloaded activations, several devices, generation.

Memory: weights, gradients, moments, casts; and the larger of two moments of a micro-step: the loss,
with its logits, and the backward pass of a layer. Time: matmuls and attention at the device's
rates, other operators by the bytes that they move, the host by how many operators it dispatches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.estimate.formula.closed_form import TILE
from autotune.estimate.records.events import (
    ACTIVATIONS,
    CASTS,
    GRADIENTS,
    LOGITS,
    OPTIMIZER,
    WEIGHTS,
)
from autotune.estimate.speed.ceilings import Ceilings
from autotune.estimate.speed.step_time import BACKWARD, TimeParts
from autotune.facts.model_shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class DecoderStep:
    """A micro-step.

    Attributes:
        vocabulary: outputs of the head.
        weights_bytes: of all models that are held.
        trained: weights that have gradients.
        state_bytes: of the optimizer, for each of these.
        tokens: with padding.
        length: of the rows that attention sees.
        masked: whether attention is given a mask.
        flat: whether rows lie one behind the other.
        wide: whether weights are in float32.
        half: whether it computes in 16 bits.
        full: whether all weights are trained, not adapters.
        rank: of the adapters.
        quantised: whether weights are unpacked for each use.
        again: share of the layers that are computed again.
        cudnn: whether attention is cuDNN's.
        accumulates: whether gradients are added to those of other micro-steps.
    """

    shape: ModelShape
    vocabulary: int
    weights_bytes: int
    trained: int
    state_bytes: int
    tokens: int
    length: int
    masked: bool
    flat: bool
    wide: bool
    half: bool
    full: bool
    rank: int
    quantised: bool
    again: float
    liger: bool
    cudnn: bool
    accumulates: bool

    @property
    def head_rows(self) -> int:
        """Tokens whose logits are made at a time, by TRL's fused head."""
        return min(self.tokens, TILE[0])

    @property
    def width(self) -> int:
        """Bytes of a weight and of the residual stream."""
        return 4 if self.wide else 2

    @property
    def trained_width(self) -> int:
        """Bytes of a trained weight: adapters are in float32 whatever their base is in."""
        return self.width if self.full else 4

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.shape.facts.layers or 1

    @property
    def hidden(self) -> int:
        """The size of the residual stream."""
        return self.shape.facts.hidden_size or 1


FRAGMENTED = 1.05
"""What the allocator reserves over what is in use."""
SAVED = {
    (False, False): (9.6, 8.4, 1.3, 0.75, 2.7),
    (False, True): (6.2, 7.2, 1.3, 0.75, 2.7),
    (True, False): (7.6, 11.1, 1.5, 0.5, 2.7),
    (True, True): (4.6, 9.8, 1.5, 0.5, 2.7),
}
"""Bytes that a layer keeps of each of `saved_terms`, by (weights in float32, Liger's kernels)."""
MOVED = (30.0, 3.7, 3.4, 9.0, 3.0, 12.0, 7.1, 0.65, 3.6)
"""How often each of `moved_terms` is moved."""
OPERATORS = {True: 138.0, False: 194.0}
"""What a layer dispatches in a pass, by whether all weights are trained; a backward pass is two."""


def saved_terms(step: DecoderStep) -> tuple[float, ...]:
    """Return the numbers of a token that a layer keeps something of for its backward pass: that are
    normed, made in the MLP, made by q, k and v, inputs of adapted layers, and of quantised ones."""
    shape = step.shape
    made = sum(one.outputs * one.number for one in shape.linears[:2])
    inputs = 0 if step.full else sum(one.inputs * one.number for one in shape.linears)
    adapted = (0, inputs) if step.quantised else (inputs, 0)
    return float(shape.normed), float(shape.inner), float(made), *map(float, adapted)


def peak_parts(step: DecoderStep) -> dict[str, int]:
    """Return the bytes of each part of a process's peak."""
    shape, tokens = step.shape, step.tokens
    saved = tokens * dot(SAVED[step.wide, step.liger], saved_terms(step))
    if step.flat and step.masked:
        saved += 2 * tokens**2
    casts = 0.0
    if step.wide and step.half and not step.quantised:
        inside = shape.facts.parameters
        casts = 2 * inside if step.full or step.again < 1 else 2 * inside / step.layers
    kept, working = (1 - step.again) * step.layers * saved, 0.0
    if step.again:
        kept += step.again * step.layers * step.width * step.hidden * tokens
        working = saved + tokens * (6.0 * max(shape.inner, step.hidden))
    logits = head_bytes(step)
    if logits < working:
        logits, kept = 0, kept + working
    gradients = step.trained_width * step.trained
    passing = {
        CASTS: round(casts),
        ACTIVATIONS: round(FRAGMENTED * kept),
        LOGITS: round(FRAGMENTED * logits),
    }
    if not step.accumulates:  # then gradients come as activations go
        if sum(passing.values()) > gradients:
            gradients = 0
        else:
            passing = dict.fromkeys(passing, 0)
    return {
        WEIGHTS: step.weights_bytes,
        GRADIENTS: gradients,
        OPTIMIZER: step.state_bytes * step.trained,
        **passing,
    }


def head_bytes(step: DecoderStep) -> float:
    """Return what TRL's fused head holds in its backward pass: a tile of logits, a part of its
    weights cast, and in float32 the gradients of its inputs and, trained, of its weights."""
    columns, computed = min(step.vocabulary, TILE[1]), 2 if step.half else 4
    held = computed * step.head_rows * columns + 4.0 * step.tokens * step.hidden
    if step.wide and step.half:
        held += 2 * columns * step.hidden
    return held + (4 if step.wide else 6) * step.vocabulary * step.hidden * step.full


def dot(rates: tuple[float, ...], terms: tuple[float, ...]) -> float:
    """Return the sum of terms, each times its rate."""
    return sum(rate * term for rate, term in zip(rates, terms, strict=True))


# -- time


def micro_step(step: DecoderStep, ceilings: Ceilings) -> TimeParts:
    """Return the seconds of a micro-step."""
    passes = 1 + step.again
    layer_ops, moved = OPERATORS[step.full], dot(MOVED, moved_terms(step))
    return TimeParts(
        matmul_s=sum(flops / rate for flops, rate in _matmuls(step, ceilings, passes)),
        attention_s=_attention_s(step, ceilings, passes),
        memory_s=moved / ceilings.bandwidth[-1].bytes_per_s,
        overhead_s=step.layers * layer_ops * (passes + 2) * ceilings.overhead_s_per_operator,
        overlapped=ceilings.kind == "cuda",
    )


def moved_terms(step: DecoderStep) -> tuple[float, ...]:
    """Return the bytes that each kind of operator reads or writes once.

    Of what is normed, made in the MLP, by q, k and v, and put into adapters; of logits; of casts of
    the head for each tile of tokens; of sums of gradients, casts of weights and unpacked weights.
    """
    passes = 2.5 + step.again
    tokens, layers, width = step.tokens, step.layers, step.width
    normed, inner, made, *inputs = (layers * tokens * passes * n for n in saved_terms(step))
    quicker = 0.5 if step.liger else 1.0
    parameters = step.shape.facts.parameters
    cast = step.wide and step.half
    chunks = -(-tokens // step.head_rows) * step.vocabulary * step.hidden
    return (
        quicker * width * normed,
        quicker * width * inner,
        width * made,
        width * sum(inputs),
        (2.0 if step.half else 4.0) * tokens * step.vocabulary,
        float(chunks) if cast else 0.0,
        float(width * step.trained) if step.accumulates else 0.0,
        2.0 * parameters * (passes if not step.full else 1.0) if cast else 0.0,
        2.0 * parameters * passes if step.quantised else 0.0,
    )


def _matmuls(step: DecoderStep, ceilings: Ceilings, passes: float) -> Iterator[tuple[float, float]]:
    """Yield (operations, their rate) of all matmuls of a micro-step."""
    dtype, tokens = "bfloat16" if step.half else "float32", step.tokens

    def product(rows: float, k: int, n: int, times: float) -> tuple[float, float]:
        rate = ceilings.matmul_flops_per_s(dtype, max(round(rows), 1), k, n)
        return 2.0 * rows * k * n * times, rate

    trained = 2 if step.full else 1
    for one in step.shape.linears:
        times = step.layers * one.number
        yield product(tokens, one.inputs, one.outputs, times * (passes + trained))
        if not step.full:
            for k, n in ((one.inputs, step.rank), (step.rank, one.outputs)):
                yield product(tokens, k, n, times * (passes + 2))
    parts = tokens / step.head_rows
    yield product(step.head_rows, step.hidden, step.vocabulary, parts * (2 + trained))


def _attention_s(step: DecoderStep, ceilings: Ceilings, passes: float) -> float:
    dtype, shape = "bfloat16" if step.half else "float32", step.shape
    heads = shape.facts.attention_heads or 1
    flops = 4 * step.tokens * step.length * heads * shape.head_dim * (1.0 if step.masked else 0.5)
    times = {False: passes, True: BACKWARD}
    return step.layers * sum(
        often
        * flops
        / ceilings.attention_flops_per_s(
            dtype, step.length, backward=backward, masked=step.masked, cudnn=step.cudnn
        )
        for backward, often in times.items()
    )


def optimizer_step(step: DecoderStep, ceilings: Ceilings) -> TimeParts:
    """Return the seconds of an optimizer step: weights, gradients and moments are read, most of
    them written, and the gradients clipped before."""
    moved = (6 * step.trained_width + 2 * step.state_bytes) * step.trained
    return TimeParts(
        memory_s=moved / ceilings.bandwidth[-1].bytes_per_s, overlapped=ceilings.kind == "cuda"
    )
