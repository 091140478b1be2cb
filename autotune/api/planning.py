"""`autotune.plan`: what to use, before anything runs on the device."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.api.answer import Answer
from autotune.api.jobs import definition_of, say
from autotune.errors import user_error
from autotune.estimate.estimate import Estimate
from autotune.job.job import Job
from autotune.plan.choices import Choice, is_safe, shortened
from autotune.plan.plan import Plan
from autotune.plan.plan import plan as plan_in
from autotune.plan.progress import Progress
from autotune.report.choice_table import FIGURES, ROWS, choice_table
from autotune.report.plan_answer import plan_lines
from autotune.report.progress_lines import EstimateLines
from autotune.report.sections import Table
from autotune.space.knobs import Candidate
from autotune.space.trl_config import Settings, settings


@dataclass(frozen=True, kw_only=True, repr=False)
class PlannedAnswer(Answer):
    """The answer of a plan.

    Attributes:
        plan: all that was estimated.
    """

    job: Job
    plan: Plan

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(plan_lines(self.plan))

    @property
    def safe(self) -> bool:
        return self._choice is not None and self._choice.safe

    @property
    def stopped(self) -> bool:
        """True if it was interrupted: it holds what was known by then."""
        return self.plan.stopped

    def write_bundle(self, folder: str | Path) -> Path:
        from autotune.process.files import refuse_used
        from autotune.run.planned_bundle import emit_plan, unsafe_reason

        reason = unsafe_reason(self.plan)
        if reason is not None:
            hint = "`answer.lines` says what would make it safe"
            raise user_error(f"it is not written: {reason}", where=str(folder), hint=hint)
        refuse_used(Path(folder))
        return emit_plan(self.plan, self.job, Path(folder))

    @property
    def _choice(self) -> Choice | None:
        return None if self.plan.answer is None else self.plan.answer.choice

    @property
    def _best(self) -> tuple[Candidate, Estimate] | None:
        choice = self._choice
        return None if choice is None else (choice.candidate, choice.estimate)

    def _rows(self, *, every: bool) -> Iterator[Mapping[str, Any]]:
        if every:
            yield from (_row(*pair) for pair in self.plan.ranked())
            return
        for choice in self.plan.choices:
            yield {**_row(choice.candidate, choice.estimate), "candidates": choice.folded}

    def _settings(self) -> Settings | None:
        from autotune.run.planned_bundle import trained_facts

        if self._best is None:
            return None
        facts = trained_facts(self.plan, self.job, dataset=None)
        return settings(self.job, facts, self._best[0], "output")

    def _table(self) -> tuple[Table, Sequence[str]]:
        shown = shortened(self.plan.choices, ROWS, self.plan.devices)
        made = choice_table(self.plan, shown)
        left = len(self.plan.choices) - len(shown)
        more = [f"... and {left} more choices: to_frame() has all"] if left else []
        table = Table(
            caption=made.shared,
            heads=tuple(f"{name}#" if name in FIGURES else name for name in made.heads),
            rows=made.rows,
        )
        return table, [*made.notes, *more]


def _row(candidate: Candidate, estimate: Estimate) -> dict[str, Any]:
    return {
        **candidate.knobs,
        "tokens_per_s": estimate.tokens_per_s,
        "step_time_s": estimate.step_time_s,
        "peak_memory_bytes": estimate.peak_memory_bytes,
        "p_oom": round(estimate.p_oom, 4),
        "fits": estimate.fits,
        "safe": is_safe(estimate),
        "method": estimate.method,
    }


def plan(job: Job, device: str | None = None, *, listener: Progress | None = None) -> PlannedAnswer:
    """Say what to use for a job, by estimate: no GPU is needed, and no weights. An interrupt
    (Ctrl-C, a notebook's stop) ends it with what is known by then.

    Args:
        device: a kind of GPU to plan for (`h200`, `RTX 4090`, `memory=24GiB`) or `cpu`; None: what
            the job says, or else this machine's.
        listener: hears how far it is; None: a line now and then on stderr.

    Raises:
        UserError: the job, or the kind of device, cannot be.
        MachineError: the training stack cannot be run here.
    """
    progress = listener or EstimateLines(say)
    with tempfile.TemporaryDirectory(prefix="autotune-plan-", ignore_cleanup_errors=True) as folder:
        planned = plan_in(job, definition_of(job), Path(folder), device=device, progress=progress)
    return PlannedAnswer(job=job, plan=planned)
