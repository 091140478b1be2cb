"""Times the phases of a real online trainer, from inside the child, and takes the peak of each.

Scoring is the work of a trainer between generation and the first micro-step of a round
(log-probabilities of policy and reference, rewards); the update is each micro-step's forward and
backward pass; the optimizer's step is the rest. Where each begins, the family knows. On a GPU the
clock is read after a synchronisation. The order of cycles in a probe:

    cycle 0    representative prompts; creates gradients and optimizer states (warm-up)
    cycle 1    the longest prompts: with everything else in memory
    then       the timed ones, all on the same prompts, until the time is known
"""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from autotune.probe.memory import CpuMemory, CudaMemory
from autotune.probe.step_meter import NotFinite, enough, gradient_norm
from autotune.probe.throughput import PHASES, CycleTime, RolloutSpeed, rollout_speed
from autotune.process import clock
from autotune.process.progress import Progress
from autotune.training.ranks import SINGLE_RANK, Ranks
from autotune.training.rollout_plan import Rollout, RolloutPlan

WARM_UP_CYCLES = 2
MIN_CYCLES, MAX_CYCLES = 3, 12
GENERATION, OPTIMIZER = "generation", "optimizer"


class RolloutMeter(TrainerCallback):
    """The clock of the phases: called when one begins, and by the trainer's callbacks."""

    def __init__(
        self,
        plan: RolloutPlan,
        rollout: Rollout,
        memory: CpuMemory | CudaMemory,
        progress: Progress,
        to_beat: float | None,
        *,
        peak: Callable[[int], int | None],
        elsewhere: bool = False,
        ranks: Ranks = SINGLE_RANK,
    ):
        """Time the cycles of a plan.

        Args:
            peak: the peak of all so far, by what is held when a generation begins. Bytes.
            elsewhere: whether something else will generate, and not this program.
        """
        self._plan, self._rollout, self._progress = plan, rollout, progress
        self._memory, self._to_beat, self._whole_peak = memory, to_beat, peak
        self._elsewhere, self._resident, self._ranks = elsewhere, 0, ranks
        self._phase, self._since = OPTIMIZER, 0.0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._peaks: defaultdict[str, int] = defaultdict(int)
        self._cycles: list[CycleTime] = []
        self._cycle_began = 0.0
        self._measuring_since = 0.0
        self._waited: clock.ProcessorWait | None = None
        self._count = 0
        self.micro_steps = 0
        """Timed ones."""
        self.last_loss: float | None = None
        self.gradient_norm: float | None = None
        self.result: RolloutSpeed | None = None

    def follow(self, trains: Any, trainer: Any) -> Any:
        """Time `trainer`, which the family `trains` has made, as long as the context lasts."""
        trainer.add_callback(self)
        return trains.follow(trainer, self)

    def enter(self, phase: str) -> str:
        """Count from now on to `phase`, and return the phase before."""
        now, previous = clock.now(), self._phase
        # What something else will generate with is not this program's.
        counts = previous != GENERATION or not self._elsewhere
        self._peaks[previous] = max(self._peaks[previous], self._memory.phase_peak(counts=counts))
        if phase == GENERATION:
            self._resident = max(self._resident, self._memory.held_bytes())
        self._seconds[previous] += now - self._since
        self._phase, self._since = phase, now
        return previous

    def generated(self, rows: int, length: int) -> None:
        """Check that the completions are as many and as long as was planned.

        Raises:
            RuntimeError: they are not.
        """
        if rows != self._rollout.completions or length < self._rollout.length:
            raise RuntimeError(
                f"{self._rollout.completions} completions of {self._rollout.length} tokens were "
                f"planned, but the trainer made {rows} of at most {length}"
            )

    def micro_step(self, loss: Any) -> None:
        """Count a micro-step that is done.

        Raises:
            NotFinite: its loss is no finite number.
        """
        self.last_loss = float(loss)
        if not math.isfinite(self.last_loss):
            raise NotFinite(f"the loss is {self.last_loss} at micro-step {self._count}")
        self._count += 1
        self._progress.tell("micro_step", n=self._count)

    def before_step(self, model: Any, *, lenient: bool) -> None:
        """Look at the gradients, in the first step."""
        if self.gradient_norm is None and not self._cycles:
            self.gradient_norm = gradient_norm(model, lenient=lenient)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin the first cycle."""
        self._memory.phase_peak()
        self._waited = clock.ProcessorWait(self._ranks.processes, args.dataloader_num_workers)
        self._begin_cycle(clock.now())

    def _begin_cycle(self, now: float) -> None:
        self._seconds.clear()
        self._cycle_began = self._since = now

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """Look at the gradients, which have been clipped."""
        self.before_step(model, lenient=args.fp16)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note an optimizer step: it may complete a cycle, and the probe with it."""
        cycle, steps_over = divmod(state.global_step, self._rollout.steps)
        if steps_over:
            return
        now = clock.now()
        if cycle > WARM_UP_CYCLES:
            self._note_cycle(now - self._cycle_began)
            self._estimate(now, control)
        else:
            waited = self.processor_wait_share
            self._progress.tell(
                "warm_up",
                step=state.global_step,
                processor_wait_share=waited,
                peak_memory_bytes=self._whole_peak(self._resident),
            )
        if cycle == WARM_UP_CYCLES:
            self._measuring_since = now
            workers = args.dataloader_num_workers
            self._waited = clock.ProcessorWait(self._ranks.processes, workers)
        self._begin_cycle(clock.now())

    def _note_cycle(self, seconds: float) -> None:
        phase_seconds = {f"{phase}_s": self._seconds[phase] for phase in PHASES}
        optimizer_s = max(seconds - sum(phase_seconds.values()), 0.0)
        self.micro_steps += self._rollout.rounds * self._rollout.micro_steps
        self._cycles.append(CycleTime(seconds=seconds, optimizer_s=optimizer_s, **phase_seconds))

    def _estimate(self, now: float, control: Any) -> None:
        rollout, number = self._rollout, len(self._cycles)
        self.result = rollout_speed(
            self._cycles,
            steps=rollout.steps,
            tokens=self._plan.tokens * self._ranks.processes,
            completions=rollout.completions * rollout.rounds * self._ranks.processes,
        )
        result = self.result
        self._progress.tell(
            "estimate",
            step=number * rollout.steps,
            tokens_per_s=result.tokens_per_s,
            optimistic_tokens_per_s=result.optimistic_tokens_per_s,
            relative_uncertainty=result.relative_uncertainty,
            processor_wait_share=self.processor_wait_share,
            peak_memory_bytes=self._whole_peak(self._resident),
        )
        precise = number >= MIN_CYCLES and enough(
            result.tokens_per_s,
            result.relative_uncertainty,
            now - self._measuring_since,
            self._to_beat,
        )
        if number >= MAX_CYCLES or self._ranks.all_agree(precise):
            control.should_training_stop = True

    @property
    def peaks(self) -> dict[str, int]:
        """The peaks of the phases, as fields of a measurement. Bytes."""
        peaks = {f"{phase}_peak_bytes": self._peaks[phase] for phase in PHASES}
        return {**peaks, "resident_bytes": self._resident}

    @property
    def processor_wait_share(self) -> float | None:
        """Part of the timed cycles that the threads waited for a core; before them, of all."""
        return None if self._waited is None else self._waited.share
