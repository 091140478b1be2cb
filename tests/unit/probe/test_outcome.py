"""What a probe that ended well took beyond what it was given, and whether others disturbed it."""

from dataclasses import replace

import pytest

from autotune.errors import UserError
from autotune.probe.outcome import QUIET, beyond_limit, disturbed, is_quiet
from tests.unit.builders import bad, ok


def test_only_what_is_above_the_limit_counts() -> None:
    assert beyond_limit(1100, 1000) == 100
    assert beyond_limit(1000, 1000) == 0
    assert beyond_limit(900, 1000) == 0


def test_without_a_limit_or_a_peak_nothing_is_beyond() -> None:
    assert beyond_limit(1100, None) == 0
    assert beyond_limit(None, 1000) == 0


@pytest.mark.usefixtures("quiet_counts")
@pytest.mark.parametrize("measurement", [ok(100, 7), bad("timeout")])
def test_a_probe_that_waited_for_cores_is_busy_and_keeps_its_figures(measurement) -> None:
    waited = replace(measurement, processor_wait_share=0.93)
    busy = disturbed(waited)
    assert (busy.outcome, busy.reason) == ("busy", "the machine was busy 93% of the time")
    assert replace(busy, outcome=waited.outcome, reason=waited.reason) == waited
    quiet = replace(measurement, processor_wait_share=QUIET)
    assert disturbed(quiet) is quiet and disturbed(measurement) is measurement


def test_on_a_machine_that_is_never_quiet_another_share_can_be_named(monkeypatch) -> None:
    for text, quiet in (("0.3", True), ("0.1", False)):
        monkeypatch.setenv("AUTOTUNE_QUIET", text)
        assert is_quiet(0.2) is quiet and is_quiet(None)
    monkeypatch.setenv("AUTOTUNE_QUIET", "a lot")
    with pytest.raises(UserError, match="AUTOTUNE_QUIET: `a lot` is not a share of time"):
        is_quiet(0.2)


@pytest.mark.usefixtures("quiet_counts")
def test_memory_that_ran_out_on_a_busy_machine_has_run_out() -> None:
    oom = bad("oom", processor_wait_share=0.93)
    assert disturbed(oom) is oom
