"""Whether a measured speed is normal: beside a plan of the job as it stands, and of its best
configuration. Pure."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from autotune.errors import user_error
from autotune.estimate.estimate import Estimate
from autotune.facts.utilisation import mfu_of, peak_of, reached_on
from autotune.plan.answer import speed_error
from autotune.plan.plan import Plan
from autotune.report.plan_answer import error_text, mfu_line
from autotune.report.words import candidate_text
from autotune.units import format_bytes, format_speed


@dataclass(frozen=True, kw_only=True)
class SpeedCheck:
    """A measured speed of all devices of a job together.

    Attributes:
        plain: the plan of the job's default candidate alone.
        best: that of its whole space.
    """

    tokens_per_s: float
    plain: Plan
    best: Plan

    @property
    def verdict(self) -> str:
        """`slow`, `normal` or `fast` by the estimate's error; `unknown` without an estimate."""
        _, estimate = self.plain.ranked()[0]
        error = speed_error(estimate, self.plain.facts)
        if estimate.tokens_per_s is None or error is None:
            return "unknown"
        ratio = self.tokens_per_s / estimate.tokens_per_s
        if ratio < (1 - error if error < 1 else 1 / (1 + error)):
            return "slow"
        return "fast" if ratio > 1 + error else "normal"

    def lines(self) -> Iterator[str]:
        """Yield the verdict, the share of the peak, and what would be faster."""
        (candidate, estimate), facts = self.plain.ranked()[0], self.plain.facts
        measured, job = format_speed(self.tokens_per_s), self.plain.space.shape.job
        if estimate.tokens_per_s is None:
            yield f"{measured}: no speed is expected, as {facts.device.name} has no known rates."
        else:
            judged = "cannot be judged" if self.verdict == "unknown" else f"are {self.verdict}"
            most = "at most " if estimate.left_out else ""
            yield (
                f"{measured} {judged}: the plan expects {most}"
                f"{format_speed(estimate.tokens_per_s)} "
                f"({error_text(speed_error(estimate, facts))}) for the job as it stands, "
                f"{candidate_text(candidate, self.plain.space, self.plain.devices)}."
            )
        if not estimate.fits:
            yield f"By estimate that does not fit in {format_bytes(self.plain.limit_bytes)}."
        yield mfu_line(job, facts, self.tokens_per_s) or (
            "Its MFU is not known: the method, the model's shape or the peak of "
            f"{facts.device.name} is not one that it is counted for."
        )
        best, answer = self.best, self.best.answer
        if len(best.space.candidates) == 1:
            return
        if answer is None:
            yield f"Nothing is estimated to fit in {format_bytes(best.limit_bytes)}."
        elif (speed := answer.choice.estimate.tokens_per_s) is not None:
            error = error_text(speed_error(answer.choice.estimate, facts))
            chosen = answer.choice.candidate
            yield (
                f"The best by estimate: {candidate_text(chosen, best.space, best.devices)}: "
                f"{format_speed(speed)} ({error}), {speed / self.tokens_per_s:.1f} times yours."
            )

    def data(self) -> dict[str, Any]:
        """Return the same as JSON data."""
        job, facts = self.plain.space.shape.job, self.plain.facts
        peak = peak_of(facts)
        usual = None if peak is None else reached_on(peak.kind, job, facts.model)
        candidate, estimate = self.plain.ranked()[0]
        answer = self.best.answer
        chosen = None if answer is None else answer.choice
        return {
            "schema": 1,
            "device": facts.device.name,
            "tokens_per_s": self.tokens_per_s,
            "verdict": self.verdict,
            "mfu": mfu_of(job, facts, self.tokens_per_s),
            "usual": None if usual is None else asdict(usual),
            "as_it_stands": self._estimated(candidate.knobs, estimate),
            "best": chosen and self._estimated(chosen.candidate.knobs, chosen.estimate),
            "lines": list(self.lines()),
        }

    def _estimated(self, knobs: dict[str, Any], estimate: Estimate) -> dict[str, Any]:
        return {
            "knobs": knobs,
            "tokens_per_s": estimate.tokens_per_s,
            "speed_error": speed_error(estimate, self.plain.facts),
            "fits": estimate.fits,
        }


def parsed_speed(text: str) -> float:
    """Return the tokens/s of `2900`, `2,900` or `2.9k`.

    Raises:
        UserError: it is not a speed above 0.
    """
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(k?)", text.strip().replace(",", ""))
    speed = float(found[1]) * (1000 if found[2] else 1) if found else 0.0
    if speed <= 0:
        raise user_error(
            f"`{text}` is not a speed above 0",
            where="--speed",
            hint="write the real tokens/s of all devices together, such as 2900 or 2.9k",
        )
    return speed
