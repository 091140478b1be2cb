"""Values that do not fit their fields. Pure.

What a class of the owner declares is read from its source (`facts/launch_fields.py`). Here is what
no class declares: DeepSpeed's top level (`runtime/config.py`), sections of accelerate's file, and
bounds. The names are those of DeepSpeed 0.19 (`deepspeed/runtime/config.py` and what it calls,
`runtime/swap_tensor/constants.py`); newer ones may know more.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.bundle.check.files import AUTO, LaunchFiles, number, shown, value_at
from autotune.errors import Problem
from autotune.facts.launch_fields import DeclaredField, LaunchFields
from autotune.facts.stack import canonical_name


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


TOP = names(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps
    managed_gradient_accumulation gradient_clipping steps_per_print dump_state disable_python_gc
    disable_allgather communication_data_type seq_parallel_communication_data_type
    prescale_gradients gradient_predivide_factor gradient_allreduce_op zero_optimization
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer fp16 bf16 bfloat16 torch_autocast
    optimizer scheduler activation_checkpointing comms_logger tensorboard wandb comet csv_monitor
    flops_profiler wall_clock_breakdown memory_breakdown autotuning data_types checkpoint
    use_data_before_expert_parallelism hybrid_engine pipeline data_efficiency aio
    dataloader_drop_last log_level datastates_checkpointing datastates_ckpt weight_quantization
    compile timers tensor_parallel sequence_parallel_size expert_parallel vocabulary_size inference
    """
)
AIO = names(
    """
    block_size queue_depth intra_op_parallelism thread_count single_submit overlap_events use_gds
    """
)
SECTIONS = {"": TOP, "aio": AIO}
"""Where a mapping stands in the file, and what it may hold; DeepSpeed's classes declare the other
sections (`facts/launch_fields.py`)."""
FILLED = names(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping
    fp16.enabled bf16.enabled
    zero_optimization.stage zero_optimization.reduce_bucket_size
    zero_optimization.stage3_prefetch_bucket_size
    zero_optimization.stage3_param_persistence_threshold
    zero_optimization.stage3_gather_16bit_weights_on_model_save
    zero_optimization.offload_optimizer.device zero_optimization.offload_optimizer.nvme_path
    zero_optimization.offload_param.device zero_optimization.offload_param.nvme_path
    optimizer.params.lr optimizer.params.betas optimizer.params.eps optimizer.params.weight_decay
    scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr
    scheduler.params.warmup_num_steps scheduler.params.total_num_steps
    """
)
"""Where `auto` is filled in, by transformers (`integrations/deepspeed.py`) or by accelerate
(`utils/dataclasses.py`, `DeepSpeedPlugin`)."""
DEEPSPEEDS_OWN_AUTO = frozenset(
    ("pipeline.stages", "data_types.keep_in_fp32_modules", "optimizer.params.torch_adam")
)
"""Fields where `auto` is DeepSpeed's own word."""


@dataclass(frozen=True)
class Kind:
    """A kind of value: its name in words, and a test for it."""

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
    """Return the kind of whole numbers, also as text or with a fraction of zero."""
    return Kind(
        "a whole number" if least is None else f"a whole number from {least:g} on",
        lambda v: _within(v, least) and float(v).is_integer(),
    )


def real(least: float | None = None, most: float | None = None) -> Kind:
    """Return the kind of numbers within bounds."""
    words = "a number" if least is None else f"a number from {least:g} on"
    if most is not None:
        words = f"a number from {least:g} to {most:g}"
    return Kind(words, lambda v: _within(v, least, most))


def _within(value: Any, least: float | None, most: float | None = None) -> bool:
    given = number(value)
    if given is None:
        return False
    return (least is None or given >= least) and (most is None or given <= most)


def one_of(*values: str) -> Kind:
    """Return the kind of some texts."""
    choices = ", ".join(f"`{value}`" for value in values)
    return Kind(f"one of {choices}", lambda value: isinstance(value, str) and value in values)


def either(*kinds: Kind) -> Kind:
    """Return the union of some kinds."""
    return Kind(" or ".join(kind.words for kind in kinds), lambda v: any(k.fits(v) for k in kinds))


def of_type(text: str, least: float | None = None, most: float | None = None) -> Kind | None:
    """Return the kind of a trainer's field by its type; None: any value may do."""
    return _of_parts(text, {**_kinds(least, most), "dict": either(SECTION, TEXT)})


def of_declared(field: DeclaredField) -> Kind | None:
    """Return the kind of a field of accelerate or DeepSpeed; None: any value may do."""
    return _of_parts(field.type, {**_kinds(field.least, field.most), "dict": SECTION})


def _kinds(least: float | None, most: float | None) -> dict[str, Kind]:
    kinds = {"int": whole(least), "float": real(least, most), "bool": SWITCH, "str": TEXT}
    return {**kinds, "Path": TEXT, "OffloadDeviceEnum": TEXT, "list": ITEMS, "None": NOTHING}


def _of_parts(text: str, kinds: Mapping[str, Kind]) -> Kind | None:
    parts = _parts(ast.parse(text, mode="eval").body)
    kinds_of_parts = [_of_part(part, kinds) for part in parts]
    known = [kind for kind in kinds_of_parts if kind is not None]
    return either(*known) if known and len(known) == len(kinds_of_parts) else None


def _parts(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [*_parts(node.left), *_parts(node.right)]
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Optional":
        return [*_parts(node.slice), ast.Constant(None)]
    return [node]


def _of_part(node: ast.expr, kinds: Mapping[str, Kind]) -> Kind | None:
    name = ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
    if name.endswith("Config") and kinds["dict"] is SECTION:
        return either(SECTION, NOTHING)
    return TEXT if name.endswith(("Strategy", "Type", "Names")) else kinds.get(name)


_MAYBE_SECTION = either(SECTION, NOTHING)
_MAYBE_TEXT = either(TEXT, NOTHING)
OF_ACCELERATE: Mapping[str, Kind] = {
    "compute_environment": one_of("LOCAL_MACHINE", "AMAZON_SAGEMAKER"),
    **dict.fromkeys(("num_processes", "num_machines"), whole(1)),
    "machine_rank": whole(0),
    "main_process_port": either(whole(0), NOTHING),
    "mixed_precision": either(one_of("no", "fp16", "bf16", "fp8"), NOTHING),
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
"""Fields that accelerate's classes do not declare, with dots where a field is in a section."""


def accelerate_kinds(fields: LaunchFields) -> dict[str, Kind]:
    """Return the kind of each field of accelerate's file, by its path; none where nothing is
    declared."""
    if not fields.accelerate:
        return {}
    declared = {name: of_declared(field) for name, field in fields.accelerate.items()}
    kinds = {name: kind for name, kind in declared.items() if kind is not None}
    return {**kinds, "distributed_type": one_of(*fields.distributed_types), **OF_ACCELERATE}


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


OF_DEEPSPEED: Mapping[str, Kind] = {
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
    "zero_optimization.stage": either(TEXT, real(), SWITCH),
    "fp16.loss_scale": real(),
    **{f"aio.{name}": SWITCH for name in AIO - {*_AIO_COUNTS}},
    **{f"aio.{name}": whole() for name in _AIO_COUNTS},
}
"""Fields that DeepSpeed's classes do not declare, in the same form; `auto` is allowed besides."""


def deepspeed_kinds(fields: LaunchFields) -> dict[str, Kind]:
    """Return the kind of each field of DeepSpeed's file, by its path; none where nothing is
    declared."""
    if not fields.deepspeed:
        return {}
    declared = {
        f"{where}.{name}": of_declared(field)
        for where, section in fields.deepspeed.items()
        for name, field in section.items()
    }
    return {**{n: kind for n, kind in declared.items() if kind is not None}, **OF_DEEPSPEED}


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
"""Lower bounds of the trainer's fields (TRL, PEFT, torch)."""
NEVER_NULL = ("num_generations",)
"""Fields of the trainer that cannot be null, though their types say so (TRL compares them)."""


def of_accelerate(files: LaunchFiles) -> Iterator[Problem]:
    """Yield values of accelerate's file that do not fit their fields."""
    kinds = accelerate_kinds(files.fields)
    for path, value in _wrong(files.accelerate, kinds):
        if path != "mixed_precision" or value is not False:  # `precision` says what YAML made of it
            yield files.at_accelerate(path, *_what(value, kinds[path]))


def of_deepspeed(files: LaunchFiles) -> Iterator[Problem]:
    """Yield values of DeepSpeed's file that do not fit their fields."""
    kinds = deepspeed_kinds(files.fields)
    for path, value in _wrong(files.deepspeed or {}, kinds):
        if value != AUTO:
            yield files.at_deepspeed(path, *_what(value, kinds[path]))


def of_trainer(files: LaunchFiles) -> Iterator[Problem]:
    """Yield values of the trainer's file that do not fit the types in its source."""
    for written, value in files.trainer.items():
        name, text = canonical_name(str(written)), files.types.get(str(written))
        if text is None:
            continue
        if name in NEVER_NULL:
            text = text.replace(" | None", "")
        kind = of_type(text, LEAST.get(name))
        if kind is not None and not kind.fits(value):
            yield files.at_trainer(name, *_what(value, kind))


def one_precision(files: LaunchFiles) -> Iterator[Problem]:
    """Yield a second precision, which transformers refuses."""
    if files.trainer.get("bf16") is True and files.trainer.get("fp16") is True:
        yield files.at_trainer("fp16", "is `true`, and so is bf16: it is refused", "keep one")


def _wrong(file: Mapping[str, Any], kinds: Mapping[str, Kind]) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each that does not fit."""
    for path, kind in kinds.items():
        where, _, last = path.rpartition(".")
        inside = value_at(file, where) if where else file
        if isinstance(inside, Mapping) and last in inside and not kind.fits(inside[last]):
            yield path, inside[last]


def _what(value: Any, kind: Kind) -> tuple[str, str]:
    """Return what is wrong, and what to do."""
    given = "`null`" if value is None else shown(value)
    if value is False and kind.fits("no"):
        return f"is {given}: YAML reads an unquoted `no` as false", "write 'no', quoted"
    return f"is {given}, but has to be {kind.words}", f"write {kind.words}, or take it out"


CHECKS = (of_accelerate, of_deepspeed, of_trainer, one_precision)
