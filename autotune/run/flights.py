"""The probes of a run that are at work: begun, watched, stopped, and told to the study."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.engine.call import Ended, News
from autotune.probe.protocol import Measurement
from autotune.process.limits import Watcher
from autotune.process.messages import write_json
from autotune.run.deadline import OutOfTime
from autotune.run.listener import ProbeSteps
from autotune.run.session import Session
from autotune.search.record import Record
from autotune.search.study import Trial
from autotune.space.knobs import Candidate

GRACE_S = 5.0
"""So long after its own limit a probe that still runs is cut."""


@dataclass
class Flight:
    """One probe at work.

    Attributes:
        watch: tells by its events that it cannot win; None: it is measured to its end.
        wall_s, at_work_s: its part of the run's own time, and all that time, from the first event
            on: before that it waits for a place.
    """

    trial: Trial
    candidate: Candidate
    watch: Watcher | None
    steps: ProbeSteps = ProbeSteps()
    wall_s: float = 0.0
    at_work_s: float | None = None


class Flights:
    """All probes at work of a session.

    Args:
        reserved_s: returns the seconds of the total budget that are kept for the verification.
    """

    def __init__(self, session: Session, reserved_s: Callable[[], float]) -> None:
        self._session, self._reserved_s = session, reserved_s
        self._flying: dict[str, Flight] = {}
        self._left: deque[News] = deque()
        self._seen = time.monotonic()
        trials = {trial.number: trial for trial in session.study.running()}
        candidates = {record.number: record.candidate for record in session.study.records()}
        for call in session.engine.in_flight():  # an earlier process of this run began them
            number = int(call.key) if call.key.isdecimal() else -1
            if number in trials and number in candidates:
                self._add(call.key, trials[number], candidates[number], watched=True)
            else:
                session.engine.stop(call.key, "its run knows nothing of it")

    def __len__(self) -> int:
        return len(self._flying)

    @property
    def has_room(self) -> bool:
        """True if another probe would begin at once."""
        return len(self) < self._session.engine.at_once and self._session.engine.free_places() > 0

    @property
    def candidates(self) -> list[Candidate]:
        """The candidates in flight."""
        return [flight.candidate for flight in self._flying.values()]

    def begin(self, trial: Trial, candidate: Candidate, *, watched: bool) -> None:
        """Begin a probe.

        Args:
            watched: whether it is stopped where it cannot win any more.
        """
        session, number = self._session, trial.number
        session.listener.probing(number, candidate)
        session.run.keep_candidate(number, candidate.knobs)
        call = session.call(
            number,
            candidate,
            to_beat=session.study.best_value(),
            most_s=session.deadline.left_s - self._reserved_s(),
        )
        self._pass_time()
        self._add(call.key, trial, candidate, watched)
        session.engine.begin(call)

    def _add(self, key: str, trial: Trial, candidate: Candidate, watched: bool) -> None:
        watch = self._session.study.cannot_win(trial) if watched else None
        self._flying[key] = Flight(trial, candidate, watch)

    def stop(self, reasons: Mapping[str, str]) -> None:
        """End those that what was measured meanwhile rules out: keys of candidates with reasons."""
        for key, flight in self._flying.items():
            if flight.watch is not None and flight.candidate.key in reasons:
                self._session.engine.stop(key, reasons[flight.candidate.key])

    def next_ending(self) -> Measurement:
        """Wait until one has ended; tell the study, and return how."""
        measurement = self.next_change(to_end=True)
        assert measurement is not None
        return measurement

    def next_change(self, *, to_end: bool) -> Measurement | None:
        """Wait until one has ended, as `next_ending` does; or, unless `to_end`, until another has
        room: None."""
        session = self._session
        try:
            # What is compiled before a probe is not under the probe's own limit.
            with session.deadline.cuts(keep_s=self._reserved_s() - GRACE_S):
                found = self._first_to_end(to_end)
        except OutOfTime:
            reason = f"{session.deadline.words} had no time left for it"
            self.cut(reason)
            return Measurement(outcome="interrupted", reason=reason)
        except KeyboardInterrupt:
            self.cut("Ctrl-C", heard=False)
            raise
        except BaseException:
            session.engine.abandon()
            raise
        return None if found is None else self._end(*found)

    def _first_to_end(self, to_end: bool) -> tuple[str, Measurement] | None:
        while True:
            for key, event in self._news():
                if isinstance(event, Ended):
                    return key, event.measurement()
                self._see(key, event)
            if not to_end and self.has_room:
                return None

    def _news(self) -> Iterator[News]:
        """Yield what was heard of probes that fly, in order; what is left over is for the next."""
        if not self._left:
            self._left = deque(self._session.engine.news(1.0))
        while self._left:
            key, event = self._left.popleft()
            if key in self._flying:
                yield key, event

    def _see(self, key: str, event: Mapping[str, Any]) -> None:
        flight, listener = self._flying[key], self._session.listener
        if event.get("event") == "waiting":
            listener.waiting(event["holder"])
            return
        if flight.at_work_s is None:
            self._pass_time()
            flight.at_work_s = 0.0
        flight.steps = flight.steps.after(event)
        if key == next(iter(self._flying)):
            listener.stepping(flight.steps)
        reason = None if flight.watch is None else flight.watch(dict(event))
        if reason is not None:
            self._session.engine.stop(key, reason)

    def cut(self, reason: str, *, heard: bool = True) -> None:
        """End all that are at work, now.

        Args:
            heard: whether the listener hears of it.
        """
        if self._flying:
            self._session.engine.abandon()
        measurement = Measurement(outcome="interrupted", reason=reason)
        for key in list(self._flying):
            self._end(key, measurement, heard=heard)

    def _end(self, key: str, measurement: Measurement, *, heard: bool = True) -> Measurement:
        session = self._session
        self._pass_time()
        flight = self._flying.pop(key)
        if session.engine.at_once > 1 and measurement.seconds:
            share = flight.wall_s / flight.at_work_s if flight.at_work_s else 1.0
            measurement = dataclasses.replace(
                measurement, wall_s=round(share * measurement.seconds, 4)
            )
        folder = session.run.probe(flight.trial.number)
        if session.engine.is_remote and heard:  # it may have run in a folder beside
            folder.path.mkdir(parents=True, exist_ok=True)
            write_json(folder.measurement, measurement.plain())
        session.study.tell(flight.trial, measurement)
        if heard:
            number, candidate = flight.trial.number, flight.candidate
            record = Record(number=number, candidate=candidate, measurement=measurement)
            session.listener.probed(record)
        return measurement

    def _pass_time(self) -> None:
        """Share the time since the last look among those that were at work."""
        now = time.monotonic()
        at_work = [one for one in self._flying.values() if one.at_work_s is not None]
        for flight in at_work:
            flight.at_work_s = (flight.at_work_s or 0.0) + now - self._seen
            flight.wall_s += (now - self._seen) / len(at_work)
        self._seen = now
