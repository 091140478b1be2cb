"""What offloading keeps in the host's memory for one process, by formula. Pure.

Of what a process owns (its part of the weights that are trained) DeepSpeed keeps on the host, where
the optimizer is offloaded: a float32 copy, its gradient in float32, two moments in float32, and a
buffer in the type it computes in (stages 1 and 2: of the new weights, on their way back; stage 3:
of the gradients); in stages 1 and 2 also one gradient as large as the largest weight, and in stage
2 the gradients that are added up over micro-steps. Where weights are offloaded: its part of them.

Source: DeepSpeed 0.19.8, `runtime/zero/stage_1_and_2.py` (`cpu_offload`) and `stage3.py`
(`offload_optimizer`, `offload_param`). Stage 3 is held against a trace of the engine
(`tests/cpu/test_sharded_estimates.py`: within 3%). Known error: in stage 2 a weight that is cut
between two ranks keeps the whole of its gradient (`tests/cpu/test_public_tables.py`: 5% too low for
a tiny model on 8 ranks).

On GPUs these buffers, but for the moments, are pinned (`space/sharding/deepspeed.py`), and torch's
allocator of pinned memory rounds each up to a power of two (`ATen/core/CachingHostAllocator.h`).
Counted are the large ones, as if all that is trained were one group; weights are pinned one by one,
which is not counted.
"""

from dataclasses import dataclass

from autotune.space.sharding.deepspeed import SUB_GROUP
from autotune.space.sharding.sharding import Sharding

WIDE = 4
MOMENTS = 2


@dataclass(frozen=True, kw_only=True)
class OffloadedTraining:
    """A training, as far as offloading goes.

    Attributes:
        parameters, trained: how many weights there are, and how many have gradients.
        width: bytes of a weight or gradient in the type that is computed in.
        largest: elements of the largest weight that is trained.
        accumulates: whether an optimizer step has several micro-steps.
    """

    parameters: float
    trained: float
    width: int
    largest: float
    accumulates: bool


def offloaded_bytes(sharding: Sharding, training: OffloadedTraining) -> int:
    """Return what one of n processes keeps on the host, with T of P weights trained, of w bytes
    each.

    optimizer   (8 + 8 + w) T / n: moments, copy and gradient in float32, the buffer
                + w x largest in stages 1 and 2, + w T / n in stage 2 with accumulation
    weights     w P / n
    """
    total = 0.0
    if sharding.offload_optimizer_device == "cpu":
        total += MOMENTS * WIDE * training.trained / sharding.num_processes
        total += sum(_flat(sharding, training)) + _small(sharding, training)
    if sharding.offload_param_device == "cpu":
        total += training.width * training.parameters / sharding.num_processes
    return round(total)


def pinned_excess_bytes(sharding: Sharding, training: OffloadedTraining) -> int:
    """Return what rounding adds to the large pinned buffers of one process."""
    if sharding.offload_optimizer_device != "cpu":
        return 0
    sizes = [round(size) for size in _flat(sharding, training)]
    return sum(_power_of_two(size) - size for size in sizes)


def _flat(sharding: Sharding, training: OffloadedTraining) -> list[float]:
    """Return the bytes of each large buffer: the copy, its gradient, and one in the type computed
    in."""
    share = training.trained / sharding.num_processes
    pieces = [share]
    if sharding.zero_stage == 3 and share > SUB_GROUP:
        full_groups, remainder = divmod(share, SUB_GROUP)
        pieces = [float(SUB_GROUP)] * int(full_groups) + ([remainder] if remainder else [])
    # In stage 3 the gradients in the type computed in are one buffer for all sub-groups.
    return [*[WIDE * piece for piece in pieces for _ in range(2)], training.width * share]


def _small(sharding: Sharding, training: OffloadedTraining) -> float:
    """Return the bytes of gradients on their way in stages 1 and 2; those added up are pinned one
    by one."""
    if sharding.zero_stage == 3:
        return 0.0
    added_up = sharding.zero_stage == 2 and training.accumulates
    added_gradients = training.trained / sharding.num_processes if added_up else 0.0
    return training.width * (training.largest + added_gradients)


def _power_of_two(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()
