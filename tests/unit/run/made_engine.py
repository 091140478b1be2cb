"""An engine whose probes are made up: each ends when the run waits for it, in their order."""

from collections.abc import Callable, Sequence
from pathlib import Path

from autotune.engine.call import Call, Ended, News
from autotune.probe.protocol import Measurement
from autotune.process.messages import read_json
from autotune.space.knobs import Candidate, from_knobs


def candidate_of_call(call: Call) -> Candidate:
    """The candidate that a run wrote down before it began a call."""
    knobs = read_json(Path(call.folder) / "candidate.json")
    assert isinstance(knobs, dict)
    return from_knobs(knobs)


class MadeEngine:
    """Answers calls with what a function says; `most` is the largest number that was in flight."""

    is_remote = False
    machine = None

    def __init__(self, answer: Callable[[Call], Measurement], at_once: int = 1) -> None:
        self.at_once, self.most, self.stopped = at_once, 0, dict[str, str]()
        self._answer, self._flying, self._new = answer, dict[str, Call](), list[str]()

    def free_places(self) -> int:
        return self.at_once - len(self._flying)

    def begin(self, call: Call) -> None:
        self._flying[call.key] = call
        self._new.append(call.key)
        self.most = max(self.most, len(self._flying))

    def news(self, timeout_s: float) -> Sequence[News]:
        if self._new:
            begun, self._new = self._new, []
            return [(key, {"event": "tick"}) for key in begun]
        key = next(iter(self._flying))
        return [(key, Ended(result=self._answer(self._flying.pop(key)).plain()))]

    def stop(self, key: str, reason: str) -> None:
        self.stopped[key] = reason

    def abandon(self) -> None:
        self._flying.clear()

    def in_flight(self) -> Sequence[Call]:
        return list(self._flying.values())
