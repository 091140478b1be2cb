"""Combinations of PPOTrainer: model, reference, adapters, prompts, parts of the batch."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import RolloutTraceRequest
from benchmarks.estimate_exactness.cases import BASES
from benchmarks.rollout_exactness.cases import model_folder

RESPONSE = 40
UNIFORM = (24,) * 8
RAGGED = (37, 9, 24, 12, 30, 3, 18, 21)
BATCHES = {
    # micro-batch, accumulation, mini-batches (as they are traced), rollout batch
    "at once": (8, 1, 1, 8),
    "accumulated": (2, 4, 1, 8),
    "mini-batches": (4, 2, 2, 8),
    "in parts": (4, 2, 1, 2),
}
USUAL = {"dtype": "", "bits": 0, "cache": True}
"""What names need not say."""


@dataclass(frozen=True, kw_only=True)
class PpoCase:
    """One combination."""

    model: str = "qwen2"
    lora: bool = False
    copy_reference: bool = False
    checkpointing: bool = False
    bf16: bool = False
    ragged: bool = True
    batch: str = "accumulated"
    attention: str = "sdpa"
    optimizer: str = "adamw_torch_fused"
    dtype: str = ""
    """Of the weights, where not float32."""
    bits: int = 0
    """Of the policy's base; 0: as it is. Others where bitsandbytes is installed."""
    cache: bool = True
    """Whether the policy generates with a cache."""

    @property
    def name(self) -> str:
        """All levels, as one line."""
        levels = asdict(self)
        for rare in USUAL:
            if levels[rare] == USUAL[rare]:
                del levels[rare]
        return "ppo " + " ".join(f"{name}={value}" for name, value in levels.items())

    def request(self, models: Path, tokens: int) -> RolloutTraceRequest:
        """Its trace with so many tokens decoded."""
        micro, accumulation, parts, chunk = BATCHES[self.batch]
        path = str(model_folder(models, self.model, cache=self.cache))
        config: dict[str, Any] = {
            "model_name_or_path": path,
            "report_to": "none",
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": accumulation,
            "num_mini_batches": parts,
            "num_ppo_epochs": 1,
            "local_rollout_forward_batch_size": chunk,
            "response_length": RESPONSE,
            "bf16": self.bf16,
            "optim": self.optimizer,
            "attn_implementation": self.attention,
            "gradient_checkpointing": self.checkpointing,
        }
        if self.checkpointing:
            config["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
        if self.lora:
            config |= {"use_peft": True, "lora_r": 8, "lora_target_modules": ["all-linear"]}
            config["copy_reference"] = self.copy_reference
        if self.dtype:
            config["dtype"] = self.dtype
        if self.bits:
            config |= BASES["4-bit nested" if self.bits == 4 else "8-bit"]
        return RolloutTraceRequest(
            method="ppo",
            config=config,
            model_path=path,
            layers=None,
            cuda=None,
            prompts=list(RAGGED if self.ragged else UNIFORM),
            tokens=tokens,
            again=False,
            micro_steps=min(accumulation, 2),
        )


def every_ppo() -> Iterator[PpoCase]:
    """What the benchmark runs."""
    for batch in BATCHES:
        for checkpointing in (False, True):
            yield PpoCase(batch=batch, checkpointing=checkpointing)
            yield PpoCase(batch=batch, checkpointing=checkpointing, lora=True, ragged=False)
    yield PpoCase(lora=True, copy_reference=True)
    for model in (
        "llama",
        "gemma",
        "gemma2",
        "gemma3",
        "mistral",
        "qwen3",
        "phi3",
        "gpt2",
        "mixtral",
    ):
        attention = "eager" if model == "gemma2" else "sdpa"
        yield PpoCase(model=model, attention=attention, ragged=model != "gpt2")
        yield PpoCase(model=model, attention=attention, lora=model != "mixtral", batch="in parts")
    yield PpoCase(cache=False)
    yield PpoCase(bf16=True)
    yield PpoCase(bf16=True, lora=True, checkpointing=True, batch="mini-batches")
    yield PpoCase(attention="eager", batch="at once")
    yield PpoCase(optimizer="adamw_torch")
    yield PpoCase(optimizer="adafactor", ragged=False)


def quantized_ppo() -> Iterator[PpoCase]:
    """What it runs besides where bitsandbytes is installed."""
    # The test's, with a reference that computes as the policy does.
    yield PpoCase(model="qwen3", lora=True, bits=8, dtype="bfloat16", copy_reference=True)
    for bits in (4, 8):
        for batch in BATCHES:
            yield PpoCase(lora=True, bits=bits, batch=batch, checkpointing=batch == "accumulated")
        yield PpoCase(lora=True, bits=bits, copy_reference=True, ragged=False)
        yield PpoCase(lora=True, bits=bits, bf16=True, checkpointing=True, model="llama")
        yield PpoCase(lora=True, bits=bits, bf16=True, dtype="bfloat16", batch="in parts")
        yield PpoCase(lora=True, bits=bits, dtype="bfloat16", model="qwen3")
        for model in ("gemma", "gpt2"):
            yield PpoCase(lora=True, bits=bits, model=model, ragged=model != "gpt2")
