"""Where a field belongs that others write at the top of their files; and whose file it is. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

from autotune.errors import user_error
from autotune.job.yaml_file import dump_flow
from autotune.space.definition import SpaceDefinition

_MEANS = {
    # What others call a field of the job, or how it is written here.
    **dict.fromkeys(("model_name_or_path", "base_model", "model_name"), "model: {}"),
    **dict.fromkeys(("dataset_name", "dataset_path", "train_file"), "dataset: {}"),
    **dict.fromkeys(("max_seq_length", "sequence_len", "cutoff_len"), "max_length: {}"),
    **dict.fromkeys(("batch_size", "train_batch_size"), "global_batch_size: {}"),
    **dict.fromkeys(("num_gpus", "n_gpus", "gpus", "num_processes"), "devices: {{count: {}}}"),
    **dict.fromkeys(("epochs", "num_epochs"), "training: {{num_train_epochs: {}}}"),
    **dict.fromkeys(("lr", "learning_rate"), "training: {{learning_rate: {}}}"),
    # Since transformers 5 a number below 1 is a share of all steps.
    "warmup_ratio": "training: {{warmup_steps: {}}}",
    "micro_batch_size": "fixed: {{per_device_train_batch_size: {}}}",
    "bf16": "precision: bf16",
    "fp16": "precision: fp16",
    "load_in_4bit": "tuning: qlora",
    "use_peft": "tuning: lora",
    "use_lora": "tuning: lora",
    "adapter": "tuning: {}",
}
_RENAMED = {
    ("learning_rate", "kept"): "leave it out",
    ("learning_rate", "scaled"): "write `learning_rate_scaling: by_batch`",
}
"""Fields with a value that had another name before."""
_SEARCHED = {
    "gradient_accumulation_steps": "it follows from `global_batch_size` and the micro-batch",
    "deepspeed": "how devices share the training is searched; "
    "`fixed: {distributed_type: DEEPSPEED, zero_stage: 3}` pins it",
    "fsdp": "how devices share the training is searched; `fixed: {distributed_type: FSDP}` pins it",
    "auto_find_batch_size": "the batch size is searched",
}
_FORMATS = (
    # Whose file it is, and the fields of which it has at least two.
    ("Axolotl", {"base_model", "datasets", "adapter", "sequence_len", "micro_batch_size"}),
    ("LLaMA-Factory", {"stage", "finetuning_type", "template", "cutoff_len", "dataset_dir"}),
    ("torchtune", {"tokenizer", "checkpointer", "recipe_checkpoint", "loss", "optimizer"}),
    (
        "TRL or TrainingArguments",
        {"model_name_or_path", "output_dir", "per_device_train_batch_size", "dataset_name"},
    ),
)


def home_of(
    name: str, value: Any, definition: SpaceDefinition, fields: Collection[str]
) -> str | None:
    """What to write in place of an unknown field of a job; None: nothing is known of it.

    Args:
        definition: the search space of the job.
        fields: the training fields of its method.
    """
    if isinstance(value, str) and (name, value) in _RENAMED:
        return _RENAMED[name, value]
    if value is False and name in _MEANS:
        return "leave it out"
    if name in fields and name == "warmup_ratio":
        return f"write `training: {dump_flow({name: value})}`"
    if name in _SEARCHED:
        return f"leave it out: {_SEARCHED[name]}"
    if name in _MEANS:
        return f"write `{_MEANS[name].format(dump_flow(value))}`"
    knob = definition.knob(name)
    if knob is not None and knob.kind == "speed":
        pinned = dump_flow({name: value})
        return f"leave it out: it is searched; `fixed: {pinned}` pins it"
    if knob is not None:
        return f"write `recipe: {dump_flow({name: [value]})}`"
    if name in fields:
        return f"write `training: {dump_flow({name: value})}`"
    return None


def refuse_foreign(data: Mapping[str, Any], file: str) -> None:
    """Refuse another tool's configuration whole, before each of its fields is.

    Raises:
        UserError: the file names no model and data as a job does, and has fields of such a tool.
    """
    if "model" in data and "dataset" in data:
        return
    for tool, fields in _FORMATS:
        if len(fields & data.keys()) >= 2:
            raise user_error(
                f"a configuration of {tool}, not a job",
                where=file,
                hint="write a job: model, dataset, method, tuning, global_batch_size, max_length "
                "(docs/job.md)",
            )
