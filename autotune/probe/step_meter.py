"""Times and checks the steps of a real trainer, from inside the child.

What is timed: a micro-step from the end of the one before it to its own end (forward, backward and
the Trainer's bookkeeping), the optimizer step from the last micro-step to the end of the step
(clipping, update, schedule, zeroing), and the wait for data before a step. On a GPU the clock is
read after a synchronisation. What is not covered: logging, evaluation, saving.

The order of steps in a probe:
    step 0     representative micro-batches; creates gradients and optimizer states (warm-up)
    step 1     the same, the last of them the worst micro-batch: with everything else in memory
    then       rounds over the timed micro-batches, until the time is known or the cap is reached
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from autotune.probe.memory import CpuMemory, CudaMemory
from autotune.probe.throughput import (
    NO_PREPARATION,
    MicroStep,
    Preparation,
    Throughput,
    throughput,
)
from autotune.process import clock
from autotune.process.progress import Progress
from autotune.training.batch_plan import Batching, batch_size
from autotune.training.ranks import SINGLE_RANK, Ranks

WARM_UP_STEPS = 2
MIN_ROUNDS, MAX_ROUNDS = 2, 8
ENOUGH_SECONDS = 10.0
GOAL = 0.02
"""Relative uncertainty at which a probe has measured enough."""
CLOSE = 0.05
"""A probe that is no further below the one to beat is measured twice as well, for twice as long."""


class NotFinite(Exception):
    """The loss or the gradient norm is not a finite number."""


def enough(
    tokens_per_s: float, uncertainty: float | None, seconds: float, to_beat: float | None
) -> bool:
    """True if a probe has measured enough: it knows its speed, or has measured for long; twice as
    well, or twice as long, where it comes near the one to beat."""
    care = 2.0 if to_beat is not None and tokens_per_s >= (1 - CLOSE) * to_beat else 1.0
    precise = uncertainty is not None and uncertainty <= GOAL / care
    return precise or seconds > care * ENOUGH_SECONDS


def gradient_norm(model: Any, *, lenient: bool) -> float | None:
    """Return the norm of all gradients; None where it is not finite and that is let pass.

    Args:
        lenient: under fp16 the first steps overflow until the loss scale fits: no instability.

    Raises:
        NotFinite: it is not, and should be.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not gradients:  # DeepSpeed keeps them elsewhere
        return None
    norm = total_norm(gradients)
    if math.isfinite(norm):
        return norm
    if not lenient:
        raise NotFinite(f"the gradient norm is {norm}")
    return None


def total_norm(gradients: list[Any]) -> float:
    """Return the norm of gradients that may be divided among ranks."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


class Schedule:
    """The order of the micro-batches, as positions in the plan (-1: the worst)."""

    def __init__(self, plan: Any, accumulation: int):
        self.accumulation = accumulation
        count = len(plan.timed)
        # A round is a whole number of optimizer steps; what fills it up is timed once more.
        self.steps_per_round = -(-count // accumulation)
        filled = [n % count for n in range(self.steps_per_round * accumulation)]
        warm_up_order = [n % count for n in range(accumulation)]
        self.order = warm_up_order + warm_up_order[:-1] + [-1] + filled * MAX_ROUNDS
        self.steps = WARM_UP_STEPS + self.steps_per_round * MAX_ROUNDS

    def batches(self, plan: Any) -> list[list[Any]]:
        """Return the micro-batches in their order."""
        return [plan.worst if n < 0 else plan.timed[n] for n in self.order]


class StepMeter(TrainerCallback):
    """The clock of one trainer: wraps its `training_step`, and is one of its callbacks.

    Args:
        plan: a `Plan`, or an object with the same micro-batches of rows, collated elsewhere.
        batching: None: collated elsewhere, so that sizes are seen only.
    """

    def __init__(
        self,
        plan: Any,
        schedule: Schedule,
        batching: Batching | None,
        accumulation: int,
        progress: Progress,
        memory: CpuMemory | CudaMemory,
        to_beat: float | None = None,
        preparation: Preparation = NO_PREPARATION,
        ranks: Ranks = SINGLE_RANK,
    ):
        self._ranks, self._memory = ranks, memory
        self._to_beat, self._preparation = to_beat, preparation
        self._plan, self._schedule, self._batching = plan, schedule, batching
        self._accumulation, self._progress = accumulation, progress
        self._count = 0
        self._mark = 0.0
        self._measuring_since = 0.0
        self._waited: clock.ProcessorWait | None = None
        self.steps: list[MicroStep] = []
        self.optimizer_s: list[float] = []
        self.wait_s: list[float] = []
        self.last_loss: float | None = None
        self.gradient_norm: float | None = None
        self.result: Throughput | None = None

    def attach(self, trainer: Any) -> None:
        """Start timing `trainer`."""
        trainer.add_callback(self)
        trainer.training_step = self._timed(trainer.training_step)

    def sizes(self, position: int, inputs: Any) -> tuple[int, int]:
        """Return (tokens, tokens with padding) of a micro-batch.

        Raises:
            RuntimeError: it is not the one that was planned.
        """
        assert self._batching is not None
        rows = self._plan.worst if position < 0 else self._plan.timed[position]
        tokens, padded = batch_size(rows, self._batching)
        # By Ulysses' way a process is given its part of each row already.
        if inputs["input_ids"].numel() * self._ranks.sharding.sp_size != padded:
            raise RuntimeError(
                f"micro-batch {self._count} was planned with {padded} tokens, but the "
                f"trainer formed one of {inputs['input_ids'].numel()}"
            )
        return tokens, padded

    def _timed(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        def step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            position = self._schedule.order[self._count]
            tokens, padded = self.sizes(position, inputs)
            loss = training_step(model, inputs, *args, **kwargs)
            now = clock.now()
            seconds, self._mark = now - self._mark, now
            self.last_loss = float(loss)
            if not math.isfinite(self.last_loss):
                raise NotFinite(f"the loss is {self.last_loss} at micro-step {self._count}")
            if self._measuring:
                self.steps.append(
                    MicroStep(
                        position=position, tokens=tokens, padded_tokens=padded, seconds=seconds
                    )
                )
            self._count += 1
            event = {"seconds": seconds, "padded_tokens": padded, "loss": self.last_loss}
            self._progress.tell("micro_step", n=self._count, **event)
            return loss

        return step

    @property
    def _measuring(self) -> bool:
        return self._count >= WARM_UP_STEPS * self._schedule.accumulation

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin the wait for the first batch."""
        self._mark = clock.now()
        self._waited = clock.ProcessorWait(self._ranks.processes, args.dataloader_num_workers)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the wait for data: all micro-batches of the step have been fetched."""
        self._progress.tell("step", n=state.global_step)
        now = clock.now()
        if self._measuring:
            self.wait_s.append((now - self._mark) / self._schedule.accumulation)
            if not self._measuring_since:
                self._measuring_since = self._mark
                workers = args.dataloader_num_workers
                self._waited = clock.ProcessorWait(self._ranks.processes, workers)
        self._mark = now

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """Look at the gradients after clipping, in the first step."""
        if not self._measuring and self.gradient_norm is None:
            self.gradient_norm = gradient_norm(model, lenient=args.fp16)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note an optimizer step: it may complete a round, and the probe with it."""
        now = clock.now()
        rounds, steps_over = divmod(
            state.global_step - WARM_UP_STEPS, self._schedule.steps_per_round
        )
        if state.global_step > WARM_UP_STEPS:
            self.optimizer_s.append(now - self._mark)
            if rounds >= 1:  # each planned micro-batch has been timed
                self._estimate(state.global_step - WARM_UP_STEPS)
            if steps_over == 0:
                self._end_of_round(rounds, now, control)
        else:
            waited = self.processor_wait_share
            self._progress.tell(
                "warm_up",
                step=state.global_step,
                processor_wait_share=waited,
                peak_memory_bytes=self._memory.figures()["peak_memory_bytes"],
            )
        self._mark = clock.now()

    @property
    def processor_wait_share(self) -> float | None:
        """Part of the timed steps that the threads waited for a core; before them, of all steps."""
        return None if self._waited is None else self._waited.share

    def _estimate(self, step: int) -> None:
        """Report what is known after `step` timed optimizer steps.

        Not before each planned micro-batch was timed: on two of them alone, the speed of a
        candidate that groups rows by length was 40% off, and it was stopped though it was the best.
        """
        self.result = throughput(
            self.steps,
            self.optimizer_s,
            self.wait_s,
            self._plan.sample,
            self._accumulation,
            self._preparation,
            self._ranks.sharding.replicas,
        )
        self._progress.tell(
            "estimate",
            step=step,
            tokens_per_s=self.result.tokens_per_s,
            optimistic_tokens_per_s=self.result.optimistic_tokens_per_s,
            relative_uncertainty=self.result.relative_uncertainty,
            processor_wait_share=self.processor_wait_share,
            peak_memory_bytes=self._memory.figures()["peak_memory_bytes"],
        )

    def _end_of_round(self, rounds: int, now: float, control: Any) -> None:
        assert self.result is not None
        precise = rounds >= MIN_ROUNDS and enough(
            self.result.tokens_per_s,
            self.result.relative_uncertainty,
            now - self._measuring_since,
            self._to_beat,
        )
        if rounds >= MAX_ROUNDS or self._ranks.all_agree(precise):
            control.should_training_stop = True
