"""What the processes of a probe take of the host together, and who passes the limit."""

import pytest
from staging import Stage
from test_naming import request

from autotune.probe.outcome import name_outcome
from autotune.process.host_memory import HostMeter
from autotune.process.messages import read_json

MIB = 2**20
INTERPRETER = 60 * MIB
"""More than a bare child holds by itself."""


def test_a_child_that_takes_more_of_the_host_than_it_may_is_ended_by_that_name(
    stage: Stage,
) -> None:
    limit = 150 * MIB
    ending = stage.run("holds_and_sleeps", bytes=200 * MIB, host=HostMeter(limit, ranks=False))
    assert ending.why == "host"
    measurement = name_outcome(ending, read_json(stage.folder.reply), request())
    assert measurement.outcome == "host_oom"
    assert 0 < (measurement.missing_bytes or 0) < 50 * MIB + INTERPRETER  # seen while it grew
    assert "the process took" in measurement.reason and "while loading" in measurement.reason
    assert "the limit is 150 MiB" in measurement.reason


def test_loading_and_training_have_peaks_of_their_own(stage: Stage) -> None:
    meter = HostMeter(None, ranks=False)
    ending = stage.run("loads_then_trains", loading=200 * MIB, training=80 * MIB, host=meter)
    assert ending.why == "exited"
    use = ending.host
    assert 200 * MIB <= (use.loading_bytes or 0) < 200 * MIB + INTERPRETER
    assert 80 * MIB <= (use.training_bytes or 0) < 80 * MIB + INTERPRETER
    assert use.peak_bytes == use.loading_bytes
    assert use.missing_bytes is None


@pytest.mark.parametrize("ranks", [False, True])
def test_shared_memory_counts_once_and_private_pages_for_each(stage: Stage, ranks: bool) -> None:
    sizes = {"private": 100 * MIB, "shared": 200 * MIB}
    meter = HostMeter(None, ranks=ranks)
    ending = stage.run("forks_while_holding", **sizes, children=2, host=meter)
    # Of ranks the first process only waits: its pages are no launch's, its part of the shared is.
    copies = 2 if ranks else 3
    minimum = copies * (100 + 200 / 3) * MIB
    peak = ending.host.peak_bytes or 0
    assert minimum <= peak < minimum + copies * INTERPRETER


def test_a_program_that_a_child_has_started_does_not_count(stage: Stage) -> None:
    """A compiler, say: what it takes is no training's."""
    ending = stage.run("starts_a_large_program", bytes=100 * MIB, host=HostMeter(None, ranks=False))
    assert 0 < (ending.host.peak_bytes or 0) < INTERPRETER


def test_a_child_without_a_meter_is_not_looked_at(stage: Stage) -> None:
    assert stage.run("silent").host.peak_bytes is None
