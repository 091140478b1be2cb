"""Combinations of online trainers: method, model, reference, adapters, prompts, rounds."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import RolloutTraceRequest
from benchmarks.estimate_exactness.cases import BASES

GROUP, COMPLETION = 4, 40
UNIFORM, RAGGED = (24, 24), (37, 9)
TAUGHT = (37, 9, 24, 12, 30, 3, 18, 21)
"""Prompts where each gets one completion."""
BATCHES = {
    # micro-batch, accumulation, completions generated together
    "one round": (2, 4, 8),
    "two rounds": (4, 4, 8),
    "no accumulation": (8, 1, 8),
    "two steps of a round": (2, 2, 8),
}
USUAL = {"bits": 0, "vllm": False, "cache": True, "dtype": "float32", "teacher": ""}
"""What names need not say."""


def model_folder(models: Path, name: str, *, cache: bool) -> Path:
    """Where the config of that name is."""
    return models / (name if cache else f"{name} without cache")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One combination."""

    method: str = "grpo"
    model: str = "qwen2"
    beta: float = 0.0
    lora: bool = False
    checkpointing: bool = False
    bf16: bool = False
    ragged: bool = True
    batch: str = "one round"
    attention: str = "sdpa"
    optimizer: str = "adamw_torch_fused"
    judged: bool = False
    bits: int = 0
    """Of the base's weights; 0: as they are. Others where bitsandbytes is installed."""
    vllm: bool = False
    """Whether the trainer takes vLLM's path; what generation holds is then left out of both."""
    cache: bool = True
    """Whether the model generates with a cache, or does each token from the first again."""
    dtype: str = "float32"
    teacher: str = ""
    """The model that teaches, of distillation alone; it is in bfloat16 where the training is."""

    @property
    def name(self) -> str:
        """All levels, as one line."""
        levels = asdict(self)
        for name in USUAL:
            if levels[name] == USUAL[name]:
                del levels[name]
        return " ".join(f"{name}={value}" for name, value in levels.items())

    def request(self, models: Path, tokens: int) -> RolloutTraceRequest:
        """Its trace with so many tokens decoded."""
        micro, accumulation, together = BATCHES[self.batch]
        path = str(model_folder(models, self.model, cache=self.cache))
        config: dict[str, Any] = {
            "model_name_or_path": path,
            "report_to": "none",
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": accumulation,
            "generation_batch_size": together,
            "num_generations": GROUP,
            "max_completion_length": COMPLETION,
            "beta": self.beta,
            "bf16": self.bf16,
            "dtype": self.dtype,
            "optim": self.optimizer,
            "attn_implementation": self.attention,
            "gradient_checkpointing": self.checkpointing,
            "reward_funcs": ["get_soft_overlong_punishment"],
        }
        if self.judged:
            config |= {"reward_model_name_or_path": path, "reward_funcs": []}
        if self.checkpointing:
            config["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
        if self.lora:
            config |= {"use_peft": True, "lora_r": 8, "lora_target_modules": ["all-linear"]}
            config["lora_dropout"] = 0.0 if self.model == "mixtral" else 0.05
        if self.vllm:
            config |= {"use_vllm": True}
        if self.bits:
            config |= BASES["4-bit nested" if self.bits == 4 else "8-bit"]
        prompts = RAGGED if self.ragged else UNIFORM
        if self.teacher:
            for name in ("generation_batch_size", "num_generations", "reward_funcs"):
                del config[name]
            kind = "bfloat16" if self.bf16 else "float32"
            config |= {
                "teacher_model_name_or_path": str(model_folder(models, self.teacher, cache=True)),
                "teacher_model_init_kwargs": {"dtype": kind},
            }
            prompts = TAUGHT if self.ragged else (24,) * len(TAUGHT)
        return RolloutTraceRequest(
            method=self.method,
            config=config,
            model_path=path,
            layers=None,
            cuda=None,
            prompts=list(prompts),
            tokens=tokens,
            again=not self.teacher and together < micro * accumulation,
            micro_steps=min(accumulation, 2),
        )


def every() -> Iterator[Case]:
    """What the benchmark runs: each method with and without a reference and adapters, over all
    batches; then other models and settings one by one."""
    for method, beta, lora, batch in itertools.product(
        ("grpo", "rloo"), (0.0, 0.04), (False, True), BATCHES
    ):
        checkpointing = batch in ("two rounds", "no accumulation")
        yield Case(method=method, beta=beta, lora=lora, batch=batch, checkpointing=checkpointing)
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
        yield Case(model=model, beta=0.04, ragged=model != "gpt2", attention=attention)
        yield Case(
            method="rloo",
            model=model,
            lora=True,
            beta=0.04,
            batch="two rounds",
            attention=attention,
        )
    yield Case(bf16=True, beta=0.04)
    yield Case(bf16=True, checkpointing=True, lora=True, ragged=False)
    yield Case(bf16=True, lora=True, dtype="bfloat16", beta=0.04)
    yield Case(attention="eager", beta=0.04)
    yield Case(optimizer="adamw_torch", batch="two rounds")
    yield Case(method="rloo", optimizer="adafactor", ragged=False)
    yield Case(cache=False, beta=0.04)
    yield Case(cache=False, model="gemma2", attention="eager", lora=True, method="rloo")
    yield Case(vllm=True)
    yield Case(vllm=True, lora=True, checkpointing=True, beta=0.04, batch="two rounds")
    yield Case(method="rloo", model="llama", vllm=True, ragged=False, batch="two steps of a round")
    yield Case(judged=True)
    yield Case(method="rloo", judged=True, beta=0.04, batch="two rounds", ragged=False)


def taught() -> Iterator[Case]:
    """Yield what it runs of distillation: teachers like the student, deeper, of other families."""
    method = "distillation"
    yield Case(method=method, teacher="qwen2", beta=1.0)
    yield Case(method=method, teacher="qwen2-untied", beta=1.0, checkpointing=True)
    yield Case(method=method, teacher="llama", beta=0.5, batch="no accumulation")
    yield Case(method=method, teacher="gemma2", attention="eager", batch="no accumulation")
    yield Case(method=method, teacher="qwen2-untied", beta=1.0, lora=True, ragged=False)
    yield Case(method=method, teacher="llama", beta=1.0, bf16=True, lora=True, dtype="bfloat16")
    yield Case(method=method, teacher="llama", beta=1.0, bf16=True, checkpointing=True)
    yield Case(method=method, model="llama", teacher="qwen2", beta=1.0, optimizer="adamw_torch")
    yield Case(method=method, model="llama-deep", teacher="qwen3", beta=1.0)


def quantized() -> Iterator[Case]:
    """What it runs besides where bitsandbytes is installed."""
    for bits in (4, 8):
        yield Case(lora=True, bits=bits, beta=0.04)
        yield Case(
            method="rloo", model="llama", lora=True, bits=bits, bf16=True, checkpointing=True
        )
