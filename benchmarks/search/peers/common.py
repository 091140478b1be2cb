"""What the scripts of all peers share: the job's model and data, the memory limit, one trainer."""

import json
import resource
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))
EXAMPLE = ROOT / "examples" / "quickstart" / "build"
GLOBAL_BATCH, MAX_LENGTH = 16, 256


def limit_memory(limit_bytes: int) -> None:
    """Let this process grow to `limit_bytes` of resident memory: beyond, torch's CPU allocator
    fails as a GPU's does. To be called when the libraries are loaded."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    resident, data = (int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmData"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data + max(limit_bytes - resident, 0), hard))


def peak_bytes() -> int:
    """Peak resident size of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def sft_trainer(fields: dict[str, Any], rows: int | None = None) -> Any:
    """TRL's SFTTrainer on the example, all fields as given."""
    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    data = load_dataset("json", data_files=str(EXAMPLE / "data" / "train.jsonl"), split="train")
    if rows is not None:
        data = data.select(range(rows))
    base = {
        "max_length": MAX_LENGTH,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
    }
    attention = fields.pop("attn_implementation", "sdpa")
    model = AutoModelForCausalLM.from_pretrained(
        EXAMPLE / "model", dtype=torch.float32, attn_implementation=attention
    )
    return SFTTrainer(
        model=model,
        args=SFTConfig(**{**base, **fields}),
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(EXAMPLE / "model"),
    )


def answer(**fields: Any) -> None:
    """The last line of a script: what it found, as JSON."""
    print("ANSWER " + json.dumps(fields), flush=True)
