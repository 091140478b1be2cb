"""The jobs whose first line is held against traces: models x methods x tunings x GPUs."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job, and the GPU that it is planned for."""

    name: str
    device: str
    job: dict[str, Any]

    @property
    def sets(self) -> list[str]:
        """The job as `--set` has it."""
        return [f"{name}={json.dumps(value)}" for name, value in self.job.items()]


def _case(
    name: str,
    device: str,
    model: str,
    tuning: str,
    length: int,
    *,
    batch: int = 16,
    median: int | None = None,
    method: str = "sft",
    half: bool = False,
) -> Case:
    """Return a case; without a median all rows are of one length.

    Args:
        half: whether weights are in bfloat16, not in float32.
    """
    lengths = {"max": length, "rows": 10000, **({"p50": median} if median else {})}
    job = {
        "model": model,
        "tuning": tuning,
        "max_length": length,
        "dataset": {"lengths": lengths},
        "global_batch_size": batch,
        **({"method": method} if method != "sft" else {}),
        **({"recipe": {"dtype": ["bfloat16"]}} if half else {}),
    }
    return Case(name=name, device=device, job=job)


CASES = (
    _case("7b-full", "h200", "qwen2.5-7b", "full", 1024, batch=32, median=300),
    _case("7b-lora-half", "h100", "qwen2.5-7b", "lora", 2048, median=600, half=True),
    _case("0.5b-full", "l4", "qwen2.5-0.5b", "full", 1024, batch=32),
    _case("8b-qlora", "rtx-4090", "llama-3.1-8b", "qlora", 1024, median=300),
    _case("1b-full", "a100-80gb", "llama-3.2-1b", "full", 2048, batch=32, median=500),
    _case("smollm-full-half", "a100-40gb", "smollm2-1.7b", "full", 1024, half=True),
    _case("gemma3-full", "h100", "gemma-3-1b-it", "full", 1024, median=300),
    _case("qwen3-8b-lora-half", "h100", "qwen3-8b", "lora", 4096, median=900, half=True),
    _case("phi-lora-half", "l4", "phi-3.5-mini-instruct", "lora", 1024, half=True),
    _case("olmo-full-half", "h200", "olmo-2-1124-7b", "full", 2048, batch=32, half=True),
    _case("mistral-lora", "a100-80gb", "mistral-7b-v0.3", "lora", 2048, median=300),
    _case("14b-qlora", "a100-80gb", "qwen2.5-14b", "qlora", 2048, median=500),
    _case("gemma2-lora-half", "a10g", "gemma-2-2b-it", "lora", 512, half=True),
    _case("reward", "t4", "smollm2-360m", "full", 512, median=200, method="reward"),
    _case("0.5b-8k", "h100", "qwen2.5-0.5b", "full", 8192, batch=8),
    _case("qwen3-4b-full", "h200", "qwen3-4b", "full", 2048, median=600),
    _case("70b-qlora", "h100", "llama-3.1-70b", "qlora", 1024, median=300),
    _case("32b-lora-half", "h200", "qwen2.5-32b", "lora", 2048, half=True),
    # Not among those that the constants were fitted to:
    _case("new-3b-full", "h100", "qwen2.5-3b", "full", 2048, median=700),
    _case("new-1.7b-lora", "l40s", "qwen3-1.7b", "lora", 2048, median=400, half=True),
    _case("new-8b-lora", "a100-80gb", "llama-3.1-8b", "lora", 4096, median=1000),
    _case("new-tiny-full", "rtx-4090", "tinyllama-1.1b-chat-v1.0", "full", 512, half=True),
    _case("new-14b-qlora", "h100", "phi-4", "qlora", 1024),
    _case("new-nemo-lora", "h200", "mistral-nemo-base-2407", "lora", 1024, median=300, half=True),
    _case("new-olmo-1b-full", "a100-40gb", "olmo-2-0425-1b", "full", 2048, median=500),
)
