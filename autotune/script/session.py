"""The search of a script at work: the loop of every run, its probes starts of the script."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

from autotune.probe.outcome import is_by_another, of_both
from autotune.probe.protocol import Measurement
from autotune.process.limits import Watcher
from autotune.process.messages import ChildFolder
from autotune.run.session import SearchSession
from autotune.run.verdict import MEMORY_SLACK, MEMORY_TOLERANCE, SPEED_TOLERANCE, Verification
from autotune.script.command import Starter, write_request
from autotune.script.measuring import measure_start
from autotune.script.protocol import PROBE, Look
from autotune.script.space import changes_of, environment_of, fields_of
from autotune.search.job_time import Work, work_of
from autotune.search.recommend import Ranked
from autotune.space.knobs import ACCUMULATION, Candidate
from autotune.units import format_bytes

MOST_TOLERANCE = 0.5
"""However noisy both were, a start may be off by so much of its promised speed, and no more."""
PROBED_STEPS = 2
"""Micro-steps of an optimizer step in a probe, at most: gradients are in memory during the worst
micro-batch exactly if there is one before it."""


@dataclass(frozen=True, kw_only=True)
class ScriptSession(SearchSession):
    """One search of a script.

    Attributes:
        starter: what starts it.
        look: what was seen of it.
    """

    starter: Starter
    look: Look

    def measure(
        self,
        number: int,
        candidate: Candidate,
        *,
        watch: Watcher | None,
        to_beat: float | None,
        most_s: float,
    ) -> Measurement:
        """Return the measurement of a few steps of the script with a candidate's fields; once more
        where somebody else ended it."""
        folder = self.run.probe(number)
        steps = candidate.gradient_accumulation_steps
        if not self.look.online:
            steps = min(steps, PROBED_STEPS)
        probed = {**fields_of(candidate, self.look), ACCUMULATION: steps}
        changes = {**changes_of(candidate, self.look), ACCUMULATION: steps}
        measurement = self._start(
            self.starter, folder, candidate, changes, probed, to_beat, most_s, watch
        )
        if is_by_another(measurement) and most_s > measurement.seconds:
            left_s = most_s - measurement.seconds
            again = self._start(
                self.starter, folder, candidate, changes, probed, to_beat, left_s, watch
            )
            measurement = of_both(measurement, again)
        return measurement

    def work(self, candidate: Candidate) -> Work:
        """Return how much the script trains."""
        return work_of(self.look.arguments)

    def verification_s(self, ranked: Ranked) -> float:
        """Return a start takes what its probe took, and as much longer as it has more
        micro-steps."""
        more = ranked.candidate.gradient_accumulation_steps / PROBED_STEPS
        stages = ranked.measurement.stages_s
        return ranked.measurement.seconds + max(more - 1, 0.0) * stages.get("train", 0.0)

    def verify(
        self, starter: Starter, ranked: Ranked, folder: ChildFolder, *, by_flags: bool
    ) -> Verification:
        """Start what was written down, and judge its first steps."""
        candidate = ranked.candidate
        expected = fields_of(candidate, self.look)
        # Where flags set the fields, they have to do so here, too.
        changes = {} if by_flags else changes_of(candidate, self.look)
        verdict = None
        for _ in range(2):  # once more where it was only slower or faster: machines are noisy
            left_s = self.deadline.left_s
            found = self._start(starter, folder, candidate, changes, expected, None, left_s, None)
            verdict = judge(found, ranked, folder.stderr)
            if not (verdict.only_too_slow or verdict.only_too_fast):
                break
        assert verdict is not None
        return verdict

    def _start(
        self,
        starter: Starter,
        folder: ChildFolder,
        candidate: Candidate,
        fields: dict[str, object],
        expected: dict[str, object],
        to_beat: float | None,
        most_s: float,
        watch: Watcher | None,
    ) -> Measurement:
        write_request(
            folder,
            PROBE,
            fields=fields,
            expected=expected,
            accumulation=candidate.gradient_accumulation_steps,
            memory_limit_bytes=self.limit_bytes,
            to_beat_tokens_per_s=to_beat,
            forked=starter.forked,
        )
        probe_s = 60 * self.job.budget.probe_minutes
        measurement = measure_start(
            starter,
            folder,
            processes=self.look.processes,
            device=self.facts.device,
            environment=environment_of(candidate),
            limit_bytes=self.limit_bytes,
            timeout_s=max(min(probe_s, most_s), 0.0),
            watch=watch,
        )
        if measurement.outcome == "timeout" and most_s < probe_s:
            reason = f"the total budget left it {most_s:.0f} s"
            return dataclasses.replace(measurement, outcome="interrupted", reason=reason)
        return measurement


def judge(found: Measurement, ranked: Ranked, log: Path) -> Verification:
    """Return what a start shows beside what its probe promised. Pure."""
    promised = ranked.measurement
    ratio = None
    if found.step_time_s and promised.step_time_s:
        ratio = promised.step_time_s / found.step_time_s
    peak, expected_peak = found.peak_memory_bytes, promised.peak_memory_bytes or 0
    most = max((1 + MEMORY_TOLERANCE) * expected_peak, expected_peak + MEMORY_SLACK)
    problems = [] if found.outcome == "ok" else [f"{found.outcome}: {found.reason}"]
    noise = math.hypot(found.relative_uncertainty or 0.0, promised.relative_uncertainty or 0.0)
    tolerance = min(max(SPEED_TOLERANCE, noise), MOST_TOLERANCE)
    slow = ratio is not None and ratio < 1 - tolerance
    fast = ratio is not None and ratio > 1 + tolerance
    hard = [*problems]
    if peak is not None and peak > most:
        hard.append(f"it took {format_bytes(peak)}, {format_bytes(expected_peak)} were promised")
    speed = f"{100 * (ratio or 0.0):.0f}% of the promised speed"
    off = [f"it had {speed}"] if slow or fast else []
    kept = f"it started and trained; {speed}, peak {format_bytes(peak or 0)}"
    return Verification(
        verified=not (hard or off),
        reason="; ".join([*hard, *off]) or kept,
        tokens_per_s=found.tokens_per_s,
        promised_tokens_per_s=promised.tokens_per_s,
        speed_against_promise=ratio,
        peak_memory_bytes=peak,
        promised_peak_memory_bytes=promised.peak_memory_bytes,
        seconds=found.seconds,
        log=str(log),
        only_too_slow=slow and not hard,
        only_too_fast=fast and not hard,
        processor_wait_share=found.processor_wait_share,
    )
