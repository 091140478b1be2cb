"""What a run says as it goes: one line a probe."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.probe.outcome import TRIED_AGAIN
from autotune.report.progress_lines import EstimateLines
from autotune.report.words import describe, describe_measurement
from autotune.run.bundle_launch import STAGE_TEXTS
from autotune.run.listener import Listener
from autotune.run.verdict import Verification
from autotune.search.recommend import Ranked, Recommendation
from autotune.search.record import Record
from autotune.space.bind import SearchSpace
from autotune.units import format_bytes, format_seconds


def waiting_text(holder: str) -> str:
    """Return the line for a wait: another process has the devices."""
    return f"waiting: {holder}; this one goes on when that has ended (Ctrl-C ends it)"


class RunLines(Listener):
    """Says what happens.

    Args:
        say: hears each line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._free: list[str] = []
        self._ruled_out: Mapping[str, str] = {}
        self._estimates = EstimateLines(say)

    def surveying(self, job: Job) -> None:
        self._say("loading the training stack, looking at the model, tokenizing the data ...")

    def starting_anew(self, reason: str) -> None:
        self._say(
            f"slower: {reason}, so that no process of this run can be forked: each imports the "
            "training stack by itself"
        )

    def waiting(self, holder: str) -> None:
        self._say(waiting_text(holder))

    def surveyed(self, facts: Facts, space: SearchSpace, limit_bytes: int) -> None:
        self._free = [knob.name for knob in space.free_knobs]
        model, data = facts.model, facts.data
        self._say(
            f"model   {model.architecture}, {model.parameters / 1e6:.1f} M parameters, "
            f"{model.weights} weights"
        )
        sampled = f" ({data.rows_measured} measured)" if data.sampled else ""
        rows = f"{data.rows} rows{sampled}" if data.rows else "a stream"
        lengths = data.quantiles and (
            f", tokens p50 {data.quantiles['p50']} p99 {data.quantiles['p99']} "
            f"longest {data.longest}"
        )
        self._say(f"data    {rows}{lengths or ''}")
        self._say(f"device  {facts.device.name}, limit {format_bytes(limit_bytes)}")
        self._say(
            f"space   {len(space.candidates)} candidates over {len(self._free)} free knobs: "
            + ", ".join(self._free)
        )
        for note in space.notes:
            self._say(f"note    {note}")

    def measuring(self) -> None:
        self._say("measuring what this device can do, once for all runs on it ...")

    def estimating(self, candidates: int) -> None:
        self._say(f"estimating memory and speed of {candidates} candidates ...")

    def restored(self, probes: int, fault: str) -> None:
        self._say(
            f"study.db: {fault}; it was made anew of the {probes} probe(s) whose files are in "
            "the run's folder"
        )

    def unestimated(self, seconds: float) -> None:
        self._say(
            f"the traces took more than {format_seconds(seconds)}, their part of the total "
            "budget: memory is estimated by formula, speed is not"
        )

    def estimated(self, done: int, of: int) -> None:
        self._estimates.estimated(done, of)

    def ruled_out(self, reasons: Mapping[str, str]) -> None:
        new = Counter(reason for key, reason in reasons.items() if key not in self._ruled_out)
        self._ruled_out = reasons
        for reason, count in new.items():
            self._say(f"           no probe needed for {count} candidate(s): {reason}")

    def probed(self, record: Record) -> None:
        assert record.measurement is not None
        seconds, node = format_seconds(record.measurement.seconds), record.measurement.node
        self._say(
            f"probe {record.number:3d}  {describe(record.candidate, self._free)}  "
            f"{describe_measurement(record.measurement)}  "
            f"[{seconds}{f' on {node}' if node else ''}]"
        )
        _, again, first = record.measurement.reason.partition(TRIED_AGAIN)
        if again and record.measurement.outcome == "ok":
            self._say(f"           it is a second try, as at first {first}")

    def stopped(self, reason: str) -> None:
        self._say(f"search ends: {reason}")

    def settling(self, group: Sequence[Ranked]) -> None:
        numbers = ", ".join(str(ranked.number) for ranked in group)
        self._say(f"probes {numbers} are too close to call: measuring them again, in turns")

    def verifying(self, recommendation: Recommendation) -> None:
        self._say(
            f"verifying the bundle of probe {recommendation.chosen.number} by launching it ..."
        )

    def verification_stage(self, stage: str, seconds: float) -> None:
        self._say(f"           {STAGE_TEXTS.get(stage, stage)}  [{format_seconds(seconds)}]")

    def verified(self, verification: Verification) -> None:
        word = "verified" if verification.verified else "NOT verified"
        self._say(f"{word}: {verification.reason}")

    def trying(self, text: str) -> None:
        self._say(f"nothing fits; trying {text} ...")

    def remarked(self, text: str) -> None:
        self._say(text)
