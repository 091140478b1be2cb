"""The comparisons: every factor, every level, and a seeded choice that covers all their pairs."""

import itertools
import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

_QWEN: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 11,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 8009,
    "tie_word_embeddings": True,
    "max_position_embeddings": 32768,
    "use_cache": False,
}
_LLAMA: dict[str, Any] = {
    **_QWEN,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1009,
    "tie_word_embeddings": False,
}
_GEMMA: dict[str, Any] = {
    **_QWEN,
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    "num_hidden_layers": 9,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 16001,
}
_QWEN_7B: dict[str, Any] = {
    **_QWEN,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
_GEMMA_3: dict[str, Any] = {
    **_GEMMA,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 13,
    "sliding_window": 256,
    "layer_types": [("full" if n % 6 == 5 else "sliding") + "_attention" for n in range(13)],
}
"""Every sixth layer attends to all tokens."""
CONFIGS = {
    "qwen2": _QWEN,
    "llama": _LLAMA,
    "gemma": _GEMMA,
    "gemma3": _GEMMA_3,
    "qwen2-7b": _QWEN_7B,
}

METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {
        "use_peft": True,
        "lora_target_modules": ["all-linear"],
        "lora_r": 16,
        "lora_dropout": 0.05,
    },
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32", "bf16": False},
    "mixed": {"dtype": "float32", "bf16": True},
    "bfloat16": {"dtype": "bfloat16", "bf16": True},
}
LONGEST = 500
LAYOUTS: dict[str, tuple[int, bool]] = {
    "even": (LONGEST, False),
    "padded": (90, False),
    "flat": (90, True),
}
"""The shortest row of the data, and whether rows are laid one behind the other."""

FACTORS: dict[str, tuple[Any, ...]] = {
    "model": tuple(CONFIGS),
    "method": tuple(METHODS),
    "precision": tuple(PRECISIONS),
    "checkpointing": (False, True),
    "loss": ("nll", "chunked_nll"),
    "attention": ("sdpa", "eager"),
    "layout": tuple(LAYOUTS),
    "optimizer": ("adamw_torch_fused", "adamw_torch"),
    "accumulation": (1, 2),
    "labelled": (1.0, 0.6),
    "rows": (13, 24),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison: a level of each factor."""

    model: str
    method: str
    precision: str
    checkpointing: bool
    loss: str
    attention: str
    layout: str
    optimizer: str
    accumulation: int
    labelled: float
    rows: int

    @property
    def name(self) -> str:
        """All levels, as one line."""
        return (
            f"{self.model} {self.method} {self.precision} "
            f"checkpointing-{'on' if self.checkpointing else 'off'} {self.loss} {self.attention} "
            f"{self.layout} {self.optimizer} accumulation-{self.accumulation} "
            f"labelled-{self.labelled:g} rows-{self.rows}"
        )

    @property
    def layers(self) -> int:
        """Decoder layers of the whole model."""
        return int(CONFIGS[self.model]["num_hidden_layers"])

    @property
    def flat(self) -> bool:
        """Whether rows are laid one behind the other."""
        return LAYOUTS[self.layout][1]

    def plain(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)

    def config(self) -> dict[str, Any]:
        """The flat TRL configuration; the optimizer is the one that paths are traced with."""
        config: dict[str, Any] = {
            "model_name_or_path": self.model,
            "report_to": "none",
            "learning_rate": 2e-5,
            "max_length": None,
            "optim": "adamw_torch_fused",
            "loss_type": self.loss,
            "attn_implementation": self.attention,
            "gradient_checkpointing": self.checkpointing,
            "padding_free": self.flat,
            **PRECISIONS[self.precision],
            **METHODS[self.method],
        }
        if self.checkpointing:
            config["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
        return config

    def lengths(self) -> list[int]:
        """Tokens of each row of the data."""
        chance = random.Random(self.rows)
        return [chance.randint(LAYOUTS[self.layout][0], LONGEST) for _ in range(64)]


def chosen(count: int, seed: int = 0) -> list[Case]:
    """Combinations whose rarest pair of levels is as frequent as can be, one after the other."""
    chance = random.Random(seed)
    seen: dict[Any, int] = {}
    cases: list[Case] = []
    while len(cases) < count:
        drawn = [
            Case(**{name: chance.choice(levels) for name, levels in FACTORS.items()})
            for _ in range(200)
        ]
        best = max(drawn, key=lambda case: sum(1 / (1 + seen.get(p, 0)) ** 4 for p in _pairs(case)))
        if best in cases:
            continue
        for pair in _pairs(best):
            seen[pair] = seen.get(pair, 0) + 1
        cases.append(best)
    return sorted(cases, key=lambda case: case.layers)


def _pairs(case: Case) -> list[Any]:
    return list(itertools.combinations(case.plain().items(), 2))


def common() -> list[Case]:
    """What people run: a 7B model, mixed or bfloat16, checkpointed, both losses and layouts."""
    first = Case(
        model="qwen2-7b",
        method="full",
        precision="bfloat16",
        checkpointing=True,
        loss="nll",
        attention="sdpa",
        layout="padded",
        optimizer="adamw_torch_fused",
        accumulation=2,
        labelled=1.0,
        rows=24,
    )
    return [
        replace(first, method=method, loss=loss, layout=layout)
        for method in METHODS
        for loss, layout in (("nll", "padded"), ("chunked_nll", "padded"), ("nll", "flat"))
    ]


def write_model(name: str, folder: Path) -> Path:
    """A model folder: config and a toy tokenizer, no weights."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name], indent=1), encoding="utf-8")
    words = {"<pad>": 0, "<eos>": 1} | {f"<{number}>": number for number in range(2, 64)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<eos>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(folder)
    return folder
