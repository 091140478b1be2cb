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
        completion: where completions are generated, the knob that says how long they are.
        knobs: those that a search space of it must have.
        second_model: the field that names the model beside it, which rewards or teaches.
        teacher: whether that is a teacher, whose words it learns to expect.
        value_model: whether a second model is trained along, and a third one judges.
        rewards_by_functions: whether functions can, too.
        evaluates: whether the trainer measures its loss on the test split.
        removal: where not every version of TRL has it, what is said of that.
        install: what to do then.
        own_script: the bundle's file that trains, where TRL has no script that does.
        loops_over_rows: whether its loss goes over the rows one by one, so that a step of more
            rows has other operators.
        defaults: what TRL does unless told otherwise, made explicit where it differs by method.
        lora_defaults: the same of adapters.
        refusals: training fields that the trainer has and cannot do: the values that it can, and
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
    completion: str = ""
    knobs: tuple[str, ...] = ()
    second_model: str = ""
    teacher: bool = False
    value_model: bool = False
    rewards_by_functions: bool = False
    evaluates: bool = True
    removal: str = ""
    install: str = "another version of TRL"
    own_script: str = ""
    loops_over_rows: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    lora_defaults: Mapping[str, Any] = field(default_factory=dict)
    refusals: Mapping[str, tuple[tuple[str | int, ...], str]] = field(default_factory=dict)

    @property
    def trainer(self) -> str:
        """TRL's class of the trainer."""
        return self.config.replace("Config", "Trainer")

    def lacks_reward(self, functions: Any, model: Any) -> bool:
        """True if functions can reward what it generates, and there is neither one nor a model."""
        return self.rewards_by_functions and not functions and not model

    @property
    def config_file(self) -> str:
        """The file of a bundle that TRL reads."""
        return f"{self.name}_config.yaml"

    @property
    def script(self) -> str:
        """TRL's module that trains."""
        return f"trl.scripts.{self.name}"


_CANNOT_GROUP = (
    ("random", "sequential"),
    "this trainer cannot group by length: transformers looks for `input_ids`",
)
_ONLINE_REFUSES: Mapping[str, tuple[tuple[str | int, ...], str]] = {
    "train_sampling_strategy": ((), "this trainer has a sampler of its own, by groups"),
    "steps_per_generation": (
        (),
        "say how many completions are generated together: `fixed: {generation_batch_size: ...}`",
    ),
    "vllm_tensor_parallel_size": ((1,), "this search space has no such knob"),
    "use_transformers_continuous_batching": ((), "not supported yet"),
    "use_transformers_paged": ((), "not supported yet"),
}
_GROUPS: Mapping[str, Any] = {
    "columns": ("prompt_ids",),
    "online": True,
    "completion": "max_completion_length",
    "knobs": ("generation_batch_size", "num_generations", "max_completion_length"),
    "second_model": "reward_model_name_or_path",
    "rewards_by_functions": True,
    "refusals": _ONLINE_REFUSES,
}
_COMPUTED = ((), "PPOTrainer computes it from the batch and the devices")
_PPO_REFUSES: Mapping[str, tuple[tuple[str | int, ...], str]] = {
    **dict.fromkeys(("world_size", "num_total_batches", "micro_batch_size"), _COMPUTED),
    **dict.fromkeys(("local_batch_size", "batch_size"), _COMPUTED),
    **dict.fromkeys(("local_mini_batch_size", "mini_batch_size"), _COMPUTED),
    **dict.fromkeys(
        ("model_adapter_name", "ref_adapter_name"),
        ((), "several adapters of one model are not supported"),
    ),
    "total_episodes": ((), "say how long with `num_train_epochs` or `max_steps` (updates)"),
    "sft_model_path": ((), "it is the job's `model`"),
    "reward_model_path": ((), "it is the job's own `reward_model_path`"),
    "train_sampling_strategy": (("random", "sequential"), "prompts cannot be grouped by length"),
    "max_grad_norm": ((), "PPOTrainer does not clip gradients"),
    "torch_compile": ((), "PPOTrainer does not compile its models"),
    "use_liger_kernel": ((), "PPOTrainer does not put Liger's kernels in"),
    "torch_empty_cache_steps": ((), "PPOTrainer empties the cache after each mini-batch"),
    "resume_from_checkpoint": ((), "PPOTrainer cannot go on from a checkpoint"),
    "load_best_model_at_end": ((), "PPOTrainer does not evaluate"),
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
        refusals={"train_sampling_strategy": _CANNOT_GROUP},
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
        refusals={
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
        refusals={
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
        defaults={"learning_rate": 1e-6, "loss_type": "dapo", "temperature": 1.0},
        **_GROUPS,
    ),
    Method(
        name="rloo",
        config="RLOOConfig",
        source="trainer/rloo_config.py",
        defaults={"learning_rate": 1e-6, "temperature": 1.0},
        **_GROUPS,
    ),
    Method(
        name="distillation",
        config="DistillationConfig",
        source="trainer/distillation_config.py",
        columns=("prompt_ids",),
        online=True,
        completion="max_completion_length",
        knobs=("max_completion_length",),
        second_model="teacher_model_name_or_path",
        teacher=True,
        removal=": 1.16 has it",
        install="`pip install -U 'trl>=1.16'`",
        defaults={"learning_rate": 1e-6, "temperature": 1.0},
        refusals={
            "train_sampling_strategy": ((), "this trainer has a sampler of its own"),
            "use_vllm": ((), "vLLM beside a teacher is not built yet: transformers generate"),
        },
    ),
    Method(
        name="ppo",
        config="PPOConfig",
        source="experimental/ppo/ppo_config.py",
        columns=("prompt_ids",),
        online=True,
        completion="response_length",
        knobs=(
            "local_rollout_forward_batch_size",
            "response_length",
            "num_ppo_epochs",
            "num_mini_batches",
        ),
        second_model="reward_model_path",
        value_model=True,
        evaluates=False,
        removal=": 1.12 is the last that has it",
        install="in a checkout `scripts/setup --ppo` makes an environment for it, and "
        "`.venv-ppo/bin/autotune` takes this job as it is; elsewhere make an environment, install "
        "autotune there, then `pip install trl==1.12.0`; or take `method: rloo` or `grpo`, which "
        "need no value model",
        own_script="train_ppo.py",
        defaults={
            "learning_rate": 3e-6,
            "temperature": 0.7,
            "kl_coef": 0.05,
            "kl_estimator": "k1",
            "whiten_rewards": False,
            "cliprange": 0.2,
            "cliprange_value": 0.2,
            "vf_coef": 0.1,
            "gamma": 1.0,
            "lam": 0.95,
            "num_sample_generations": 10,
            "max_grad_norm": None,
        },
        refusals=_PPO_REFUSES,
    ),
)
METHODS = {method.name: method for method in _ALL}
EXPERIMENTAL = frozenset(
    ("a2po", "async_distillation", "async_grpo", "bco", "cpo", "gkd", "gmpo", "gold", "iw_opd")
    + ("minillm", "nash_md", "online_dpo", "orpo", "prm", "sdft", "sdpo", "server_distillation")
    + ("simpo", "ssd", "tpo", "xpo")
)
"""Trainers of `trl.experimental`, now or before, that no job names (docs/not_supported.md)."""
BY_SCRIPT = (
    "`autotune run --script my_train.py` searches a script of yours that trains by it, as "
    "docs/not_supported.md says"
)
SFT = METHODS["sft"]
