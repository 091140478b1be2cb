"""A bundle as Axolotl or LLaMA-Factory read it: their tables (`space/foreign/axolotl.yaml`),
inverted. Pure."""

import json
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import yaml

from autotune.bundle.formats.launched import Formatted, Launched, not_said
from autotune.errors import user_error
from autotune.facts.stack import fused_head
from autotune.space.foreign.tool import AXOLOTL, LLAMA_FACTORY, Tool, tool, words
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE

_SILENT = words(
    "eval_strategy dataset_test_split dataset_text_field use_cpu activation_checkpointing "
    "gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing_kwargs use_peft "
    "dataset_name dataset_config dataset_train_split dtype loss_type lora_target_modules "
    "bnb_4bit_quant_type use_bnb_nested_quant lora_task_type attn_implementation"
)
"""Fields that are written below, or that the other tool finds by itself."""
_OF = {
    AXOLOTL: words("model_name_or_path report_to use_liger_kernel"),
    LLAMA_FACTORY: words("load_in_4bit load_in_8bit lora_modules_to_save"),
}
"""The same of one tool."""
_USUAL = ("random", "bfd")
"""Values that are no choice: every tool shuffles, and packs in its own way."""
_DATA = "data"


def axolotl(bundle: Launched) -> Formatted:
    """Return the bundle as Axolotl reads it.

    Raises:
        UserError: it has no such training.
    """
    config, name = bundle.config, bundle.method.name
    _refuse(bundle, ("sft", "dpo", "kto"), "autotune cannot write Axolotl's file for {} yet")
    values, lost = _renamed(tool(AXOLOTL), config)
    theirs = {"base_model": config.get("model_name_or_path"), **values}
    theirs |= {"datasets": [_axolotls_rows(bundle)], "val_set_size": 0}
    theirs["attn_implementation"] = config.get("attn_implementation")
    theirs["gradient_checkpointing"] = bundle.checkpoints
    if name != "sft":
        theirs["rl"] = name
    if name == "kto":
        theirs["remove_unused_columns"] = False  # else Axolotl refuses the file
    if bundle.tuning != "full":
        theirs["adapter"] = "qlora" if config.get("load_in_4bit") else "lora"
        modules = bundle.modules
        theirs |= {"lora_target_modules": modules} if modules else {"lora_target_linear": True}
    if config.get("use_liger_kernel"):
        kernels = ["rope", "rms_norm", "glu_activation"]
        if not fused_head():
            kernels.append("fused_linear_cross_entropy")
        theirs["plugins"] = ["axolotl.integrations.liger.LigerPlugin"]
        theirs |= {f"liger_{kernel}": True for kernel in kernels}
    if config.get("loss_type") == "chunked_nll" or (fused_head() and name == "sft"):
        theirs["chunked_cross_entropy"] = True
    if config.get("dtype") == "float32" and (config.get("bf16") or config.get("fp16")):
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
    return _written(bundle, "axolotl.yaml", theirs, f"axolotl train axolotl.yaml{ranks}", lost)


def llama_factory(bundle: Launched) -> Formatted:
    """Return the bundle as LLaMA-Factory reads it, and the registry that names the data.

    Raises:
        UserError: it has no such training.
    """
    config, name = bundle.config, bundle.method.name
    methods = ("sft", "reward", "dpo", "kto")
    _refuse(bundle, methods, "LLaMA-Factory's own file cannot express {}")
    table = tool(LLAMA_FACTORY)
    values, lost = _renamed(table, config)
    kernel, kernels = config.get("attn_implementation"), table.theirs["attn_implementation"][1]
    theirs: dict[str, Any] = {
        **values,
        "stage": "rm" if name == "reward" else name,
        "do_train": True,
        "finetuning_type": "full" if bundle.tuning == "full" else "lora",
        "dataset": _DATA,
        "dataset_dir": ".",
        "flash_attn": {**kernels, "sdpa": "sdpa"}.get(kernel, "auto"),
        "disable_gradient_checkpointing": not bundle.checkpoints,
    }
    if kernel not in (*kernels, "sdpa", None):
        lost["attn_implementation"] = f"LLaMA-Factory has no `{kernel}`: it chooses"
    if bundle.tuning != "full":
        theirs["lora_target"] = ",".join(bundle.modules or ["all"])
        theirs["additional_target"] = config.get("lora_modules_to_save")
        if config.get("dtype") == "float32":
            lost["dtype"] = "LLaMA-Factory keeps a frozen base in 16 bits"
    if bundle.tuning == "qlora":
        theirs["quantization_bit"] = 8 if config.get("load_in_8bit") else 4
    lost["dataset"] = "say the columns of the rows in dataset_info.json"
    if config.get("loss_type") == "chunked_nll" or (fused_head() and name != "reward"):
        lost["loss_type"] = "LLaMA-Factory holds all logits: more memory than was measured"
    if name == "dpo":
        losses = config.get("loss_type") or ["sigmoid"]
        theirs["pref_loss"] = losses if isinstance(losses, str) else losses[0]
    starts = f"FORCE_TORCHRUN=1 NPROC_PER_NODE={bundle.each} " if bundle.processes > 1 else ""
    if bundle.machines > 1:
        starts = f"NNODES={bundle.machines} {starts}"
        lost["machines"] = (
            "start it on each, with NODE_RANK=0 on the first and MASTER_ADDR=HOST, its address"
        )
    start = f"{starts}llamafactory-cli train llamafactory.yaml"
    registry = {"dataset_info.json": _registry(config)}
    return _written(bundle, "llamafactory.yaml", theirs, start, lost, registry)


FORMATS: Mapping[str, Callable[[Launched], Formatted]] = {
    "axolotl": axolotl,
    "llamafactory": llama_factory,
}


def formatted(texts: Mapping[str, str], name: str) -> Formatted:
    """Return a bundle in another form.

    Args:
        texts: the bundle's files.
        name: one of `FORMATS`.

    Raises:
        UserError: the form cannot say it.
    """
    return FORMATS[name](Launched.of(texts))


def _refuse(bundle: Launched, methods: tuple[str, ...], what: str) -> None:
    if bundle.uses_fsdp or bundle.method.name not in methods:
        named = "FSDP" if bundle.uses_fsdp else f"`method: {bundle.method.name}`"
        raise user_error(what.format(named), where="--format")


def _renamed(table: Tool, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return fields by the other tool's names, and those that it has no name for."""
    values: dict[str, Any] = {}
    lost: dict[str, str] = {}
    names = table.theirs
    for name, value in config.items():
        if name in _SILENT or name in _OF[table.file]:
            continue
        if name in names and not names[name][1]:
            values[names[name][0]] = value
        elif value and value not in _USUAL:
            lost[name] = "it has no such field"
    return values, lost


def _written(
    bundle: Launched,
    name: str,
    theirs: Mapping[str, Any],
    start: str,
    lost: Mapping[str, str],
    beside: Mapping[str, str] | None = None,
) -> Formatted:
    """Return the file of the other tool, with DeepSpeed's beside it."""
    shards = {} if bundle.deepspeed is None else {DEEPSPEED_FILE: bundle.deepspeed}
    said = {**theirs, **({"deepspeed": DEEPSPEED_FILE} if shards else {})}
    kept = {field: value for field, value in said.items() if value is not None}
    body = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=100)
    text = f"# Written by autotune.\n# {start}, in this folder\n{body}"
    return Formatted(
        files={name: text, **(beside or {}), **shards}, lost={**lost, **not_said(bundle)}
    )


def _axolotls_rows(bundle: Launched) -> dict[str, Any]:
    """Return the entry of the data: conversations, unless the method needs pairs."""
    config = bundle.config
    place = str(config.get("dataset_name", "FILL_IN"))
    rows: dict[str, Any] = {"path": place}
    if PurePath(place).suffix in (".json", ".jsonl"):
        rows["ds_type"] = "json"
    kinds = {"sft": "chat_template", "dpo": "chat_template.default", "kto": "chatml.intel"}
    rows["type"] = kinds[bundle.method.name]
    if config.get("dataset_config"):
        rows["name"] = config["dataset_config"]
    rows["split"] = config.get("dataset_train_split", "train")
    return rows


def _registry(config: Mapping[str, Any]) -> str:
    """Return the registry of the data, without column names: the user has to add them."""
    place = str(config.get("dataset_name", "FILL_IN"))
    local = place.startswith(("/", ".", "~")) or PurePath(place).suffix in (".json", ".jsonl")
    entry: dict[str, Any] = {"file_name" if local else "hf_hub_url": place}
    for theirs, ours in (("subset", "dataset_config"), ("split", "dataset_train_split")):
        if config.get(ours):
            entry[theirs] = config[ours]
    return json.dumps({_DATA: entry}, indent=2) + "\n"
