"""A variant of the program: the candidates that run the same kernels, so that one trace serves all.

Pure.

What only changes a number (micro-batch, accumulation, learning rate), the order of the data, or
the allocator does not change the variant.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.job.methods import METHODS
from autotune.space.attention import ATTENTION, flash_of
from autotune.space.knobs import EXPERT_KERNELS, MODEL_KWARGS
from autotune.space.sharding.sharding import DEEPSPEED, FSDP

OUTSIDE_THE_VARIANT = {
    *(
        "learning_rate",
        "num_train_epochs",
        "lr_scheduler_type",
        "seed",
        "max_steps",
    ),
    *("logging_steps", "save_strategy", "save_steps", "eval_strategy", "report_to", "output_dir"),
    *("dataset_name", "dataset_train_split", "dataset_test_split", "dataset_config", "run_name"),
    *("per_device_eval_batch_size", "warmup_ratio", "warmup_steps", "save_total_limit"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "train_sampling_strategy"),
    *("dataloader_num_workers", "model_name_or_path", "dataset_text_field"),
    *("generation_batch_size", "local_rollout_forward_batch_size", "num_ppo_epochs"),
    *("vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_enable_sleep_mode"),
    "vllm_tensor_parallel_size",
}

UNTRACEABLE = {
    # What cannot run on fake tensors of a CPU: the value that is traced in its place, and what
    # that means for the estimate.
    "activation_offloading": (False, "activations are subtracted, but for those of two layers"),
    "torch_compile": (
        False,
        "traced uncompiled; compiled code keeps fewer activations, and is faster than estimated",
    ),
    "zero_stage": (
        False,
        "ZeRO by formula, 8% too low to 22% too high in 12 real CPU runs",
    ),
    "distributed_type": (
        False,
        "FSDP2 by the formula of ZeRO, which was not held against real ranks of it",
    ),
    "offload_optimizer_device": (
        False,
        "what is offloaded is taken from the device by formula, never held against real ranks",
    ),
    **dict.fromkeys(
        ("cp_size", "sp_size"),
        (1, "a part of each row was traced; what processes hold to share rows is by formula"),
    ),
    "use_liger_kernel": (False, "traced without Liger; it needs less and is faster than estimated"),
    EXPERT_KERNELS: (
        None,
        "traced as one product of all experts: which of them a token takes is not known to a trace",
    ),
    ATTENTION: (None, "a kernel of the hub is traced as the FlashAttention that its name tells"),
}
LIGER_MODELS = ("llama", "mistral", "qwen2", "qwen3")
"""Types of models whose Liger kernels are traced: the same three for each."""


AT_MOST = ("torch_compile", "use_liger_kernel")
"""What is traced of these is an upper bound: no estimate says that a candidate cannot fit."""


@dataclass(frozen=True, kw_only=True)
class TracedConfig:
    """The configuration that is traced for a candidate, and the fields replaced in it."""

    config: Mapping[str, Any]
    replaced: tuple[str, ...]

    @property
    def key(self) -> str:
        """The same text for the same variant."""
        return json.dumps(variant_of(self.config), sort_keys=True)


SAME_STATE = ("adamw_torch_fused", "adamw_torch")
"""Optimizers that keep the same state: one is traced, of the others only their own step."""


def engine_is_traced(method: str, distributed_type: str | None) -> bool:
    """True if DeepSpeed or FSDP itself is traced; not where the method generates."""
    return distributed_type in (DEEPSPEED, FSDP) and not METHODS[method].online


def traced_optimizer(config: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the variant's configuration, and the candidate's optimizer where that is another
    one."""
    optim = config.get("optim")
    if optim in SAME_STATE[1:]:
        return {**config, "optim": SAME_STATE[0]}, str(optim)
    return dict(config), None


def optimizer_config(config: Mapping[str, Any], optim: str) -> dict[str, Any]:
    """Return a configuration whose optimizer step is that of `config` with `optim`: the same for
    all variants that train the same weights, so that it is traced once."""
    plain = {name: value for name, value in config.items() if name not in _BEFORE_THE_STEP}
    if plain.get("loss_type") == "chunked_nll":
        plain["loss_type"] = "nll"
    return {**plain, "optim": optim}


_BEFORE_THE_STEP = {
    *("activation_checkpointing", "activation_checkpointing_kwargs", "padding_free", "packing"),
    *("gradient_checkpointing", "gradient_checkpointing_kwargs", "pad_to_multiple_of"),
    *("packing_strategy", "use_cache", "precompute_ref_log_probs", "use_liger_kernel"),
}
"""What shapes the micro-steps, and nothing of the optimizer's part."""


def variant_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a flat configuration that decides the variant."""
    variant = {name: value for name, value in config.items() if name not in OUTSIDE_THE_VARIANT}
    # How far from the reference is only a number; that there is one is not.
    if "beta" not in variant or "teacher_model_name_or_path" in variant:
        return variant
    return {**variant, "beta": bool(variant["beta"])}


def liger_is_traced(method: str, model_type: str, *, fused_head: bool) -> bool:
    """True if Liger's kernels are known where this method puts them into this model. Where TRL has
    no fused head (before 1.15), Liger brings a loss of its own, which is not traced."""
    known = not METHODS[method].online and not METHODS[method].classifier
    return fused_head and known and model_type in LIGER_MODELS


def traced_config(config: Mapping[str, Any], *, liger: bool = False) -> TracedConfig:
    """Return the configuration to trace in place of `config`; `liger`: with Liger's kernels."""
    flash = flash_of(config.get(ATTENTION))
    values: dict[str, Any] = {name: value for name, (value, _) in UNTRACEABLE.items()}
    values[ATTENTION] = config.get(ATTENTION) if flash is None else flash.value
    traced_as_it_is = ("use_liger_kernel",) if liger else ()
    replaced = tuple(
        name
        for name, value in values.items()
        if config.get(name, value) not in (value, None) and name not in traced_as_it_is
    )
    config = {**config, **{name: values[name] for name in replaced}}
    kernels = config.get(MODEL_KWARGS) or {}
    if kernels.get(EXPERT_KERNELS) == "eager":
        config[MODEL_KWARGS] = {n: v for n, v in kernels.items() if n != EXPERT_KERNELS} or None
        replaced = (*replaced, EXPERT_KERNELS)
    return TracedConfig(config=config, replaced=replaced)


def unique(values: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the distinct values, and for each value the index of its equal."""
    places_by_key: dict[str, int] = {}
    distinct: list[dict[str, Any]] = []
    places = []
    for value in values:
        key = json.dumps(value, sort_keys=True)
        if key not in places_by_key:
            places_by_key[key] = len(distinct)
            distinct.append(value)
        places.append(places_by_key[key])
    return distinct, places
