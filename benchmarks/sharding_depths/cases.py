"""What is compared: strategies, all weights or adapters, checkpointing, ranks, two shapes."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import EstimateRequest
from autotune.estimate.variants.micro_batches import Worst
from autotune.space.sharding.deepspeed import deepspeed_config
from autotune.space.sharding.sharding import DEEPSPEED, Sharding
from benchmarks.sharding_exactness.cases import STRATEGIES

LENGTH = 1024
ASKED, TRACED = 3, (2, 4)
"""Rows of the micro-batch that is asked for, and of those that are traced with few layers."""
CUDA = {"workspace_bytes": 33554432, "flash": True, "cudnn_first": False}
MODELS: dict[str, dict[str, Any]] = {
    "7B": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "num_hidden_layers": 24,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
    },
    # Stage 3 keeps nearly all of it gathered at once.
    "1.5B": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "num_hidden_layers": 28,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
}
_TOKENS = {"max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One combination, in bfloat16."""

    strategy: str
    ranks: int = 8
    lora: bool = False
    checkpointing: bool = True
    model: str = "7B"

    @property
    def name(self) -> str:
        """All that it is, in words."""
        words = [self.strategy, f"{self.ranks} ranks", self.model, "LoRA" if self.lora else "full"]
        return ", ".join([*words, *["checkpointing"] * self.checkpointing])

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    def request(self, models: Path) -> EstimateRequest:
        """As a plan would ask for it; the micro-batches are asked for one by one."""
        sharding = Sharding(num_processes=self.ranks, **STRATEGIES[self.strategy])
        shape = MODELS[self.model]
        config = as_planned(models / self.model, gradient_checkpointing=self.checkpointing)
        if self.checkpointing:
            config["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
        if self.lora:
            config |= {"use_peft": True, "lora_r": 16, "lora_target_modules": ["all-linear"]}
        deepspeed = None
        if sharding.distributed_type == DEEPSPEED:
            deepspeed = deepspeed_config(sharding, config, shape["hidden_size"], device_kind="cuda")
        return plan_request(
            config,
            layers=shape["num_hidden_layers"],
            devices=self.ranks,
            sharding=sharding.plain(),
            deepspeed=deepspeed,
        )


def as_planned(model: Path, **fields: Any) -> dict[str, Any]:
    """A candidate's configuration, in bfloat16; `fields` besides, or in place of its own."""
    return {
        "model_name_or_path": str(model),
        "report_to": "none",
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "max_length": None,
        "max_grad_norm": 1.0,
        "bf16": True,
        "dtype": "bfloat16",
        "optim": "adamw_torch_fused",
        "attn_implementation": "sdpa",
        "loss_type": "nll",
        **fields,
    }


def plan_request(config: dict[str, Any], **fields: Any) -> EstimateRequest:
    """As a plan for an H100 asks for estimates, with no point to be estimated yet."""
    model = config["model_name_or_path"]
    return EstimateRequest(
        method="sft",
        config=config,
        model_path=model,
        model=Path(model).name,
        versions={},
        cuda=CUDA,
        rows="",
        rows_total=1,
        rows_sampled=False,
        points=[],
        limit_bytes=None,
        cache=None,
        seed=0,
        **fields,
    )


def micro_batches(*rows: int) -> list[Worst]:
    """Of so many full rows each, and one short row."""
    lengths = [*((LENGTH,) * count for count in rows), (LENGTH // 4,)]
    return [Worst(lengths=one, labelled=sum(one), flat=False) for one in lengths]


def cases() -> Iterator[Case]:
    """Every strategy; the usual ones with adapters, without checkpointing, on two ranks, and on a
    smaller model; and what only stage 3 does."""
    usual = ("zero 2", "zero 3", "fsdp")
    for strategy in (*usual, *(one for one in STRATEGIES if one not in (*usual, "ddp"))):
        yield Case(strategy=strategy)
    for strategy in usual:
        yield Case(strategy=strategy, lora=True, checkpointing=False)
        yield Case(strategy=strategy, model="1.5B", ranks=2)
    for strategy in usual:
        yield Case(strategy=strategy, checkpointing=False, ranks=2)
        yield Case(strategy=strategy, lora=True, model="1.5B")
    yield Case(strategy="zero 3", ranks=2)  # its optimizer's step takes several groups of weights
    yield Case(strategy="zero 3, all off", ranks=2, lora=True)


def write_model(name: str, folder: Path) -> None:
    """A model's config and tokenizer."""
    from autotune.probe.survey_worker import make_tokenizer

    folder.mkdir(parents=True)
    config = json.dumps({**MODELS[name], **_TOKENS})
    (folder / "config.json").write_text(config, encoding="utf-8")
    make_tokenizer(folder, MODELS[name]["vocab_size"])
