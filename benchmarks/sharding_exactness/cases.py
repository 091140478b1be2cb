"""What is compared: strategies, all weights or adapters, checkpointing, numbers of ranks."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import MicroBatch, TraceRequest
from autotune.space.quantization import FOUR_BITS, STORAGE
from autotune.space.sharding.sharding import DEEPSPEED, FSDP, RESHARD, Sharding

HIDDEN = 512
_SHAPE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 1376,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        **_SHAPE,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 2000,
        "tie_word_embeddings": False,
    },
    # One embedding for both ends, and a number of words that no count of ranks divides.
    "qwen2": {
        **_SHAPE,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 2003,
        "tie_word_embeddings": True,
    },
}
_CPU = {"offload_optimizer_device": "cpu"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"distributed_type": "MULTI_CPU"},
    "zero 1": {"distributed_type": DEEPSPEED, "zero_stage": 1},
    "zero 2": {"distributed_type": DEEPSPEED, "zero_stage": 2},
    "zero 3": {"distributed_type": DEEPSPEED, "zero_stage": 3},
    "zero 1, optimizer off": {"distributed_type": DEEPSPEED, "zero_stage": 1, **_CPU},
    "zero 2, optimizer off": {"distributed_type": DEEPSPEED, "zero_stage": 2, **_CPU},
    "zero 3, optimizer off": {"distributed_type": DEEPSPEED, "zero_stage": 3, **_CPU},
    "zero 3, all off": {
        "distributed_type": DEEPSPEED,
        "zero_stage": 3,
        **_CPU,
        "offload_param_device": "cpu",
    },
    "fsdp": {"distributed_type": FSDP, RESHARD: True},
    "fsdp, gathered": {"distributed_type": FSDP, RESHARD: False},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One combination; in float32, or with bf16 (`half`), which transformers would refuse without a
    GPU (`ranks.py`), and weights in `dtype`. What is `quantized` has adapters."""

    strategy: str
    ranks: int = 2
    lora: bool = False
    checkpointing: bool = False
    accumulation: int = 1
    model: str = "llama"
    method: str = "sft"
    bucket: int = HIDDEN**2
    overlaps: bool = True
    half: bool = False
    quantized: bool = False
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """All that it is, in words."""
        trained = "QLoRA" if self.quantized else "LoRA" if self.lora else "full"
        words = [
            self.strategy,
            f"{self.ranks} rank{'s' * (self.ranks > 1)}",
            self.model,
            self.method,
            trained,
        ]
        words += ["checkpointing"] * self.checkpointing
        words += [f"a bucket of {self.bucket}"] * (self.bucket != HIDDEN**2)
        words += ["no overlap"] * (not self.overlaps)
        words += ["bf16"] * self.half
        words += [f"weights in {self.dtype}"] * (self.dtype != "float32")
        return ", ".join([*words, *[f"{self.accumulation} micro-steps"] * (self.accumulation > 1)])

    @property
    def sharding(self) -> Sharding:
        """As accelerate would be told."""
        return Sharding(num_processes=self.ranks, **STRATEGIES[self.strategy])

    def request(self, models: Path) -> TraceRequest:
        """Two optimizer steps of two short rows."""
        model = models / self.model
        config: dict[str, Any] = {
            "model_name_or_path": str(model),
            "report_to": "none",
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": self.accumulation,
            "max_length": 128,
            "bf16": self.half,
            "dtype": self.dtype,
            "optim": "adamw_torch",
            "attn_implementation": "sdpa",
            "gradient_checkpointing": self.checkpointing,
        }
        if self.method == "sft":
            config["loss_type"] = "nll"
        if self.quantized:
            config |= {**FOUR_BITS, STORAGE: "float32"}
        if self.lora or self.quantized:
            config |= {"use_peft": True, "lora_r": 16, "lora_target_modules": ["all-linear"]}
        longest = 16 if self.half else 128  # this CPU multiplies in bf16 slowly
        lengths = (longest, 3 * longest // 4) * (1 if self.method == "sft" else 2)
        step = MicroBatch(lengths=lengths)
        return TraceRequest(
            method=self.method,
            config=config,
            model_path=str(model),
            layers=None,
            cuda=None,
            steps=[step, step],
            micro_steps=[self.accumulation] * 2,
            sharding=self.sharding.plain(),
            deepspeed=self.deepspeed(),
        )

    def deepspeed(self) -> dict[str, Any] | None:
        """DeepSpeed's JSON with every value resolved, the sizes as transformers derives them."""
        sharding, bucket = self.sharding, self.bucket
        if sharding.distributed_type != DEEPSPEED:
            return None
        zero: dict[str, Any] = {
            "stage": sharding.zero_stage,
            "overlap_comm": self.overlaps,
            "contiguous_gradients": True,
            "reduce_bucket_size": bucket,
            "stage3_prefetch_bucket_size": int(0.9 * HIDDEN**2),
            "stage3_param_persistence_threshold": 10 * HIDDEN,
        }
        if sharding.offload_optimizer_device != "none":
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
        if sharding.offload_param_device != "none":
            zero["offload_param"] = {"device": "cpu", "pin_memory": False}
        return {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": 1.0,
            "zero_optimization": zero,
            **({"bf16": {"enabled": True}} if self.half else {}),
        }

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def cases() -> Iterator[Case]:
    """Every strategy with all weights and with adapters, checkpointed or not, on 2 and 4 ranks;
    some with other methods, some with other buckets, some in bf16, of those some with a base in
    bfloat16; one rank alone that offloads."""
    for strategy in STRATEGIES:
        yield Case(strategy=strategy, ranks=4, model="qwen2")
        yield Case(strategy=strategy, ranks=4, model="qwen2", lora=True, checkpointing=True)
        yield Case(strategy=strategy, accumulation=2)
    for strategy, lora, checkpointed in itertools.product(STRATEGIES, (False, True), (False, True)):
        yield Case(strategy=strategy, lora=lora, checkpointing=checkpointed)
    for strategy, (method, lora) in itertools.product(
        ("zero 2", "zero 3", "fsdp"), (("reward", False), ("dpo", True), ("dpo", False))
    ):
        yield Case(strategy=strategy, method=method, lora=lora)
    for strategy in ("zero 1", "zero 2", "zero 3"):
        yield Case(strategy=strategy, bucket=12 * HIDDEN**2, accumulation=2)
        yield Case(strategy=strategy, bucket=HIDDEN**2 // 8, overlaps=False)
    yield Case(strategy="zero 1", overlaps=False, accumulation=2)
    for strategy in STRATEGIES:
        yield Case(strategy=strategy, half=True, accumulation=2)
        yield Case(strategy=strategy, half=True, ranks=4, lora=True, checkpointing=True)
    for strategy in ("ddp", "zero 1", "zero 2", "zero 3", "fsdp", "fsdp, gathered"):
        yield Case(strategy=strategy, half=True, lora=True, dtype="bfloat16")
    for strategy in ("zero 3", "zero 3, all off", "fsdp", "fsdp, gathered"):
        yield Case(strategy=strategy, quantized=True)
        yield Case(strategy=strategy, quantized=True, ranks=4, model="qwen2", checkpointing=True)
    for strategy in ("zero 2, optimizer off", "zero 3, all off"):
        yield Case(strategy=strategy, ranks=1)
        yield Case(strategy=strategy, ranks=1, checkpointing=True, accumulation=2)


def write_model(name: str, folder: Path) -> None:
    """A model's config and tokenizer."""
    from autotune.probe.survey_worker import make_tokenizer

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(MODELS[name]), encoding="utf-8")
    make_tokenizer(folder, MODELS[name]["vocab_size"])
