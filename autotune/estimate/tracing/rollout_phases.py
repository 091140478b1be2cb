"""Tells the tracer what an online trainer is doing, and lets it decode a few tokens only.

Runs in a child only.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from autotune.estimate.protocol import RolloutTraceRequest
from autotune.estimate.records import events
from autotune.estimate.records.decoding import DECODE, GENERATION
from autotune.estimate.records.events import MICRO_STEP
from autotune.estimate.tracing.phases import StepPhases
from autotune.estimate.tracing.trace import inner_model
from autotune.estimate.tracing.tracer import Tracer
from autotune.training.patching import replaced
from autotune.training.rollout_plan import completion_length, rollout_of

STEPS = 2
SCORING = "scoring"


class Phases(ABC):
    """Marks where generation and scoring begin; makes whole completions of a few decoded tokens."""

    def __init__(
        self, tracer: Tracer, trainer: Any, request: RolloutTraceRequest, step_phases: StepPhases
    ) -> None:
        self._tracer, self._trainer, self._request = tracer, trainer, request
        self._step_phases = step_phases
        self.work: dict[str, list[events.Work]] = {}
        self.windows: list[int] = []
        self._length = completion_length(request.config)
        self._micro_step = 0
        self._all_tokens = request.tokens >= self._length
        self._decoded = 0
        tokenizer = trainer.processing_class
        special = {tokenizer.eos_token_id, tokenizer.pad_token_id}
        tracer.token = next(n for n in range(len(special) + 1) if n not in special)

    @abstractmethod
    def install(self) -> None:
        """Watch the trainer's own entry points."""

    @property
    def _opening(self) -> bool:
        """True if this is the first step, which only makes the optimizer's state."""
        return self._micro_step < self._request.micro_steps

    def _note(self, name: str) -> None:
        """Begin the list of work of `name`."""
        self.work[name] = self._tracer.works = []

    @property
    def _tokens(self) -> int:
        return 1 if self._opening and not self._all_tokens else self._request.tokens

    def _make_up(self) -> None:  # noqa: B027 (of most trainers it is nothing)
        """Make what the tokens that are not decoded would have left behind."""

    @contextlib.contextmanager
    def _decode_in_phases(self, model: Any) -> Iterator[None]:
        """Give each forward pass a phase and a list of work while `model` generates."""

        def forward(_: Any, __: Any, arguments: dict[str, Any]) -> None:
            self.windows = _windows(arguments.get("past_key_values"))
            if 0 < self._decoded == self._tokens - 1 and not self._all_tokens:
                self._tracer.enter_phase(GENERATION)
                self._tracer.works = None
                self._make_up()
            if self._decoded == 0 or self._all_tokens or not self._opening:
                self._tracer.enter_phase(GENERATION if self._decoded == 0 else DECODE)
            if self._decoded == 0:
                self._note("prefill")
            elif self._decoded < self._request.tokens - 1 or self._decoded == 1:
                self.work["before"] = self.work.get("decode", [])
                self._note("decode")
            else:
                self._note("last")
            self._decoded += 1

        self._decoded = 0
        handle = inner_model(model).register_forward_pre_hook(forward, with_kwargs=True)
        yield
        handle.remove()


class GroupPhases(Phases):
    """The phases of GRPO, RLOO and distillation."""

    def install(self) -> None:
        """Watch the trainer's own entry points."""
        trainer, request = self._trainer, self._request
        rollout = rollout_of(request.config, devices=1, seed=request.seed)
        rows = [
            {"prompt": str(n)} for n in range(len(request.prompts)) for _ in range(rollout.group)
        ][: rollout.completions]

        def loader() -> Any:
            micro_steps = STEPS * request.micro_steps
            return DataLoader([rows] * micro_steps, batch_size=None, collate_fn=lambda batch: batch)

        trainer.get_train_dataloader = loader
        trainer._tokenize_prompts = self._tokenize
        judges = getattr(trainer, "reward_processing_classes", [])
        trainer.reward_processing_classes = [self._judge_inputs for _ in judges]
        trainer._generate_single_turn = self._generation(trainer._generate_single_turn)
        trainer._generate_and_score_completions = self._scoring(
            trainer._generate_and_score_completions
        )
        trainer._prepare_inputs = self._with_real_accumulation(trainer._prepare_inputs)
        trainer.training_step = self._step(trainer.training_step)

    def _tokenize(self, prompts: Any) -> Any:
        lengths = self._request.prompts
        return [[self._tracer.token] * lengths[int(prompt)] for prompt in prompts], None, {}

    def _judge_inputs(self, text: list[str], **_: Any) -> dict[str, Any]:
        """Return what a reward model reads: whole prompts and completions, whatever its tokenizer
        makes of the text."""
        group = self._trainer.num_generations
        prompts = [self._request.prompts[n // group] for n in range(len(text))]
        widest = max(prompts) + self._length
        ids = [[self._tracer.token] * widest for _ in prompts]
        mask = [[int(at < n + self._length) for at in range(widest)] for n in prompts]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

    def _generation(self, generate: Any) -> Any:
        length, token = self._length, self._tracer.token

        def generate_in_phases(*args: Any, **kwargs: Any) -> Any:
            tokens = dict.fromkeys(("max_new_tokens", "min_new_tokens"), self._tokens)
            self._trainer.generation_kwargs |= tokens
            self._trainer.generation_config.update(**tokens)
            outer_phase = self._tracer.phase
            with self._decode_in_phases(self._trainer.model):
                completions = generate(*args, **kwargs)
            self._tracer.enter_phase(outer_phase)
            self._note("scoring")
            # GRPO answers with log-probabilities beside them, which only vLLM has.
            if not isinstance(completions, tuple):
                return _fill(completions, token, length)
            ids, scores = completions
            scores = scores and _fill(scores, scores[0][0], length)
            return _fill(ids, token, length), scores

        return generate_in_phases

    def _scoring(self, score: Any) -> Any:
        def score_in_phase(*arguments: Any, **kwargs: Any) -> Any:
            update = self._tracer.works
            self._tracer.enter_phase(SCORING)
            self._note("scoring")
            output = score(*arguments, **kwargs)
            self._tracer.enter_phase(MICRO_STEP)
            self._tracer.works = update
            return output

        return score_in_phase

    def _with_real_accumulation(self, prepare: Any) -> Any:
        """Return `prepare` as it is with all of a step's micro-steps: it divides the completions
        among them, and asks whether generation and optimizer steps begin together."""
        args, real = self._trainer.args, self._request.config["gradient_accumulation_steps"]

        def prepare_whole(inputs: Any) -> Any:
            with replaced(args, "gradient_accumulation_steps", real):
                return prepare(inputs)

        return prepare_whole

    def _step(self, training_step: Any) -> Any:
        trainer, request = self._trainer, self._request

        def step(*args: Any, **kwargs: Any) -> Any:
            first = self._micro_step % request.micro_steps == 0
            again = request.again and (self._all_tokens or not self._opening)
            trainer._step = 0 if first or again else 1
            loss = training_step(*args, **kwargs)
            self._micro_step += 1
            return loss

        return step


def _windows(cache: Any) -> list[int]:
    """Return how many tokens the cache of each layer keeps at most; 0: all."""
    return [getattr(layer, "sliding_window", None) or 0 for layer in getattr(cache, "layers", ())]


def _fill(rows: list[list[Any]], value: Any, length: int) -> list[list[Any]]:
    return [[*row, *[value] * (length - len(row))] for row in rows]
