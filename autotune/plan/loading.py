"""The models of a candidate, as its processes load them. Pure."""

from autotune.estimate.formula.loading import Loaded
from autotune.job.methods import METHODS
from autotune.plan.exchange import is_wide, trained_parameters
from autotune.space.quantization import base_bytes, bits_of
from autotune.space.sharding.sharding import FSDP
from autotune.space.trl_config import Settings, has_reference


def loaded_models(settings: Settings) -> Loaded:
    """Return the models of a candidate as they are loaded."""
    job, config, model = settings.job, settings.config, settings.facts.model
    width, hidden = 4 if is_wide(config) else 2, model.hidden_size or 0
    dtype = str(config.get("dtype", "float32"))
    base = base_bytes(model, config)
    mixed = bool(config.get("bf16") or config.get("fp16")) and base is None
    upcast = mixed and width == 2 and settings.sharding.distributed_type == FSDP
    return Loaded(
        parameters=model.parameters,
        models=1 + has_reference(job, config) + 2 * METHODS[job.method].value_model,
        width=width,
        converted=dtype not in (model.dtype, "auto"),  # where nothing says it, too
        held_bytes=width * model.parameters if base is None else base,
        largest=model.largest_weight or 0,
        embedding=hidden * (model.vocab_size or 0),
        bits=bits_of(config),
        fused=model.active_parameters is not None,
        unpacked=model.dequantized_from is not None,
        others=settings.teacher_bytes,
        upcast=trained_parameters(job, settings.facts, config) if upcast else 0,
    )
