"""The sizes of ZeRO's buckets: in which pieces it exchanges gradients and weights. Pure.

All are elements, not bytes. The first of each is what transformers fills in where a file says
`auto` (`transformers/integrations/deepspeed.py`, `trainer_config_finalize`): with `h` for the
hidden size h^2, 0.9 h^2 and 10 h. A weight that is larger than its bucket is exchanged by itself.
The larger ones: 4 h^2 is one matrix of an MLP that is four times as wide as the model, 12 h^2 all
of a layer (Kaplan et al., "Scaling Laws for Neural Language Models", arXiv:2001.08361, section
2.1); 100 h keeps a matrix of LoRA at the hidden size whole up to a rank of 100, 10 h up to 10 only.
"""

from autotune.space.sharding.sharding import BUCKET_SIZE, PERSISTENCE, PREFETCHED

WITHOUT_HIDDEN_SIZE = {BUCKET_SIZE: 500_000_000, PREFETCHED: 50_000_000, PERSISTENCE: 100_000}
"""DeepSpeed's defaults (`deepspeed/runtime/zero/config.py`)."""


def as_transformers(knob: str, hidden_size: int | None) -> int:
    """Return the elements that transformers fills in; where a model has no hidden size,
    DeepSpeed's."""
    if not hidden_size:
        return WITHOUT_HIDDEN_SIZE[knob]
    square = hidden_size * hidden_size
    return {BUCKET_SIZE: square, PREFETCHED: int(0.9 * square), PERSISTENCE: 10 * hidden_size}[knob]


def and_larger(knob: str, hidden_size: int | None) -> list[int]:
    """Return the sizes that are worth a try, in elements: that of transformers, and larger ones."""
    first = as_transformers(knob, hidden_size)
    if not hidden_size:
        return [first]
    if knob == PERSISTENCE:
        return [first, 100 * hidden_size]
    return [first, 4 * hidden_size**2, 12 * hidden_size**2]
