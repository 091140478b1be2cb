"""The memory that a process holds on its device in any case: a bound that only rules out. Pure.

At the first optimizer step the weights, their gradients and the optimizer's states are there at the
same time, whatever the micro-batch and the length of the rows. Activations, logits, copies and the
process itself come on top, so that a candidate whose bound is above the limit cannot fit, and no
trace of it is needed. A candidate whose bound is below the limit may fit or not.
"""

from autotune.estimate.estimate import Estimate
from autotune.estimate.formula.devices import zero_of
from autotune.estimate.records.events import GRADIENTS, OPTIMIZER, STEP, WEIGHTS
from autotune.job.methods import METHODS
from autotune.space.quantization import base_bytes, bits_of
from autotune.space.sharding.sharding import DEEPSPEED, FSDP
from autotune.space.trl_config import Settings

_STATES = {"adamw_torch": None, "adamw_torch_fused": None, "adamw_8bit": 2}
"""Bytes of optimizer state for each trained weight; None: two moments in the weights' type.
Optimizers that are not listed count as nothing."""
LOWER_BOUND = "lower bound"
"""The method of an estimate that is this bound."""


def ruled_out(settings: Settings, limit: int) -> Estimate | None:
    """Return the estimate of a candidate that cannot fit, whatever a trace would show; None: it
    may.

    Args:
        limit: bytes a process may take on the device.
    """
    parts = least_parts(settings)
    total = sum(parts.values())
    if total <= limit:
        return None
    return Estimate(
        peak_allocated_bytes=total,
        peak_reserved_bytes=total,
        peak_memory_bytes=total,
        parts=parts,
        peak_operator="",
        peak_phase=STEP,
        allocator_retries=0,
        method=LOWER_BOUND,
        notes=("not traced: weights, gradients and optimizer states alone are too much",),
        sigma_bytes=0,
        p_oom=1.0,
        fits=False,
        missing_bytes=total - limit,
        at_least=True,
    )


def least_bytes(settings: Settings) -> int:
    """Return bytes of weights, gradients and optimizer states on the device of one process, at
    least."""
    return sum(least_parts(settings).values())


def least_parts(settings: Settings) -> dict[str, int]:
    """Return the bytes of weights, gradients and optimizer states, at least, by part."""
    config, model = {**settings.config, **settings.candidate.values}, settings.facts.model
    width = 4 if config.get("dtype", "float32") == "float32" else 2
    # How many an adapter has is only known roughly.
    trained = model.parameters if settings.job.tuning == "full" else 0
    value_model_weights = model.parameters if _has_full_value_model(settings) else 0
    state = _STATES.get(str(config.get("optim")), 0)
    state = 2 * width if state is None else state
    parts = {
        WEIGHTS: _weights_bytes(settings, config, width)
        + width * value_model_weights
        + settings.teacher_bytes,
        GRADIENTS: width * (trained + value_model_weights),
        OPTIMIZER: state * (trained + value_model_weights),
    }
    sharding = settings.sharding
    if sharding.distributed_type not in (DEEPSPEED, FSDP) or bits_of(config) is not None:
        return parts  # a quantised base is loaded whole, before it is divided
    zero = zero_of(config, sharding, sharding.num_processes, model.hidden_size or 1024)
    factors = zero.factors()
    return {name: round(size * min(factors[name], 1.0)) for name, size in parts.items()}


def _weights_bytes(settings: Settings, config: dict[str, object], width: int) -> int:
    """Return the bytes of the policy's weights."""
    base = base_bytes(settings.facts.model, config)
    return width * settings.facts.model.parameters if base is None else base


def _has_full_value_model(settings: Settings) -> bool:
    """True if PPO trains a value model as large as the policy; it starts as the reward model, which
    is the user's and may be small."""
    job = settings.job
    return METHODS[job.method].value_model and job.reward_model_path in (None, job.model)
