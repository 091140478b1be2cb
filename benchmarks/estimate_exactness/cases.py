"""The combinations: every factor, every level, and a seeded choice that covers all their pairs."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import MicroBatch, TraceRequest
from benchmarks.estimate_exactness.models import CONFIGS, attention_modules

METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "full-unclipped": {"max_grad_norm": 0.0},
    "lora-all-8": {"lora_r": 8, "lora_dropout": 0.05},
    "lora-all-16": {"lora_r": 16, "lora_dropout": 0.0},
    "lora-attention-4": {"lora_r": 4, "lora_dropout": 0.0},
    "lora-attention-16": {"lora_r": 16, "lora_dropout": 0.05},
    "lora-and-head": {"lora_r": 8, "lora_dropout": 0.0, "lora_modules_to_save": ["lm_head"]},
    "dora-attention": {"lora_r": 8, "lora_dropout": 0.0, "use_dora": True},
}
TRAININGS: dict[str, dict[str, Any]] = {
    "sft": {},
    "reward": {},
    "dpo": {},
    "dpo, reference before": {"precompute_ref_log_probs": True},
    "kto": {},
    "kto, reference before": {"precompute_ref_log_probs": True},
}
"""TRL's trainers; those of pairs take the first half of a shape's rows as the chosen ones."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw_torch_fused": {"optim": "adamw_torch_fused"},
    "adamw_torch": {"optim": "adamw_torch"},
    "adafactor": {"optim": "adafactor"},
    "sgd-momentum": {"optim": "sgd", "optim_args": "momentum=0.9"},
    "adamw-accumulated": {"optim": "adamw_torch_fused"},
}
BITSANDBYTES: dict[str, dict[str, Any]] = {
    name: {"optim": name} for name in ("adamw_8bit", "paged_adamw_8bit", "paged_adamw_32bit")
}
"""Where that package is installed; no factor of the choice (`bitsandbytes.py`)."""
OF_EXPERTS: dict[str, dict[str, Any]] = {
    "lora-experts-8": {
        **{"lora_r": 8, "lora_dropout": 0.0},
        "lora_target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
    }
}
"""Beside the linear layers of attention; for mixtures alone, and no factor of the choice."""
GRID: dict[str, dict[str, Any]] = {
    "every 2nd": {"every_n_layers": 2},
    "every 4th": {"every_n_layers": 4},
    "selective": {"selective": True},
}
"""More levels of checkpointing; no part of the choice (`tests/cpu/test_estimate_exactness.py`)."""
BASES: dict[str, dict[str, Any]] = {
    "": {},
    "4-bit nested": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "use_bnb_nested_quant": True,
    },
    "4-bit": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "8-bit": {"load_in_8bit": True},
}
"""What adapters are put on: the weights as they are, or bitsandbytes' (`four_bit.py`)."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "padded": {},
    "flat": {"padding_free": True},
    "packed": {"packing": True, "packing_strategy": "bfd"},
}
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "1x17": ((17,), (17,)),
    "1x384": ((384,), (384,)),
    "2 uneven": ((255, 131), (255, 131)),
    "3 uneven": ((301, 19, 300), (301, 19, 300)),
    "4x96": ((96,) * 4, (96,) * 4),
    "4 uneven": ((384, 203, 61, 17), (384, 203, 61, 17)),
    "6x129": ((129,) * 6, (129,) * 6),
    "6 uneven": ((33, 17, 290, 47, 181, 25), (33, 17, 290, 47, 181, 25)),
    "growing": ((40, 33), (257, 190)),
    "shrinking": ((257, 190, 83), (40, 33, 18)),
}
"""Lengths of the rows of a micro-batch in the first and in the second optimizer step."""

FACTORS: dict[str, tuple[Any, ...]] = {
    "model": tuple(CONFIGS),
    "method": tuple(METHODS),
    "dtype": ("float32", "bfloat16"),
    "bf16": (False, True),
    "checkpointing": ("off", "on", "reentrant"),
    "loss": ("nll", "chunked_nll", "dft"),
    "optimizer": tuple(OPTIMIZERS),
    "attention": ("sdpa", "eager"),
    "layout": tuple(LAYOUTS),
    "shape": tuple(SHAPES),
    "labelled": (1.0, 0.4, 0.05),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One combination: a level of each factor."""

    model: str
    training: str = "sft"
    method: str = "full"
    dtype: str = "float32"
    bf16: bool = False
    checkpointing: str = "off"
    loss: str = "nll"
    optimizer: str = "adamw_torch_fused"
    attention: str = "sdpa"
    layout: str = "padded"
    shape: str = "2 uneven"
    labelled: float = 1.0
    base: str = ""
    experts: str = ""

    @property
    def name(self) -> str:
        """All levels, as one line."""
        training = "" if self.training == "sft" else f"{self.training}: "
        training += f"{self.base} " if self.base else ""
        return (
            f"{training}{self.model} {self.method} {self.dtype}{'+bf16' if self.bf16 else ''} "
            f"checkpointing-{self.checkpointing} {self.loss} {self.optimizer} {self.attention} "
            f"{self.layout} {self.shape} labelled-{self.labelled:g}"
            f"{' ' if self.experts else ''}{self.experts}"
        )

    def plain(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)

    def config(self) -> dict[str, Any]:
        """The flat TRL configuration."""
        config: dict[str, Any] = {
            "model_name_or_path": self.model,
            "report_to": "none",
            "max_length": None,
            "per_device_train_batch_size": len(SHAPES[self.shape][0]),
            "dtype": self.dtype,
            "bf16": self.bf16,
            "attn_implementation": self.attention,
            "gradient_checkpointing": self.checkpointing != "off",
            **{**OPTIMIZERS, **BITSANDBYTES}[self.optimizer],
            **LAYOUTS[self.layout],
            **TRAININGS[self.training],
            **BASES[self.base],
        }
        if self.training == "sft":
            config["loss_type"] = self.loss
        if self.experts:
            config["model_init_kwargs"] = {"experts_implementation": self.experts}
        if self.checkpointing != "off":
            reentrant, own = self.checkpointing == "reentrant", GRID.get(self.checkpointing, {})
            config["gradient_checkpointing_kwargs"] = {"use_reentrant": reentrant, **own}
        if self.layout == "packed":
            config["max_length"] = max(max(SHAPES[self.shape]))
        if not self.method.startswith("full"):
            everything = self.method.startswith("lora-all")
            modules = ["all-linear"] if everything else attention_modules(self.model)
            config |= {"use_peft": True, "lora_target_modules": modules}
            if self.training == "reward":
                config["lora_task_type"] = "SEQ_CLS"
        return {**config, **{**METHODS, **OF_EXPERTS}[self.method]}

    def request(self, model_path: Path) -> TraceRequest:
        """The trace, and the real run, of this combination."""
        steps = [
            MicroBatch(lengths=lengths, labelled=self.labelled) for lengths in SHAPES[self.shape]
        ]
        return TraceRequest(
            method=self.training.split(",")[0],
            config=self.config(),
            model_path=str(model_path),
            layers=None,
            cuda=None,
            steps=steps,
            micro_steps=[2 if self.optimizer == "adamw-accumulated" else 1] * len(steps),
        )


def possible(levels: dict[str, Any]) -> bool:
    """Whether the stack itself allows these levels together; some may be missing."""
    model, method = levels.get("model"), levels.get("method")
    if model == "gemma2" and levels.get("attention") == "sdpa":
        return False  # transformers: not supported yet
    if model in {"qwen2-moe", "mixtral"} and method == "lora-all-8":
        return False  # peft: adapters of expert parameters allow no dropout
    if levels.get("layout") == "packed" and "shape" in levels:
        return all(len(set(lengths)) == 1 for lengths in SHAPES[levels["shape"]])
    return True


def _pairs(levels: dict[str, Any]) -> Iterator[tuple[tuple[str, Any], ...]]:
    yield from itertools.combinations(levels.items(), 2)


def chosen(count: int, seed: int = 0) -> list[Case]:
    """Combinations that cover every possible pair of levels, and more until there are `count`.

    Greedy: of many random combinations the one with the most pairs that nobody has covered yet;
    later the one whose rarest pair has been seen least.
    """
    chance = random.Random(seed)
    seen = {
        pair: 0
        for one, other in itertools.combinations(FACTORS, 2)
        for pair in itertools.product(
            ((one, level) for level in FACTORS[one]), ((other, level) for level in FACTORS[other])
        )
        if possible(dict(pair))
    }
    cases: list[Case] = []
    while len(cases) < count or not all(seen.values()):
        rarest = min(seen, key=lambda pair: seen[pair])
        drawn = []
        while len(drawn) < 60:
            levels = {name: chance.choice(list(options)) for name, options in FACTORS.items()}
            levels |= dict(rarest)
            if possible(levels):
                drawn.append(levels)
        best = max(drawn, key=lambda levels: sum(1 / (1 + seen[p]) ** 4 for p in _pairs(levels)))
        for pair in _pairs(best):
            seen[pair] += 1
        cases.append(Case(**best))
    return cases
