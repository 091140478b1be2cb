"""LLaMA-Factory's YAML, and the registry that names the data. Pure."""

import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from autotune.bundle.formats.launched import Formatted, Launched, Renaming, as_yaml, not_said
from autotune.errors import user_error
from autotune.space.foreign.llamafactory import TOOL
from autotune.space.foreign.tool import words
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE

_STAGES = {"sft": "sft", "reward": "rm", "dpo": "dpo", "kto": "kto"}
_KERNELS = {
    "flash_attention_2": "fa2",
    "flash_attention_3": "fa3",
    "eager": "disabled",
    "sdpa": "sdpa",
}
_NAME = "data"
_KEPT = words(
    "model_name_or_path output_dir per_device_train_batch_size per_device_eval_batch_size "
    "gradient_accumulation_steps learning_rate num_train_epochs max_steps lr_scheduler_type "
    "lr_scheduler_kwargs warmup_steps weight_decay max_grad_norm optim adam_beta1 adam_beta2 "
    "adam_epsilon seed logging_steps save_steps save_strategy save_total_limit report_to run_name "
    "bf16 fp16 lora_alpha lora_dropout use_rslora use_dora packing dataloader_num_workers "
    "torch_empty_cache_steps torch_compile neftune_noise_alpha tf32 ddp_timeout"
)
_HANDLED = words(
    "lora_modules_to_save attn_implementation lora_target_modules activation_checkpointing "
    "gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing_kwargs use_peft "
    "load_in_4bit load_in_8bit dataset_name dataset_config dataset_train_split dtype loss_type "
    "bnb_4bit_quant_type use_bnb_nested_quant lora_task_type"
)


def formatted(bundle: Launched) -> Formatted:
    """Return the bundle as LLaMA-Factory reads it.

    Raises:
        UserError: it has no such training.
    """
    stage = _STAGES.get(bundle.method.name)
    if stage is None or bundle.uses_fsdp:
        what = "FSDP" if bundle.uses_fsdp else f"`method: {bundle.method.name}`"
        raise user_error(f"LLaMA-Factory's own file cannot express {what}", where="--format")
    config = bundle.config
    renaming = Renaming.of(config, TOOL.rules, _KEPT, _HANDLED)
    checkpoints = config.get("activation_checkpointing", config.get("gradient_checkpointing"))
    theirs: dict[str, Any] = {
        **renaming.values,
        "stage": stage,
        "do_train": True,
        "finetuning_type": "full" if bundle.tuning == "full" else "lora",
        "dataset": _NAME,
        "dataset_dir": ".",
        "flash_attn": _KERNELS.get(str(config.get("attn_implementation")), "auto"),
        "disable_gradient_checkpointing": checkpoints is False,
    }
    if bundle.tuning != "full":
        modules = config.get("lora_target_modules", "all-linear")
        every = modules in ("all-linear", ["all-linear"])
        theirs["lora_target"] = "all" if every else ",".join(modules)
        theirs["additional_target"] = config.get("lora_modules_to_save")
    if bundle.tuning == "qlora":
        theirs["quantization_bit"] = 8 if config.get("load_in_8bit") else 4
    lost = {**renaming.lost, **_lost(bundle)}
    if bundle.method.name == "dpo":
        losses = config.get("loss_type") or ["sigmoid"]
        theirs["pref_loss"] = losses if isinstance(losses, str) else losses[0]
    files = {}
    if bundle.deepspeed is not None:
        theirs["deepspeed"] = DEEPSPEED_FILE
        files[DEEPSPEED_FILE] = bundle.deepspeed
    starts = f"FORCE_TORCHRUN=1 NPROC_PER_NODE={bundle.each} " if bundle.processes > 1 else ""
    if bundle.machines > 1:
        starts = f"NNODES={bundle.machines} {starts}"
        lost["machines"] = (
            "start it on each, with NODE_RANK=0 on the first and MASTER_ADDR=HOST, its address"
        )
    head = f"# {starts}llamafactory-cli train llamafactory.yaml, in this folder"
    return Formatted(
        files={
            "llamafactory.yaml": as_yaml(theirs, head),
            "dataset_info.json": _registry(config),
            **files,
        },
        lost=lost,
    )


def _registry(config: Mapping[str, Any]) -> str:
    """Return the registry of the data, without column names: the user has to add them."""
    place = str(config.get("dataset_name", "FILL_IN"))
    local = place.startswith(("/", ".", "~")) or PurePath(place).suffix in (".json", ".jsonl")
    entry: dict[str, Any] = {"file_name" if local else "hf_hub_url": place}
    for theirs, ours in (("subset", "dataset_config"), ("split", "dataset_train_split")):
        if config.get(ours):
            entry[theirs] = config[ours]
    return json.dumps({_NAME: entry}, indent=2) + "\n"


def _lost(bundle: Launched) -> dict[str, str]:
    lost = {"dataset": "say the columns of the rows in dataset_info.json"}
    if bundle.config.get("loss_type") == "chunked_nll":
        lost["loss_type"] = "LLaMA-Factory holds all logits: more memory than was measured"
    if bundle.tuning != "full" and bundle.config.get("dtype") == "float32":
        lost["dtype"] = "LLaMA-Factory keeps a frozen base in 16 bits"
    return {**lost, **not_said(bundle)}
