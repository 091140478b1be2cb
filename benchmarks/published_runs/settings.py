"""A published run as a job of ours, and the device that it is planned for."""

from typing import Any

Row = dict[str, str]

DEVICES = {
    "A100-80GB": "a100-80gb",
    "A100-40GB": "a100-40gb",
    "A100 (44 GB slice)": "memory=44GiB",
    "A10G-24GB": "a10g",
    "L4-24GB": "l4",
    "T4-16GB": "t4",
    "RTX2070-8GB": "memory=8GiB",
}
KINDS = {"max_allocated": "", "nvidia_smi": "_smi", "steady_allocated": "_steady"}
TARGETS = {
    "q,k,v,o": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "c_attn,c_proj,w1,w2": "all-linear",
    "query_key_value": ["query_key_value"],
}
SANTACODER_TARGETS = ["c_attn", "attn.c_proj"]
DROPOUT = {"fms-acceleration": 0.1, "qwen-readme": 0.05, "peft-readme-2023": 0.1}
"""Of the adapters: fms-acceleration's scenarios*.yaml, Qwen's finetune.py, peft's example."""


def name_of(row: Row) -> str:
    """The run that a row is of: several rows have figures of one run."""
    return row["id"].removesuffix("_smi").removesuffix("_steady")


def job_of(row: Row) -> dict[str, Any]:
    """What `--set` says of a run. Rows are all of full length, as the sources pack them or we take
    them."""
    micro, length = int(row["micro_batch"]), int(row["seq_length"])
    job: dict[str, Any] = {
        "method": row["method"],
        "tuning": row["tuning"],
        "max_length": length,
        "global_batch_size": micro * int(row["accumulation"]),
        "precision": _precision(row["precision"]),
        "headroom": 0.0,
        "per_device_train_batch_size": micro,
        "gradient_checkpointing": row["checkpointing"] == "True",
        "attn_implementation": row["attention"],
        "optim": row["optimizer"],
        "dtype": "float32" if row["weights_dtype"].startswith("float32") else "bfloat16",
        "expandable_segments": row["id"].endswith("_exp"),
    }
    if row["method"] == "sft":
        job["loss_type"] = "nll"
    if row["lora_r"]:
        wide = row["model"] == "santacoder"
        job |= {
            "lora_r": round(float(row["lora_r"])),
            "lora_target_modules": SANTACODER_TARGETS if wide else TARGETS[row["lora_targets"]],
            "lora_dropout": DROPOUT[row["source_group"]],
        }
    return job


def _precision(text: str) -> str:
    """What our field `precision` calls it: without autocast nothing is mixed."""
    return {"no autocast": "fp32", "fp32": "fp32"}.get(text, text.removesuffix(" autocast"))
