"""What is compared: shapes of models, strategies, machines."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import EstimateRequest
from autotune.estimate.variants.micro_batches import Worst
from autotune.space.sharding.deepspeed import deepspeed_config
from autotune.space.sharding.sharding import DEEPSPEED, Sharding
from benchmarks.public_tables.figures import DOCUMENTED, ESTIMATORS, PAPER
from benchmarks.sharding_depths.cases import as_planned, plan_request

ROW = Worst(lengths=(16,), labelled=16, flat=False)
"""One short row: published figures are of what lasts, without activations."""
_TOKENS = {"max_position_embeddings": 4096, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}


def _llama(hidden: int, inner: int, layers: int, words: int, heads: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": words,
        "tie_word_embeddings": False,
    }


def _qwen2(hidden: int, inner: int, layers: int, heads: int, *, tied: bool) -> dict[str, Any]:
    return {
        **_llama(hidden, inner, layers, 151936 if tied else 152064, heads),
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_key_value_heads": 4 if hidden == 3584 else 2,
        "tie_word_embeddings": tied,
    }


MODELS: dict[str, dict[str, Any]] = {
    # The paper's sizes. It says how many weights, not which shape; these come within 0.1% of it.
    "7.5B": _llama(4096, 11008, 36, 26112, 32),
    # The same size in so few layers that all of them are traced, for the rows with other numbers
    # of devices. What lasts depends on the number of weights alone.
    "7.5B, 4 layers": _llama(12288, 34304, 4, 1024, 96),
    "128B, 4 layers": _llama(49152, 144384, 4, 512, 384),
    "1T, 4 layers": _llama(131072, 466944, 4, 384, 1024),
    "Qwen2.5-0.5B": _qwen2(896, 4864, 24, 14, tied=True),
    "Qwen2.5-1.5B": _qwen2(1536, 8960, 28, 12, tied=True),
    "Qwen2.5-7B": _qwen2(3584, 18944, 28, 28, tied=False),
    "Llama-3.1-8B": {**_llama(4096, 14336, 32, 128256, 32), "num_key_value_heads": 8},
    # For the test, in seconds.
    "small": _llama(256, 688, 2, 2000, 4),
    # As many weights as T0_3B, with its largest layer (32128 x 2048); a T5 itself is not trained
    # by any of autotune's methods.
    "T0_3B's size": _llama(2048, 5730, 51, 32128, 32),
}
_CPU = {"offload_optimizer_device": "cpu"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "DDP": {"distributed_type": "MULTI_GPU"},
    "ZeRO-1": {"distributed_type": DEEPSPEED, "zero_stage": 1},
    "ZeRO-2": {"distributed_type": DEEPSPEED, "zero_stage": 2},
    "ZeRO-3": {"distributed_type": DEEPSPEED, "zero_stage": 3},
    "ZeRO-2, optimizer off": {"distributed_type": DEEPSPEED, "zero_stage": 2, **_CPU},
    "ZeRO-3, optimizer off": {"distributed_type": DEEPSPEED, "zero_stage": 3, **_CPU},
    "ZeRO-3, all off": {
        "distributed_type": DEEPSPEED,
        "zero_stage": 3,
        **_CPU,
        "offload_param_device": "cpu",
    },
}


ESTIMATED = (
    *("ZeRO-2", "ZeRO-2, optimizer off"),
    *("ZeRO-3, all off", "ZeRO-3, optimizer off", "ZeRO-3"),
)
"""What DeepSpeed has estimators for."""
SHALLOW = ("7.5B, 4 layers", "128B, 4 layers", "1T, 4 layers")
QWEN_AND_LLAMA = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B", "Llama-3.1-8B")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model trained whole on machines, in bfloat16 with AdamW.

    Attributes:
        table: whose figures it is held against, one of `figures.TABLES`.
        ranks: devices of all machines together.
    """

    table: str
    model: str
    strategy: str
    ranks: int
    nodes: int = 1

    @property
    def name(self) -> str:
        """All that it is, in words."""
        where = f"{self.ranks} devices" if self.nodes == 1 else f"{self.ranks} on {self.nodes}"
        return f"{self.table}: {self.model}, {self.strategy}, {where}"

    @property
    def sharding(self) -> Sharding:
        """As accelerate would be told."""
        return Sharding(num_processes=self.ranks, **STRATEGIES[self.strategy])

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    def request(self, models: Path) -> EstimateRequest:
        """As a plan would ask for it. DDP is traced on one device: buckets are added to that."""
        shape, sharding = MODELS[self.model], self.sharding
        shared = sharding.distributed_type == DEEPSPEED
        config = as_planned(
            models / self.model,
            dtype="bfloat16" if shared else "float32",
            gradient_checkpointing=False,
        )
        deepspeed = deepspeed_config(sharding, config, shape["hidden_size"], device_kind="cuda")
        return plan_request(
            config,
            layers=shape["num_hidden_layers"],
            devices=self.ranks,
            hidden=shape["hidden_size"],
            sharding=sharding.plain() if shared else None,
            deepspeed=deepspeed if shared else None,
        )


def cases() -> Iterator[Case]:
    """The headlines of each table first: where it is stopped, those are there."""
    for strategy in ("ZeRO-2", "ZeRO-1", "ZeRO-3", "DDP"):
        yield Case(table=PAPER, model="7.5B", strategy=strategy, ranks=64, nodes=8)
    for model in ("Qwen2.5-0.5B", "Qwen2.5-7B"):
        for strategy in ESTIMATED:
            yield Case(table=ESTIMATORS, model=model, strategy=strategy, ranks=8)
    for strategy in ESTIMATED[2:]:
        yield Case(table=DOCUMENTED, model="T0_3B's size", strategy=strategy, ranks=1)
    for model, strategy, ranks, nodes in itertools.product(
        QWEN_AND_LLAMA, ESTIMATED, (1, 2, 8), (1, 2)
    ):
        if (ranks, nodes) != (8, 1) or model not in ("Qwen2.5-0.5B", "Qwen2.5-7B"):
            many = ranks * nodes
            yield Case(table=ESTIMATORS, model=model, strategy=strategy, ranks=many, nodes=nodes)
    for model, ranks in itertools.product(SHALLOW, (4, 16, 64, 256, 1024)):
        for strategy in ("ZeRO-1", "ZeRO-2", "ZeRO-3"):
            yield Case(table=PAPER, model=model, strategy=strategy, ranks=ranks)


def write_model(name: str, folder: Path) -> None:
    """A model's config and tokenizer."""
    from autotune.probe.survey_worker import make_tokenizer

    folder.mkdir(parents=True)
    config = json.dumps({**MODELS[name], **_TOKENS})
    (folder / "config.json").write_text(config, encoding="utf-8")
    make_tokenizer(folder, MODELS[name]["vocab_size"])
