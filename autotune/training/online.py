"""Candidates as real `trl.GRPOTrainer` and `trl.RLOOTrainer`: the policy learns from its own texts.

While a probe or a trace runs, every completion has its full length: the end-of-sequence token is
not drawn before. A launch takes at most that memory and that time.

Where a candidate generates with vLLM, the trainer takes vLLM's path with transformers' generation
in its place (`StandIn`). All else is TRL's own: the trainer puts adapters and weights together for
vLLM, scores the completions once more for vLLM's importance sampling, and trains. vLLM itself is
not run. The completions come from the path that the trainer has without vLLM; the memory for it is
given back before the training goes on.
"""

import contextlib
import gc
import importlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
import transformers
import trl.rewards
from trl import GRPOTrainer, ModelConfig, RLOOTrainer, get_peft_config
from trl.generation.vllm_generation import VLLMGeneration
from trl.scripts.grpo import GRPOScriptArguments
from trl.scripts.rloo import RLOOScriptArguments

from autotune.facts.model import model_config
from autotune.process.memory_errors import is_out_of_memory
from autotune.training.distributed import in_unison
from autotune.training.family import PROBE_OVERRIDES, Family, Models, from_config
from autotune.training.patching import replaced, require
from autotune.training.spec import TrainerSpec, Unsupported

OVERLONG = "get_soft_overlong_punishment"
Ids = list[list[int]]
TOO_LARGE = (
    "transformers' generation, which takes vLLM's place in a probe, does not fit on ranks that "
    "generate in step: what the training takes beside vLLM was not measured"
)


class OnlineFamily(Family):
    """The common part of the families of GRPO and RLOO."""

    overrides = {
        **PROBE_OVERRIDES,
        "shuffle_dataset": False,
        # All completions have their full length here: none would be left to learn from.
        "mask_truncated_completions": False,
    }
    hooks: ClassVar[tuple[str, ...]] = (
        "_tokenize_prompts",
        "_generate_single_turn",
        "_generate_and_score_completions",
    )

    def parse(self, config: dict[str, Any], scratch: Path) -> tuple[Any, Any, ModelConfig]:
        """Parse as for all methods, but that completions do not end early."""
        length = config.get("max_completion_length")
        if length is not None:
            arguments = config.get("generation_kwargs") or {}
            config = {**config, "generation_kwargs": {**arguments, "min_new_tokens": length}}
        return super().parse(config, scratch)

    def load_models(self, spec: TrainerSpec, training: Any, model: ModelConfig) -> Models:
        """Return the policy and what rewards it, by name."""
        models = super().load_models(spec, training, model)
        return replace(models, rewards=reward_functions(spec.config))

    def models(self, spec: TrainerSpec, training: Any, model: ModelConfig, device: str) -> Models:
        """Return models of random weights, the reference too where it is one of its own."""
        policy = self.random_model(spec, training, model, device)
        needs_copy = training.beta != 0.0 and not model.use_peft
        reference = self.random_model(spec, training, model, device) if needs_copy else None
        rewards = reward_functions(spec.config)
        for index, reward in enumerate(rewards):
            if isinstance(reward, str):
                rewards[index] = random_reward_model(reward, training, model, device)
        return Models(policy=policy, reference=reference, rewards=rewards)

    def build(
        self, training: Any, model: ModelConfig, rows: Any, models: Models, tokenizer: Any
    ) -> Any:
        """Return the trainer, as TRL's script makes it; it would load its reference by itself."""
        tokenizer.padding_side = tokenizer.truncation_side = "left"
        # One that was asked for vLLM would look for it.
        with self._reference_given(models.reference), replaced(training, "use_vllm", False):
            trainer = self.trainer_class(
                model=models.policy,
                reward_funcs=models.rewards,
                reward_processing_classes=[
                    _read_by(reward, tokenizer) for reward in models.rewards
                ],
                args=training,
                train_dataset=rows,
                processing_class=tokenizer,
                quantization_config=self.quantization(model, models),
                peft_config=get_peft_config(model),
            )
        return on_vllms_path(trainer) if training.use_vllm else trainer

    @contextlib.contextmanager
    def _reference_given(self, reference: Any) -> Iterator[None]:
        if reference is None:
            yield
            return
        module: Any = sys.modules[self.trainer_class.__module__]
        require(module, "create_model_from_path")
        with replaced(module, "create_model_from_path", lambda *_, **__: reference):
            yield

    @contextlib.contextmanager
    def follow(self, trainer: Any, listener: "Listener") -> Iterator[None]:
        """Tell `listener` within this block when the phases of a step begin, and their results."""
        generate, score = trainer._generate_single_turn, trainer._generate_and_score_completions
        train = trainer.training_step

        def generated(*args: Any, **kwargs: Any) -> Any:
            phase = listener.enter("generation")
            result = generate(*args, **kwargs)
            listener.enter(phase)
            return result

        def scored(*args: Any, **kwargs: Any) -> Any:
            phase = listener.enter("scoring")
            output = score(*args, **kwargs)
            listener.enter(phase)
            listener.generated(*output["completion_ids"].shape)
            return output

        def trained(*args: Any, **kwargs: Any) -> Any:
            phase = listener.enter("update")
            loss = train(*args, **kwargs)
            listener.enter(phase)
            listener.micro_step(loss)
            return loss

        with contextlib.ExitStack() as stack:
            for name, function in (
                ("_generate_single_turn", generated),
                ("_generate_and_score_completions", scored),
                ("training_step", trained),
            ):
                stack.enter_context(replaced(trainer, name, function))
            yield


class Listener(Protocol):
    """A listener to the phases of an online trainer."""

    def enter(self, phase: str) -> str:
        """Count from now on to `phase` (generation, scoring, update, or the rest of a step); return
        the phase before."""

    def generated(self, rows: int, length: int) -> None:
        """Note that `rows` completions have been generated, padded to `length` tokens."""

    def micro_step(self, loss: Any) -> None:
        """Note that a forward and backward pass is done."""

    def before_step(self, model: Any, *, lenient: bool) -> None:
        """Note that all gradients are there."""


class GrpoFamily(OnlineFamily):
    """Group relative policy optimization."""

    method = "grpo"
    trainer_class = GRPOTrainer
    script_arguments = GRPOScriptArguments


class RlooFamily(OnlineFamily):
    """REINFORCE leave-one-out."""

    method = "rloo"
    trainer_class = RLOOTrainer
    script_arguments = RLOOScriptArguments


def reward_functions(config: dict[str, Any]) -> list[Any]:
    """Return the rewards of completions in the order of TRL's scripts: models by name, functions.

    Raises:
        ValueError: there is no such function.
    """
    functions: list[Any] = []
    if config.get("reward_model_name_or_path"):
        functions.append(config["reward_model_name_or_path"])
    return functions + [reward_function(name) for name in config.get("reward_funcs") or []]


def reward_function(name: str) -> Callable[..., Any]:
    """Return one of TRL's functions by its name, or any by its import path.

    Raises:
        ValueError: there is no such function.
    """
    known_functions: dict[str, Callable[..., Any]] = {
        n: getattr(trl.rewards, n)
        for n in ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")
    }
    # With the figures that TRL's scripts give it.
    known_functions[OVERLONG] = trl.rewards.get_soft_overlong_punishment(
        max_completion_len=1280, soft_punish_cache=256
    )
    if name in known_functions:
        return known_functions[name]
    module, _, function = name.rpartition(".")
    if not module:
        raise ValueError(f"unknown reward function `{name}`; TRL has {', '.join(known_functions)}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise ValueError(f"unknown reward function `{name}`: {error}") from error


def _read_by(reward: Any, tokenizer: Any) -> Any:
    """Return the policy's tokenizer for a model of random weights that has none of its own; None
    where the trainer looks for one itself."""
    if not isinstance(reward, torch.nn.Module):
        return None
    config: Any = reward.config
    try:
        transformers.AutoTokenizer.from_pretrained(config.name_or_path)
    except (OSError, ValueError):
        return tokenizer
    return None


def random_reward_model(path: str, training: Any, model: ModelConfig, device: str) -> Any:
    """Return a reward model of the shape at `path` with random weights, on `device`; of the
    policy's data type and attention, as TRL loads it."""
    config = model_config(path, "reward", trust_remote_code=training.trust_remote_code)
    return from_config(config, path, "reward", model, device)


class StandIn(VLLMGeneration):
    """A stand-in for vLLM's part of an online trainer: transformers generate."""

    def __init__(self, trainer: Any) -> None:
        require(VLLMGeneration, "_iter_named_params")
        require(type(trainer), "_generate_single_turn")
        self.model, self.accelerator = trainer.model, trainer.accelerator
        self._dist = getattr(trainer, "_dist", None)
        self._trainer = trainer
        self.parts = 1
        """The largest number of parts into which a generation had to be divided."""
        self._calls = 0

    def sync_weights(self) -> None:
        """Go over the weights as they would be given to vLLM, adapters merged."""
        for _ in self._iter_named_params():
            pass

    def generate(
        self, prompts: Ids, images: Any, num_generations: int, profiler: Any = None
    ) -> tuple[Ids, Ids, Any, Any]:
        """Return completions with, for each token, a log-probability that is as good as any."""
        self._calls = 0
        completions = self._halved(prompts, num_generations)
        self.parts = max(self.parts, self._calls)
        torch.cuda.empty_cache()
        even_logp = -math.log(self.model.config.get_text_config().vocab_size)
        return prompts, completions, [[[even_logp]] * len(ids) for ids in completions], None

    def _halved(self, prompts: Ids, each: int) -> Ids:
        """Generate all at once; where that does not fit, one half after the other.

        Raises:
            Unsupported: it does not fit on a rank whose peers wait for it at every token.
        """
        try:
            ids = self._by_transformers(prompts, each)
            self._calls += 1
            return ids
        except (RuntimeError, MemoryError) as error:
            if len(prompts) == 1 or not is_out_of_memory(error):
                raise
            if in_unison(self._trainer):
                raise Unsupported(TOO_LARGE) from error
        gc.collect()
        torch.cuda.empty_cache()
        half = len(prompts) // 2
        return self._halved(prompts[:half], each) + self._halved(prompts[half:], each)

    def _by_transformers(self, prompts: Ids, each: int) -> Ids:
        trainer, generate = self._trainer, type(self._trainer)._generate_single_turn
        # GRPO of TRL 1.16 asks for it, others do not.
        more = (
            {"num_generations": each} if "num_generations" in signature(generate).parameters else {}
        )
        with replaced(trainer, "use_vllm", False):
            output = generate(trainer, prompts, None, {}, **more)
        ids: Ids = output[0] if isinstance(output, tuple) else output
        return ids


def on_vllms_path(trainer: Any) -> Any:
    """Put a trainer that was made for transformers' generation on the path that it takes with
    vLLM."""
    trainer.vllm_generation = StandIn(trainer)
    trainer.use_vllm = trainer.args.use_vllm = True
    trainer._last_loaded_step = -1
    return trainer
