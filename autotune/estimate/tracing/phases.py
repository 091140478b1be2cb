"""Tells the tracer what a trainer is doing, and gathers the work of each step.

Runs in a child only.
"""

from itertools import accumulate
from typing import Any

import torch
import transformers

from autotune.estimate.records import events
from autotune.estimate.records.events import DATA, MICRO_STEP, STEP
from autotune.estimate.tracing.tracer import Tracer


class StepPhases(transformers.TrainerCallback):
    """Tells the tracer what the trainer is doing, and gathers the work of each step."""

    def __init__(self, tracer: Tracer, trainer: Any, micro_steps: list[int]) -> None:
        self._tracer = tracer
        self._trainer = trainer
        self._last = set(accumulate(micro_steps))
        self.micro_work: list[list[events.Work]] = []
        self.first_work: list[events.Work] = []
        self.optimizer_work: list[events.Work] = []
        self._micro_steps = 0
        self._label_gradients(trainer.model)
        self._training_step_of_trainer = trainer.training_step
        trainer.training_step = self._training_step
        trainer.add_callback(self)

    def _label_gradients(self, model: Any) -> None:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(
                    lambda p: self._tracer.count_as(p.grad, events.GRADIENTS)
                )

    def _training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.begin()
        loss = self._training_step_of_trainer(*args, **kwargs)
        self.end("clip")
        return loss

    def begin(self) -> None:
        """A micro-step begins."""
        self._micro_steps += 1
        self._tracer.enter_phase(MICRO_STEP)
        self._tracer.works = [] if self._micro_steps in {1, *self._last} else None

    def end(self, following: str) -> None:
        """It is done; what follows is the phase of that name."""
        last = self._micro_steps in self._last
        if last:
            self.micro_work.append(self._tracer.works or [])
        elif self._micro_steps == 1:
            self.first_work = self._tracer.works or []
        self._tracer.works = [] if last else None
        self._tracer.enter_phase(following)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The batches of the first step are fetched next."""
        self._tracer.enter_phase(DATA)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The batches of the next step are fetched next."""
        self._tracer.enter_phase(DATA)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Gradients are clipped; the optimizer steps next."""
        self._tracer.enter_phase(STEP)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """The optimizer has its state now."""
        self.optimizer_work, self._tracer.works = self._tracer.works or [], None
        optimizer = getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)
        for parameter, state in optimizer.state.items():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self._tracer.belongs_with(value, parameter)
                    self._tracer.count_as(value, events.OPTIMIZER)
        self._tracer.enter_phase("zero_grad")
