"""A run of a user's script: its probes are starts of the script, and what it writes is a
`launch.sh` that starts it with the fields that were found."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from autotune.engine.call import Call, result_of
from autotune.estimate.estimate import prior_residual
from autotune.facts import Facts
from autotune.plan.candidates import TYPICAL_PROCESS
from autotune.probe.protocol import Measurement
from autotune.process.messages import ChildFolder
from autotune.run.expectations import Expectations
from autotune.run.session import Session
from autotune.run.verdict import Verification, judge_measurement
from autotune.script.command import HOOK, ScriptCommand
from autotune.script.files import ScriptBundle, files_of, set_by_flags
from autotune.script.protocol import Look
from autotune.script.space import changes_of, environment_of, fields_of
from autotune.script.start import StartTask
from autotune.search.job_time import Work, work_of
from autotune.search.recommend import Ranked, Recommendation
from autotune.space.knobs import ACCUMULATION, Candidate

START = "autotune.script.start:started"
PROBED_STEPS = 2
"""Micro-steps of an optimizer step in a probe, at most: gradients are in memory during the worst
micro-batch exactly if there is one before it."""


@dataclass(frozen=True, kw_only=True)
class ScriptSession(Session):
    """A run of a script at work.

    Attributes:
        command: starts it.
        look: what was seen of it.
    """

    default_words = "the script's own settings"
    most_launches = 2
    command: ScriptCommand
    look: Look

    @property
    def devices(self) -> int:
        """Devices among which the rows of an optimizer step are divided."""
        return self.look.ways

    @property
    def launching(self) -> str:
        """The command that starts what was written, and was not verified."""
        return self.run.resumption

    def call(
        self, number: int, candidate: Candidate, *, to_beat: float | None, most_s: float
    ) -> Call:
        """Return the call of a few steps of the script with a candidate's fields."""
        steps = candidate.gradient_accumulation_steps
        if not self.look.online:
            steps = min(steps, PROBED_STEPS)
        fields = {**changes_of(candidate, self.look), ACCUMULATION: steps}
        expected = {**fields_of(candidate, self.look), ACCUMULATION: steps}
        task = self._task(self.command, candidate, fields, expected, most_s, to_beat)
        folder = str(self.run.probe(number).path)
        return Call(key=f"{number:04d}", folder=folder, request=task.plain(), task=START)

    def work(self, candidate: Candidate) -> Work:
        """Return how much the script trains."""
        return work_of(self.look.arguments)

    def verification_s(self, ranked: Ranked) -> float:
        """Return the seconds of a start: those of its probe, and as much longer as it has
        more micro-steps."""
        more = ranked.candidate.gradient_accumulation_steps / PROBED_STEPS
        stages = ranked.measurement.stages_s
        return ranked.measurement.seconds + max(more - 1, 0.0) * stages.get("train", 0.0)

    def write(self, recommendation: Recommendation, verification: Verification | None) -> None:
        """Put `launch.sh` and what belongs to it into the run's folder."""
        chosen, candidate = recommendation.chosen, recommendation.chosen.candidate
        bundle = ScriptBundle(
            words=self.command.words,
            folder=str(self.command.folder),
            look=self.look,
            changes=changes_of(candidate, self.look),
            environment=environment_of(candidate),
            probe=chosen.number,
            measurement=chosen.measurement,
            reasons=recommendation.reasons,
            verification=None if verification is None else verification.plain(),
        )
        hook = (HOOK / "sitecustomize.py").read_text(encoding="utf-8")
        self.run.write_bundle(self.run.bundle, files_of(bundle, hook))

    def launch(self, ranked: Ranked, probe_again: Callable[[], Measurement]) -> Verification:
        """Start `launch.sh`, and judge its first steps; once more where it was only slower or
        faster, as machines are noisy."""
        launched = ScriptCommand(words=("bash", str(self.run.launch)), folder=self.command.folder)
        folder = ChildFolder(path=self.run.verification)
        candidate = ranked.candidate
        changes = changes_of(candidate, self.look)
        # Where flags set the fields, they have to do so here, too.
        by_flags = set_by_flags(self.command.words, self.look, changes)
        fields, expected = {} if by_flags else changes, fields_of(candidate, self.look)
        for _ in range(2):
            left_s = self.deadline.left_s
            task = self._task(launched, candidate, fields, expected, left_s)
            call = Call(key="launch", folder=str(folder.path), request=task.plain(), task=START)
            measured = result_of(self.engine, call).measurement()
            verdict = judge_measurement(measured, ranked, folder.stderr)
            if not (verdict.only_too_slow or verdict.only_too_fast):
                break
        return verdict

    def _task(
        self,
        command: ScriptCommand,
        candidate: Candidate,
        fields: dict[str, object],
        expected: dict[str, object],
        most_s: float,
        to_beat: float | None = None,
    ) -> StartTask:
        return StartTask(
            command=command,
            fields=fields,
            expected=expected,
            accumulation=candidate.gradient_accumulation_steps,
            processes=self.look.processes,
            device=self.facts.device,
            environment=environment_of(candidate),
            limit_bytes=self.limit_bytes,
            to_beat=to_beat,
            own_s=60 * self.job.budget.probe_minutes,
            most_s=most_s if math.isfinite(most_s) else None,
            timed=not self.options.accept_noise,
        )


def unestimated(look: Look, facts: Facts, limit: int) -> Expectations:
    """Return the expectations of a script, which is not traced: there are none but the memory of a
    process."""
    prior = prior_residual(facts.device, TYPICAL_PROCESS, look.ways)
    return Expectations(estimates={}, prior=prior, limit_bytes=limit)
