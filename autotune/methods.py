"""The training methods: which of TRL's trainers each one is. Pure data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Method:
    """One training method.

    Attributes:
        name: as jobs have it, and as `trl <name>` has it.
        config: TRL's class of training arguments.
        source: the file of that class, below TRL's package.
        columns: of tokenized rows, as the trainer makes them.
        sequences: how many sequences the trainer makes of one row.
        reference: columns that rows have where the reference was computed before the training.
        online: whether the policy generates the completions that it is trained on.
        classifier: whether the model is a sequence classifier with one output, not a causal LM.
        loops_over_rows: whether its loss goes over the rows one by one, so that a step of more
            rows has other operators.
        defaults: what TRL does unless told otherwise, made explicit where it differs by method.
        lora_defaults: the same of adapters.
        refused: training fields that the trainer has and cannot do: the values that it can, and
            why not others.
    """

    name: str
    config: str
    source: str
    columns: tuple[str, ...]
    sequences: int = 1
    reference: tuple[str, ...] = ()
    online: bool = False
    classifier: bool = False
    loops_over_rows: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    lora_defaults: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)

    @property
    def trainer(self) -> str:
        """TRL's class of the trainer."""
        return self.config.replace("Config", "Trainer")

    @property
    def config_file(self) -> str:
        """The file of a bundle that TRL reads."""
        return f"{self.name}_config.yaml"

    @property
    def script(self) -> str:
        """The module that trains."""
        return f"trl.scripts.{self.name}"


_CANNOT_GROUP = (
    ("random", "sequential"),
    "this trainer cannot group by length: transformers looks for `input_ids`",
)
_ONLINE_REFUSES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "train_sampling_strategy": ((), "this trainer has a sampler of its own, by groups"),
    "steps_per_generation": (
        (),
        "say how many completions are generated together: `fixed: {generation_batch_size: ...}`",
    ),
    "use_vllm": ((), "generation by vLLM is neither probed nor planned yet"),
    "use_transformers_continuous_batching": ((), "not supported yet"),
    "use_transformers_paged": ((), "not supported yet"),
}
_ALL = (
    Method(
        name="sft",
        config="SFTConfig",
        source="trainer/sft_config.py",
        columns=("input_ids", "labels"),
        defaults={
            "learning_rate": 2e-5,
            "packing_strategy": "bfd",
            "dataset_text_field": "text",
        },
    ),
    Method(
        name="reward",
        config="RewardConfig",
        source="trainer/reward_config.py",
        columns=("chosen_ids", "rejected_ids"),
        sequences=2,
        classifier=True,
        defaults={"learning_rate": 1e-4, "disable_dropout": True},
        # Else the new head on top would not be trained.
        lora_defaults={"lora_task_type": "SEQ_CLS"},
        refused={"train_sampling_strategy": _CANNOT_GROUP},
    ),
    Method(
        name="dpo",
        config="DPOConfig",
        source="trainer/dpo_config.py",
        columns=("prompt_ids", "chosen_ids", "rejected_ids"),
        sequences=2,
        defaults={
            "learning_rate": 1e-6,
            "beta": 0.1,
            "loss_type": ["sigmoid"],
            "disable_dropout": True,
        },
        reference=("ref_chosen_logps", "ref_rejected_logps"),
        loops_over_rows=True,
        refused={
            "train_sampling_strategy": _CANNOT_GROUP,
            "padding_free": ((), "TRL's DPOTrainer takes it and pads all the same"),
        },
    ),
    Method(
        name="kto",
        config="KTOConfig",
        source="trainer/kto_config.py",
        columns=("prompt_ids", "completion_ids", "label"),
        defaults={
            "learning_rate": 1e-6,
            "beta": 0.1,
            "disable_dropout": True,
            "train_sampling_strategy": "sequential",
        },
        reference=("ref_logps", "ref_KL_logps"),
        loops_over_rows=True,
        refused={
            "train_sampling_strategy": (
                ("sequential",),
                "TRL's KTOTrainer compares rows with their neighbours, so it wants `sequential`",
            )
        },
    ),
    Method(
        name="grpo",
        config="GRPOConfig",
        source="trainer/grpo_config.py",
        columns=("prompt_ids",),
        online=True,
        defaults={"learning_rate": 1e-6, "loss_type": "dapo", "temperature": 1.0},
        refused=_ONLINE_REFUSES,
    ),
    Method(
        name="rloo",
        config="RLOOConfig",
        source="trainer/rloo_config.py",
        columns=("prompt_ids",),
        online=True,
        defaults={"learning_rate": 1e-6, "temperature": 1.0},
        refused=_ONLINE_REFUSES,
    ),
)
METHODS = {method.name: method for method in _ALL}
SFT = METHODS["sft"]
