"""A cluster that exists as numbers alone, and an engine over it: nodes that die, lanes that begin
and are lost, calls that are made once more elsewhere. Its clock jumps from event to event.

It does as `autotune/engine/ray_engine.py` does: a lane that has died is made anew, its call once
more, on another node where there is one; a lane stays reserved until the run ends.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.engine.call import Call, Ended, News
from autotune.errors import machine_error
from autotune.probe.outcome import of_both
from autotune.probe.protocol import Measurement
from benchmarks.scale.courses import Course

NODE_GPUS = 8
LANE_S, IMPORTS_S, BYTES_PER_S = 2.0, 8.0, 1e9
"""Seconds until a lane is there (1.0 to 2.5 were measured) and of its fork server's imports, and
the rate at which its first probe reads the model (both assumed)."""
STOP_S = 0.1
PLACE_S = 600.0
"""Seconds without a place after which a run ends."""


@dataclass
class Clock:
    """The simulated time, in seconds."""

    now: float = 0.0

    def monotonic(self) -> float:
        """Return the time, as `time.monotonic` does."""
        return self.now


@dataclass(frozen=True)
class Failures:
    """The deaths of nodes, by an exponential clock each; none is repaired.

    Attributes:
        per_hour: of one node.
        detected_s: from a death until the engine knows it.
    """

    per_hour: float = 0.0
    detected_s: float = 15.0


@dataclass
class SimulatedLane:
    """Reserved devices, and the call at work there.

    Attributes:
        dead_at: when the first of its nodes dies.
        began, start_s: when its call did, and what that waits for imports and the model.
        steps: events of its call that are to come, and its end, each with its time.
    """

    nodes: tuple[int, ...]
    placed_at: float
    dead_at: float
    has_model: bool = False
    call: Call | None = None
    course: Course | None = None
    began: float = 0.0
    start_s: float = 0.0
    steps: list[tuple[float, dict | Measurement]] = field(default_factory=list)

    @property
    def ready_at(self) -> float:
        """The time from which it takes calls; never, where it dies before."""
        ready = self.placed_at + LANE_S
        return ready if ready < self.dead_at else math.inf


class SimulatedEngine:
    """An engine whose lanes are on simulated nodes.

    Args:
        course: of a call, by how often its candidate was begun before.
        gpus: of the cluster; at_once lanes of `lane_gpus` are on it, as far as there is room.
        model_bytes: that the first probe of each lane reads.
    """

    is_remote = False  # a call's folder is where the run made it
    machine = None

    def __init__(
        self,
        course: Callable[[Call, int], Course],
        clock: Clock,
        *,
        gpus: int,
        lane_gpus: int,
        at_once: int,
        model_bytes: float = 0.0,
        failures: Failures = Failures(),
        seed: str = "",
    ) -> None:
        self.at_once, self.clock = at_once, clock
        self.lane_gpus, self.failures = lane_gpus, failures
        self.used_s = self.held_s = 0.0
        self.lost = 0
        self.ended: list[tuple[float, Call, Measurement]] = []
        self._course, self._load_s = course, model_bytes / BYTES_PER_S
        drawn = random.Random(f"nodes {seed}")
        rate = failures.per_hour / 3600
        nodes = max(gpus // NODE_GPUS, 1)
        self._dead_at = [drawn.expovariate(rate) if rate else math.inf for _ in range(nodes)]
        self._free = [min(gpus, NODE_GPUS)] * nodes
        self._lanes: list[SimulatedLane] = []
        self._waiting: list[Call] = []
        self._first: dict[str, Measurement] = {}
        self._begun: dict[str, int] = {}
        self._fill()

    def free_places(self) -> int:
        """Calls that would begin at once; 1 where there are none in flight."""
        ready = [lane for lane in self._lanes if lane.ready_at <= self.clock.now]
        busy = sum(lane.call is not None for lane in ready) + len(self._waiting)
        return max(len(ready) - busy, 0 if busy else 1)

    def begin(self, call: Call) -> None:
        """Begin a call as soon as a lane is free for it."""
        self._waiting.append(call)
        self._assign()

    def news(self, timeout_s: float) -> Sequence[News]:
        """Let time pass until something happens; return the events of calls then.

        Raises:
            MachineError: nothing will: no node has room.
        """
        if not (news := self._news()):
            at = min(map(self._next, self._lanes), default=math.inf)
            if at == math.inf:
                self.clock.now += PLACE_S
                raise machine_error("no node has room", where="simulation")
            self.clock.now = max(at, self.clock.now)
            news = self._news()
        return news

    def stop(self, key: str, reason: str) -> None:
        """Ask a call to end."""
        for lane in self._lanes:
            if lane.call is not None and lane.call.key == key and lane.course is not None:
                at = self.clock.now + STOP_S
                if lane.steps and lane.steps[-1][0] > at:
                    seconds = at - lane.began - lane.start_s
                    stopped = lane.course.stopped(reason, seconds, lane.start_s)
                    lane.steps = [(at, stopped)]

    def abandon(self) -> None:
        """End all calls with the lanes that run them."""
        self._waiting.clear()
        self._first.clear()
        for lane in [lane for lane in self._lanes if lane.call]:
            self._drop(lane)

    def close(self) -> None:
        """Give all lanes back."""
        for lane in list(self._lanes):
            self._drop(lane)

    def in_flight(self) -> Sequence[Call]:
        """Return the calls at work."""
        return [lane.call for lane in self._lanes if lane.call] + self._waiting

    # -- lanes

    def _fill(self) -> None:
        while len(self._lanes) < self.at_once and (nodes := self._room()):
            for node in nodes:
                self._free[node] -= min(self.lane_gpus, NODE_GPUS)
            dead_at = min(self._dead_at[node] for node in nodes)
            self._lanes.append(SimulatedLane(nodes, self.clock.now, dead_at))

    def _room(self) -> tuple[int, ...]:
        """Return nodes with room for a lane, of those not known to be dead."""
        wanted = max(self.lane_gpus // NODE_GPUS, 1)
        each = min(self.lane_gpus, NODE_GPUS)
        nodes = [
            node
            for node, free in enumerate(self._free)
            if free >= each and self._known_at(self._dead_at[node]) > self.clock.now
        ]
        return tuple(nodes[:wanted]) if len(nodes) >= wanted else ()

    def _known_at(self, dead_at: float) -> float:
        return dead_at + self.failures.detected_s

    def _drop(self, lane: SimulatedLane) -> None:
        self._lanes.remove(lane)
        self.held_s += self.lane_gpus * (self.clock.now - lane.placed_at)
        if lane.call is not None:
            self.used_s += self.lane_gpus * (self.clock.now - lane.began)
        for node in lane.nodes:
            self._free[node] += min(self.lane_gpus, NODE_GPUS)

    def _assign(self) -> None:
        for call in list(self._waiting):
            lost_at = self._first[call.key].node if call.key in self._first else None
            free = [o for o in self._lanes if o.ready_at <= self.clock.now and not o.call]
            if free:
                self._run(min(free, key=lambda lane: str(lane.nodes) == lost_at), call)

    def _run(self, lane: SimulatedLane, call: Call) -> None:
        """Begin a call on a lane: its events and its end have their times from now on."""
        self._waiting.remove(call)
        candidate = str(call.request["candidate"])
        count = self._begun[candidate] = self._begun.get(candidate, 0) + 1
        lane.call, lane.began, lane.course = call, self.clock.now, self._course(call, count)
        start = max(lane.placed_at + LANE_S + IMPORTS_S - lane.began, 0.0)
        lane.start_s = start if lane.has_model else start + self._load_s
        lane.has_model = True
        start = lane.began + lane.start_s
        lane.steps = [(start + at, event) for at, event in lane.course.steps(lane.start_s)]

    # -- events

    def _next(self, lane: SimulatedLane) -> float:
        """Return the time of the next event of a lane."""
        if lane.call is None:
            if lane.ready_at == math.inf:
                return self._known_at(lane.dead_at)
            return lane.ready_at if lane.ready_at > self.clock.now else math.inf
        at = lane.steps[0][0]
        return at if at <= lane.dead_at else max(self._known_at(lane.dead_at), lane.began)

    def _news(self) -> list[News]:
        """Return the events up to now."""
        news: list[News] = []
        for lane in list(self._lanes):
            while lane in self._lanes and self._next(lane) <= self.clock.now:
                news += self._step(lane)
        self._fill()
        self._assign()
        return news

    def _step(self, lane: SimulatedLane) -> list[News]:
        call = lane.call
        if call is None or lane.steps[0][0] > lane.dead_at:
            self._drop(lane)
            return [] if call is None else self._lost(lane, call)
        _, event = lane.steps.pop(0)
        if not isinstance(event, Measurement):
            return [(call.key, event)]
        self.used_s += self.lane_gpus * (self.clock.now - lane.began)
        lane.call = None
        first = self._first.pop(call.key, None)
        return [self._end(call, event if first is None else of_both(first, event))]

    def _lost(self, lane: SimulatedLane, call: Call) -> list[News]:
        """Make a lost call once more; the second time it has ended."""
        self.lost += 1
        found = Measurement(
            outcome="interrupted", reason="lost", inferred=True, node=str(lane.nodes)
        )
        if call.key not in self._first:
            self._first[call.key] = found
            self._waiting.append(call)
            return []
        return [self._end(call, of_both(self._first.pop(call.key), found))]

    def _end(self, call: Call, measurement: Measurement) -> News:
        self.ended.append((self.clock.now, call, measurement))
        return call.key, Ended(result=measurement.plain())
