"""The common part of all trainers: TRL's parser, the tokenizer, models of random weights.

The configuration goes through TRL's own parser, from the very YAML the bundle will hold, and each
family puts its trainer together as TRL's script of that name does; so a probe trains what the
bundle trains. The only differences are named in `overrides`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
import trl
import yaml
from accelerate import init_empty_weights
from trl import (
    DatasetMixtureConfig,
    ModelConfig,
    ScriptArguments,
    TrlParser,
    get_peft_config,
)

from autotune.facts.model import model_class, model_config
from autotune.job.methods import METHODS
from autotune.space.knobs import EXPERT_KERNELS
from autotune.space.sharding.sharding import FSDP
from autotune.training.batch_plan import Batching
from autotune.training.patching import require
from autotune.training.quantized import (
    built_whole,
    is_quantized,
    keep_trainable,
    quantization_of,
    quantize_empty,
)
from autotune.training.spec import TrainerSpec

PROBE_OVERRIDES: dict[str, Any] = {
    # The rows come in the order in which they are to be timed.
    "train_sampling_strategy": "sequential",
    "num_train_epochs": 1,
    # A probe leaves nothing behind and says nothing.
    "eval_strategy": "no",
    "eval_on_start": False,
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "report_to": "none",
    "logging_strategy": "no",
    "disable_tqdm": True,
    "resume_from_checkpoint": None,
}


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models of a trainer, made before it; `reference` only where it holds one of its own.

    `rewards` are models and functions. `teacher` need not be like the others.
    """

    policy: Any
    reference: Any = None
    value: Any = None
    rewards: list[Any] = field(default_factory=list)
    teacher: Any = None

    @property
    def alike(self) -> tuple[Any, ...]:
        """The models that have the policy's layers, or are expected to."""
        return (self.policy, self.reference, self.value, *self.rewards)

    def modules(self) -> tuple[Any, ...]:
        """Return the models that exist as modules: a name stands for one that the trainer loads."""
        models = (*self.alike, self.teacher)
        return tuple(model for model in models if isinstance(model, torch.nn.Module))


class Family:
    """The recipe for the trainers of one method."""

    method: ClassVar[str]
    trainer_class: ClassVar[Any]
    script_arguments: ClassVar[Any] = ScriptArguments
    overrides: ClassVar[dict[str, Any]] = PROBE_OVERRIDES
    hooks: ClassVar[tuple[str, ...]] = ()
    """Methods of TRL's trainer that are replaced or listened to."""

    def parse(self, config: dict[str, Any], scratch: Path) -> tuple[Any, Any, ModelConfig]:
        """Return (ScriptArguments, training arguments, ModelConfig) of a flat configuration.

        Raises:
            ValueError: TRL or transformers refuse a field or a combination.
        """
        scratch.mkdir(parents=True, exist_ok=True)
        file = scratch / METHODS[self.method].config_file
        file.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
        kinds = (self.script_arguments, self.training_arguments(), ModelConfig)
        parser = TrlParser((*kinds, DatasetMixtureConfig))
        script, training, model, _ = parser.parse_args_and_config(["--config", str(file)])
        return script, training, model

    def training_arguments(self) -> Any:
        """Return TRL's class of the training arguments."""
        return getattr(trl, METHODS[self.method].config)

    def trainer(
        self,
        spec: TrainerSpec,
        training: Any,
        model: ModelConfig,
        rows: Any,
        models: Models | None = None,
    ) -> Any:
        """Return the trainer of a candidate on `rows`, its models on the device.

        Args:
            models: the models, where they have been made already (a trace has some without data).

        Raises:
            MissingHook: this TRL's trainer has no place any more to take hold of it.
        """
        if self.hooks:
            require(getattr(trl, METHODS[self.method].trainer), *self.hooks)
        if models is None and spec.weights == "real":
            training.model_init_kwargs = model_kwargs(training, model)
            models = self.load_models(spec, training, model)
        elif models is None:
            models = self.models(spec, training, model, spec.device_kind)
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            spec.model_path,
            trust_remote_code=training.trust_remote_code,
            **_revision(spec, model.model_revision),
        )
        trainer = self.build(training, model, rows, models, tokenizer)
        keep_trainable(trainer.model)
        return trainer

    def load_models(self, spec: TrainerSpec, training: Any, model: ModelConfig) -> Models:
        """Return the models with their weights; by name where the trainer loads them."""
        return Models(policy=spec.model_path)

    def models(self, spec: TrainerSpec, training: Any, model: ModelConfig, device: str) -> Models:
        """Return models of random weights, on `device`."""
        return Models(policy=self.random_model(spec, training, model, device))

    def build(
        self, training: Any, model: ModelConfig, rows: Any, models: Models, tokenizer: Any
    ) -> Any:
        """Return the trainer, as TRL's script makes it."""
        reference = {"ref_model": models.reference} if METHODS[self.method].reference else {}
        return self.trainer_class(
            model=models.policy,
            args=training,
            train_dataset=rows,
            processing_class=tokenizer,
            quantization_config=self.quantization(model, models),
            peft_config=get_peft_config(model),
            **reference,
        )

    def quantization(self, model: ModelConfig, models: Models) -> Any:
        """Return how the trainer is to load the base; None where it is made already: then it has
        been quantised, and some trainers refuse the request."""
        return quantization_of(model) if isinstance(models.policy, str) else None

    def policy(self, trainer: Any) -> Any:
        """Return the model that is trained, with its adapters."""
        return trainer.model

    def train(self, trainer: Any) -> None:
        """Train until the trainer's callbacks say that it is enough."""
        trainer.train()

    def problem(self, trainer: Any, batching: Batching) -> str | None:
        """Return why this trainer must not be used although it runs; None: it may."""
        return None

    def before_training_s(self, trainer: Any) -> float:
        """Return the seconds of work before the training, for each real token of the data."""
        return 0.0

    def random_model(
        self, spec: TrainerSpec, training: Any, model: ModelConfig, device: str
    ) -> Any:
        """Return the model of the same shape with random weights, made on `device` itself; where
        FSDP divides it, on the host."""
        config = model_config(
            spec.model_path,
            self.method,
            trust_remote_code=training.trust_remote_code,
            **_revision(spec, model.model_revision),
        )

        if experts := _own_kwargs(training).get(EXPERT_KERNELS):
            config._experts_implementation = experts

        def submodel(place: str) -> Any:
            return from_config(config, spec.model_path, self.method, model, place)

        if device != "meta" and is_quantized(model):
            with built_whole():
                return quantize_empty(submodel("meta"), model, device)
        if spec.parsed_sharding.distributed_type == FSDP and device != "meta":
            return whole_on_first_rank(submodel)
        return submodel(device)


def from_config(config: Any, path: str, method: str, model: ModelConfig, device: str) -> Any:
    """Return a model of a method's class with random weights, made on `device` itself."""
    # As `from_pretrained` leaves it: what a Trainer asks the config for later.
    config.name_or_path = path
    kind = getattr(torch, model.dtype) if model.dtype != "auto" else config.dtype
    with torch.device(device):
        return model_class(config, method)._from_config(
            config,
            dtype=kind or torch.float32,
            attn_implementation=model.attn_implementation,
        )


def model_kwargs(training: Any, model: ModelConfig) -> dict[str, Any]:
    """Return the arguments that TRL's scripts pass on to `from_pretrained`."""
    return {
        "revision": model.model_revision,
        "trust_remote_code": training.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **_own_kwargs(training),
    }


def _own_kwargs(training: Any) -> dict[str, Any]:
    """Return what the job passes to `from_pretrained`; PPO's arguments have no such field."""
    return getattr(training, "model_init_kwargs", None) or {}


def _revision(spec: TrainerSpec, revision: str) -> dict[str, str]:
    return {} if Path(spec.model_path).exists() else {"revision": revision}


def whole_on_first_rank(make: Callable[[str], Any]) -> Any:
    """Return a model on the host, with weights on the first rank only; the others have untouched
    room for them, until FSDP gives each its part.

    transformers does the same with `fsdp_cpu_ram_efficient_loading`.

    Args:
        make: makes the model on a device.
    """
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        return make("cpu")
    with init_empty_weights(include_buffers=False):
        model = make("cpu")
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                room = torch.empty_like(weight, device="cpu")
                module._parameters[name] = torch.nn.Parameter(room, weight.requires_grad)
    model.tie_weights()
    return model
