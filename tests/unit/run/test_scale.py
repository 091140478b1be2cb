"""The simulation of benchmarks/scale with one lane is the loop of a run, probe after probe."""

from collections import Counter

import pytest

from autotune.engine.call import Ended
from autotune.probe.protocol import Measurement
from benchmarks.scale.cluster import IMPORTS_S, STOP_S, Clock
from benchmarks.scale.simulation import (
    GB,
    GRIDS,
    SIZES,
    Setting,
    courses,
    engine_of,
    searched,
    session_on,
)
from benchmarks.search.grid import problems, read_grid
from tests.unit.run.made_engine import MadeEngine

SETTING = Setting(cluster=1024, gpus=64)


@pytest.fixture(scope="module")
def problem():
    """A problem of which half of the candidates fit."""
    grid = read_grid(GRIDS / "cpu-quickstart-lora.jsonl")
    return next(one for one in problems(grid) if one.name == "all, 50% fit")


class OneByOne(MadeEngine):
    """An engine of one probe after another; its clock ticks with each event."""

    def __init__(self, setting, problem):
        super().__init__(None)
        self.clock, self._course = Clock(), courses(setting, problem, 0)
        self._begun, self._said = Counter(), {}
        self._start_s = IMPORTS_S + SIZES[setting.gpus].model_gb * GB / 1e9

    def begin(self, call):
        candidate = call.request["candidate"]
        self._begun[candidate] += 1
        course = self._course(call, self._begun[candidate])
        self._said[call.key] = course, self._start_s, course.steps(self._start_s)
        self._start_s = 0.0  # of the first one alone
        super().begin(call)

    def news(self, timeout_s):
        self.clock.now += 1.0
        (key,) = self._flying
        _, said = self._said[key][2].pop(0)
        if not isinstance(said, Measurement):
            return [(key, said)]
        del self._flying[key]
        return [(key, Ended(result=said.plain()))]

    def stop(self, key, reason):
        super().stop(key, reason)
        course, start_s, steps = self._said[key]
        reported_at, _ = course.steps(0.0)[-len(steps) - 1]
        steps[:] = [(0.0, course.stopped(reason, reported_at + STOP_S, start_s))]


def measured_on(engine, problem):
    """The candidates and measurements of a search, in order."""
    with session_on(engine, problem) as session:
        searched(session, engine.clock)
        return [(r.candidate.key, r.measurement) for r in session.study.records()]


def test_one_lane_probes_what_the_loop_probes(problem):
    simulated_probes = measured_on(engine_of(SETTING, problem, 0), problem)
    loops_probes = measured_on(OneByOne(SETTING, problem), problem)
    assert {m.outcome for _, m in loops_probes} == {"ok", "oom", "stopped"}
    assert [key for key, _ in simulated_probes] == [key for key, _ in loops_probes]
    for (_, one), (_, other) in zip(simulated_probes, loops_probes, strict=True):
        assert (one.outcome, one.tokens_per_s) == (other.outcome, other.tokens_per_s)
        assert one.seconds == pytest.approx(other.seconds, abs=0.001)
