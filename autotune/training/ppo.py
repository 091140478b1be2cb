"""Candidates as real `PPOTrainer` of TRL's experimental part, put together as the bundle does it.

Its bundle launches `train_ppo.py`; probes make their trainer with the same functions.
While a probe or a trace runs, responses do not end early: no stop token is looked for.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from transformers import TrainerCallback
from trl import ModelConfig
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

from autotune.training import train_ppo
from autotune.training.family import PROBE_OVERRIDES, Family, Models
from autotune.training.online import Listener, random_reward_model
from autotune.training.patching import replaced, require
from autotune.training.quantized import quantization_of
from autotune.training.spec import TrainerSpec


class PpoFamily(Family):
    """Proximal policy optimization."""

    method = "ppo"
    trainer_class = PPOTrainer
    script_arguments = train_ppo.PPOScriptArguments
    overrides = {
        **PROBE_OVERRIDES,
        "stop_token": None,
        "stop_token_id": None,
        "num_sample_generations": 0,
    }

    def training_arguments(self) -> Any:
        """Return the training arguments, of TRL's experimental part."""
        return PPOConfig

    def parse(self, config: dict[str, Any], scratch: Path) -> tuple[Any, Any, ModelConfig]:
        """Parse as for all methods; PPOConfig lacks the `trust_remote_code` that theirs have."""
        check_stop(config.get("stop_token"), config.get("stop_token_id"))
        script, training, model = super().parse(config, scratch)
        training.trust_remote_code = script.trust_remote_code
        return script, training, model

    def load_models(self, spec: TrainerSpec, training: Any, model: ModelConfig) -> Models:
        """Return the models as the bundle's script loads them."""
        quantization_of(model)  # else a missing bitsandbytes would not be named
        training.reward_model_path = _reward_path(spec)
        script = train_ppo.PPOScriptArguments(
            copy_reference=_copies(spec), trust_remote_code=training.trust_remote_code
        )
        models = train_ppo.load_models(script, training, model)
        return Models(
            policy=models["model"],
            reference=models["ref_model"],
            value=models["value_model"],
            rewards=[models["reward_model"]],
        )

    def models(self, spec: TrainerSpec, training: Any, model: ModelConfig, device: str) -> Models:
        """Return models of random weights; value and reward model are of one shape."""
        needs_copy = _copies(spec) or not model.use_peft
        judges = [
            random_reward_model(_reward_path(spec), training, model, device) for _ in range(2)
        ]
        return Models(
            policy=self.random_model(spec, training, model, device),
            reference=self.random_model(spec, training, model, device) if needs_copy else None,
            value=judges[0],
            rewards=judges[1:],
        )

    def build(
        self, training: Any, model: ModelConfig, rows: Any, models: Models, tokenizer: Any
    ) -> Any:
        """Return the trainer, as the bundle's script makes it; of rows that are tokenized or
        not."""
        # Else the precision of an earlier trainer of this process would be kept.
        AcceleratorState._reset_state()
        tokenizer = train_ppo.prepared_tokenizer(tokenizer)
        if "input_ids" not in rows.column_names:
            rows = train_ppo.tokenized(rows, tokenizer)
        parts = {
            "model": models.policy,
            "ref_model": models.reference,
            "reward_model": models.rewards[0],
            "value_model": models.value,
        }
        return train_ppo.make_trainer(training, model, tokenizer, parts, rows, None)

    def policy(self, trainer: Any) -> Any:
        """Return the model that writes; the trainer's model holds the value model as well."""
        return trainer.policy_model

    def train(self, trainer: Any) -> None:
        """Train until a callback asks for the end, which PPOTrainer does not look for."""
        trainer.add_callback(_Stop())
        with contextlib.suppress(_Enough):
            trainer.train()

    @contextlib.contextmanager
    def follow(self, trainer: Any, listener: Listener) -> Iterator[None]:
        """Tell `listener` within this block when the phases of an update begin, and their results.

        Raises:
            MissingHook: this TRL generates in another function.
        """
        require(ppo_trainer, "batch_generation")
        accelerator, optimizer = trainer.accelerator, trainer.optimizer
        accumulate, backward, step = accelerator.accumulate, accelerator.backward, optimizer.step
        generate = ppo_trainer.batch_generation

        def generated(model: Any, queries: Any, *args: Any) -> Any:
            listener.enter("generation")
            responses, logits = generate(model, queries, *args)
            listener.enter("scoring")
            listener.generated(len(responses), responses.shape[1] - queries.shape[1])
            return responses, logits

        @contextlib.contextmanager
        def accumulated(*models: Any) -> Iterator[None]:
            listener.enter("update")
            with accumulate(*models):
                yield
            listener.enter("optimizer")

        def backwards(loss: Any) -> None:
            backward(loss)
            listener.micro_step(loss.detach())

        @functools.wraps(step)
        def stepped(*args: Any) -> Any:
            if not accelerator.sync_gradients:
                return step(*args)
            listener.before_step(trainer.model, lenient=trainer.args.fp16)
            phase = listener.enter("optimizer")
            result = step(*args)
            listener.enter(phase)
            return result

        replacements: list[tuple[Any, str, Callable[..., Any]]] = [
            (ppo_trainer, "batch_generation", generated),
            (accelerator, "accumulate", accumulated),
            (accelerator, "backward", backwards),
            (optimizer, "step", stepped),
        ]
        with contextlib.ExitStack() as stack:
            for owner, name, function in replacements:
                stack.enter_context(replaced(owner, name, function))
            yield


class _Enough(Exception):
    """Ends a training that cannot be asked to end."""


class _Stop(TrainerCallback):
    """The last of the callbacks, which ends the training."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave, where another one asked for it."""
        if control.should_training_stop:
            raise _Enough


def check_stop(token: Any, token_id: Any) -> None:
    """Refuse stop tokens that PPOTrainer refuses once its models are made.

    Raises:
        ValueError: there is no such, or there are two.
    """
    if token not in (None, "eos"):
        raise ValueError(f"`stop_token` cannot be `{token}`; choose from `eos`, `null`")
    if token is not None and token_id is not None:
        raise ValueError("`stop_token` and `stop_token_id` are both set; keep one")


def _reward_path(spec: TrainerSpec) -> str:
    """Return the reward model's path; where the job names none, reward and value model are taken to
    be of the policy's shape."""
    path: str = spec.config.get("reward_model_path") or spec.model_path
    return path


def _copies(spec: TrainerSpec) -> bool:
    return bool(spec.config.get("copy_reference"))
