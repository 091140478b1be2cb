"""Axolotl's YAML. Pure."""

from pathlib import PurePath
from typing import Any

from autotune.bundle.formats.launched import Formatted, Launched, Renaming, as_yaml, not_said
from autotune.errors import user_error
from autotune.space.foreign.axolotl_fields import RULES
from autotune.space.foreign.tool import words
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE

_METHODS = {"sft": None, "dpo": "dpo", "kto": "kto"}
_KEPT = words(
    "output_dir gradient_accumulation_steps learning_rate max_steps lr_scheduler_kwargs "
    "warmup_steps weight_decay max_grad_norm adam_beta1 adam_beta2 adam_epsilon seed logging_steps "
    "save_steps save_strategy save_total_limit bf16 fp16 tf32 lora_r lora_alpha lora_dropout "
    "lora_modules_to_save load_in_4bit load_in_8bit dataloader_num_workers torch_compile "
    "neftune_noise_alpha ddp_timeout activation_offloading torch_empty_cache_steps "
    "precompute_ref_log_probs dataset_num_proc"
)
_HANDLED = words(
    "model_name_or_path attn_implementation lora_target_modules activation_checkpointing "
    "gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing_kwargs use_peft "
    "dataset_name dataset_config dataset_train_split dtype loss_type report_to use_liger_kernel "
    "bnb_4bit_quant_type use_bnb_nested_quant lora_task_type"
)
_WHOLE = "axolotl.integrations.liger.LigerPlugin"


def formatted(bundle: Launched) -> Formatted:
    """Return the bundle as Axolotl reads it.

    Raises:
        UserError: it has no such training.
    """
    name = bundle.method.name
    if name not in _METHODS or bundle.uses_fsdp:
        what = "FSDP" if bundle.uses_fsdp else f"`method: {name}`"
        raise user_error(f"autotune cannot write Axolotl's file for {what} yet", where="--format")
    config = bundle.config
    renaming = Renaming.of(config, RULES, _KEPT, _HANDLED)
    theirs: dict[str, Any] = {"base_model": config.get("model_name_or_path"), **renaming.values}
    theirs["datasets"] = [_rows(bundle)]
    theirs["val_set_size"] = 0
    theirs["attn_implementation"] = config.get("attn_implementation")
    checkpoints = config.get("activation_checkpointing", config.get("gradient_checkpointing"))
    theirs["gradient_checkpointing"] = checkpoints is not False
    if _METHODS[name]:
        theirs["rl"] = _METHODS[name]
    if name == "kto":
        theirs["remove_unused_columns"] = False  # else Axolotl refuses the file
    if bundle.tuning != "full":
        theirs["adapter"] = "qlora" if config.get("load_in_4bit") else "lora"
        modules = config.get("lora_target_modules", "all-linear")
        every = modules in ("all-linear", ["all-linear"])
        theirs |= {"lora_target_linear": True} if every else {"lora_target_modules": modules}
    lost = dict(renaming.lost)
    if config.get("use_liger_kernel"):
        theirs |= {"plugins": [_WHOLE], "liger_rope": True, "liger_rms_norm": True}
        theirs |= {"liger_glu_activation": True, "liger_fused_linear_cross_entropy": True}
    if config.get("loss_type") == "chunked_nll":
        theirs["chunked_cross_entropy"] = True
    files = {}
    if bundle.deepspeed is not None:
        theirs["deepspeed"] = DEEPSPEED_FILE
        files[DEEPSPEED_FILE] = bundle.deepspeed
    mixed = config.get("bf16") or config.get("fp16")
    if config.get("dtype") == "float32" and mixed:
        lost["dtype"] = "Axolotl loads the weights in the type of mixed precision: less memory"
    lost["datasets"] = "say how Axolotl has to read the rows (`type`)"
    ranks = f" --num-processes {bundle.processes}" if bundle.processes > 1 else ""
    if bundle.machines > 1:
        # Without --multi_gpu accelerate starts one process where a machine has one GPU.
        count = f"--num_processes {bundle.processes} --num_machines {bundle.machines}"
        ranks = f" -- --multi_gpu {count}"
        lost["machines"] = (
            f"start it on each of {bundle.machines}, with --machine_rank 0 on the first and "
            "--main_process_ip HOST, its address, behind --num_machines"
        )
    head = f"# axolotl train axolotl.yaml{ranks}, in this folder"
    text = as_yaml(theirs, head)
    return Formatted(files={"axolotl.yaml": text, **files}, lost={**lost, **not_said(bundle)})


def _rows(bundle: Launched) -> dict[str, Any]:
    """Return the entry of the data: conversations, unless the method needs pairs."""
    config = bundle.config
    place = str(config.get("dataset_name", "FILL_IN"))
    rows: dict[str, Any] = {"path": place}
    if PurePath(place).suffix in (".json", ".jsonl"):
        rows["ds_type"] = "json"
    if bundle.method.name == "sft":
        rows["type"] = "chat_template"
    else:
        rows["type"] = "chat_template.default" if bundle.method.name == "dpo" else "chatml.intel"
    if config.get("dataset_config"):
        rows["name"] = config["dataset_config"]
    rows["split"] = config.get("dataset_train_split", "train")
    return rows
