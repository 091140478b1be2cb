"""Kinds of values that a field of a launch file may have, and which have them. Pure.

Sources: accelerate's `commands/config/config_args.py`, DeepSpeed's `runtime/config.py`,
`runtime/zero/config.py`, `runtime/zero/offload_config.py`, `runtime/precision_config.py`.
"""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.bundle.check.deepspeed_fields import AIO, BF16, FP16, names
from autotune.bundle.check.files import number


@dataclass(frozen=True)
class Kind:
    """What a field holds: in words, and whether a value does."""

    words: str
    fits: Callable[[Any], bool]


_TRUTHS = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0", "on", "off")


def _is_switch(value: Any) -> bool:
    return value in (0, 1) if not isinstance(value, str) else value.lower() in _TRUTHS


SWITCH = Kind("true or false", lambda v: isinstance(v, bool | int | float | str) and _is_switch(v))
TEXT = Kind("a text", lambda value: isinstance(value, str))
SECTION = Kind("a section with fields", lambda value: isinstance(value, Mapping))
ITEMS = Kind("a list", lambda value: isinstance(value, list | tuple | str))
NOTHING = Kind("null", lambda value: value is None)


def whole(least: float | None = None) -> Kind:
    """A whole number, also one that is a text or has a fraction of zero."""
    return Kind(
        "a whole number" if least is None else f"a whole number from {least:g} on",
        lambda v: _within(v, least) and float(v).is_integer(),
    )


def real(least: float | None = None, most: float | None = None) -> Kind:
    """A number."""
    words = "a number" if least is None else f"a number from {least:g} on"
    if most is not None:
        words = f"a number from {least:g} to {most:g}"
    return Kind(words, lambda v: _within(v, least, most))


def _within(value: Any, least: float | None, most: float | None = None) -> bool:
    found = number(value)
    if found is None:
        return False
    return (least is None or found >= least) and (most is None or found <= most)


def one_of(*values: str) -> Kind:
    """One of some texts."""
    told = ", ".join(f"`{value}`" for value in values)
    return Kind(f"one of {told}", lambda value: isinstance(value, str) and value in values)


def either(*kinds: Kind) -> Kind:
    """Any of some kinds."""
    return Kind(" or ".join(kind.words for kind in kinds), lambda v: any(k.fits(v) for k in kinds))


def of_type(text: str, least: float | None = None) -> Kind | None:
    """The kind that a type of Python's is; None: any value may do."""
    found = [_of_part(part, least) for part in _parts(ast.parse(text, mode="eval").body)]
    kinds = [kind for kind in found if kind is not None]
    return either(*kinds) if kinds and len(kinds) == len(found) else None


def _parts(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [*_parts(node.left), *_parts(node.right)]
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Optional":
        return [*_parts(node.slice), ast.Constant(None)]
    return [node]


def _of_part(node: ast.expr, least: float | None) -> Kind | None:
    name = ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
    kinds = {"int": whole(least), "float": real(least), "bool": SWITCH, "str": TEXT}
    kinds |= {"list": ITEMS, "dict": either(SECTION, TEXT), "None": NOTHING}
    return TEXT if name.endswith(("Strategy", "Type", "Names")) else kinds.get(name)


NAMES_OF_TYPES = (
    *("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA"),
    *("MULTI_XPU", "MULTI_HPU", "MULTI_NEURON", "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM"),
)
"""Of `distributed_type` (`accelerate/utils/dataclasses.py`)."""
_MAYBE_SECTION = either(SECTION, NOTHING)
_MAYBE_TEXT = either(TEXT, NOTHING)
ACCELERATE: Mapping[str, Kind] = {
    "compute_environment": one_of("LOCAL_MACHINE", "AMAZON_SAGEMAKER"),
    "distributed_type": one_of(*NAMES_OF_TYPES),
    "num_processes": whole(1),
    "num_machines": whole(1),
    "machine_rank": whole(0),
    "gpu_ids": _MAYBE_TEXT,
    "main_process_ip": _MAYBE_TEXT,
    "main_process_port": either(whole(0), NOTHING),
    "mixed_precision": either(one_of("no", "fp16", "bf16", "fp8"), NOTHING),
    **dict.fromkeys(("use_cpu", "debug", "same_network", "enable_cpu_affinity"), SWITCH),
    **dict.fromkeys(("downcast_bf16", "tpu_use_cluster", "tpu_use_sudo"), SWITCH),
    **dict.fromkeys(("rdzv_backend", "main_training_function"), TEXT),
    **dict.fromkeys(("tpu_env", "tpu_vm", "commands"), either(ITEMS, NOTHING)),
    **dict.fromkeys(("tpu_name", "tpu_zone", "command_file"), _MAYBE_TEXT),
    **dict.fromkeys(("deepspeed_config", "fsdp_config", "fp8_config"), _MAYBE_SECTION),
    **dict.fromkeys(("parallelism_config", "megatron_lm_config"), _MAYBE_SECTION),
    **dict.fromkeys(("mpirun_config", "dynamo_config"), _MAYBE_SECTION),
    "deepspeed_config.deepspeed_config_file": _MAYBE_TEXT,
    "deepspeed_config.deepspeed_multinode_launcher": _MAYBE_TEXT,
    "deepspeed_config.zero3_init_flag": either(SWITCH, NOTHING),
    "deepspeed_config.zero_stage": either(TEXT, whole()),
    "deepspeed_config.offload_optimizer_device": _MAYBE_TEXT,
    "deepspeed_config.offload_param_device": _MAYBE_TEXT,
    "fsdp_config.fsdp_version": whole(1),
    "fsdp_config.fsdp_reshard_after_forward": either(SWITCH, TEXT),
    **{
        f"fsdp_config.fsdp_{name}": SWITCH
        for name in (
            *("offload_params", "use_orig_params", "cpu_ram_efficient_loading"),
            *("sync_module_states", "forward_prefetch", "activation_checkpointing"),
        )
    },
    **{
        f"fsdp_config.fsdp_{name}": _MAYBE_TEXT
        for name in (
            *("auto_wrap_policy", "state_dict_type", "backward_prefetch"),
            "transformer_layer_cls_to_wrap",
        )
    },
    "fsdp_config.fsdp_sharding_strategy": either(TEXT, whole(1), NOTHING),
}
"""Fields of accelerate's file, with dots where one stands in a section."""
_ZERO = "zero_optimization"
_ZERO_SIZES = names(
    """
    allgather_bucket_size sub_group_size stage3_prefetch_bucket_size prefetch_bucket_size
    stage3_param_persistence_threshold param_persistence_threshold
    stage3_model_persistence_threshold model_persistence_threshold stage3_max_live_parameters
    max_live_parameters stage3_max_reuse_distance max_reuse_distance zero_hpz_partition_size
    """
)
_ZERO_SWITCHES = names(
    """
    contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions
    compute_grad_norm load_from_fp32_weights elastic_checkpoint round_robin_gradients
    stage3_gather_16bit_weights_on_model_save gather_16bit_weights_on_model_save
    stage3_use_all_reduce_for_fetch_params use_all_reduce_for_fetch_params
    stage3_allgather_sequential allgather_sequential stage3_gather_fp16_weights_on_model_save
    ignore_unused_parameters legacy_stage1 parameter_alignment zero_quantized_weights
    zero_quantized_nontrainable_weights zero_quantized_gradients memory_efficient_linear
    pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings
    enable_sanity_checks save_muon_momentum_buffer_in_memory
    """
)
_COUNTS = ("loss_scale_window", "hysteresis", "initial_scale_power", "min_loss_scale")
_AIO_COUNTS = ("block_size", "queue_depth", "intra_op_parallelism", "thread_count")
_TOP_SECTIONS = names(
    """
    zero_optimization fp16 bf16 bfloat16 torch_autocast optimizer scheduler optimizer.params
    scheduler.params activation_checkpointing comms_logger tensorboard wandb comet csv_monitor
    flops_profiler data_types checkpoint hybrid_engine data_efficiency aio
    """
)
_TOP_SWITCHES = names(
    """
    dump_state disable_python_gc disable_allgather prescale_gradients zero_allow_untested_optimizer
    zero_force_ds_cpu_optimizer wall_clock_breakdown memory_breakdown dataloader_drop_last
    use_data_before_expert_parallelism
    """
)


def _offloaded(part: str, **kinds: Kind) -> dict[str, Kind]:
    where = f"{_ZERO}.offload_{part}"
    own: dict[str, Kind] = {
        "device": TEXT,
        "nvme_path": _MAYBE_TEXT,
        "buffer_count": whole(0),
        "pin_memory": SWITCH,
    }
    inside = {f"{where}.{name}": kind for name, kind in {**own, **kinds}.items()}
    return {where: _MAYBE_SECTION, **inside}


DEEPSPEED: Mapping[str, Kind] = {
    **dict.fromkeys(_TOP_SECTIONS, SECTION),
    **dict.fromkeys(_TOP_SWITCHES, SWITCH),
    "train_batch_size": whole(1),
    "train_micro_batch_size_per_gpu": whole(1),
    "gradient_accumulation_steps": whole(1),
    "gradient_clipping": real(0),
    "gradient_predivide_factor": real(),
    "steps_per_print": either(whole(1), NOTHING),
    "optimizer.type": TEXT,
    "scheduler.type": TEXT,
    f"{_ZERO}.stage": either(TEXT, real(), SWITCH),
    f"{_ZERO}.reduce_bucket_size": whole(1),
    f"{_ZERO}.stage3_module_granularity_threshold": whole(),
    f"{_ZERO}.module_granularity_threshold": whole(),
    f"{_ZERO}.overlap_comm": either(SWITCH, NOTHING),
    f"{_ZERO}.zenflow": _MAYBE_SECTION,
    f"{_ZERO}.leaf_module": _MAYBE_SECTION,
    **{f"{_ZERO}.{name}": whole(0) for name in _ZERO_SIZES},
    **{f"{_ZERO}.{name}": SWITCH for name in _ZERO_SWITCHES},
    **{
        f"{_ZERO}.{name}": either(SWITCH, NOTHING)
        for name in ("cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory")
    },
    **_offloaded("param", buffer_size=whole(0), max_in_cpu=whole(0)),
    **_offloaded(
        "optimizer",
        **dict.fromkeys(("pipeline_read", "pipeline_write", "fast_init", "super_offload"), SWITCH),
        **dict.fromkeys(("ratio", "cpuadam_cores_perc"), real(0, 1)),
    ),
    **{f"bf16.{name}": SWITCH for name in BF16},
    **{f"fp16.{name}": SWITCH for name in FP16 - {*_COUNTS, "loss_scale"}},
    **{f"fp16.{name}": whole() for name in _COUNTS},
    "fp16.loss_scale": real(),
    **{f"aio.{name}": SWITCH for name in AIO - {*_AIO_COUNTS}},
    **{f"aio.{name}": whole() for name in _AIO_COUNTS},
}
"""Fields of DeepSpeed's file, in the same form; `auto` is none of their kinds."""
LEAST: Mapping[str, float] = {
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), 1),
    **dict.fromkeys(("gradient_accumulation_steps", "generation_batch_size", "lora_r"), 1),
    **dict.fromkeys(("steps_per_generation", "num_iterations", "max_completion_length"), 1),
    **dict.fromkeys(("num_mini_batches", "num_ppo_epochs", "response_length"), 1),
    **dict.fromkeys(("local_rollout_forward_batch_size",), 1),
    **dict.fromkeys(("learning_rate", "weight_decay", "adam_epsilon"), 0),
    **dict.fromkeys(("dataloader_num_workers", "seed"), 0),
    "num_generations": 2,
}
"""The least that fields of the trainer may be (TRL, PEFT, torch)."""
NEVER_NULL = ("num_generations",)
"""Fields of the trainer that cannot be null, though their types say so (TRL compares them)."""
