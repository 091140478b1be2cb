"""The budget of a run that goes on: it pays for what was measured, not for what was disturbed."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from autotune.engine.call import Call
from autotune.probe.outcome import busy_text
from autotune.process.messages import read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.run import loop
from tests.unit.builders import ok
from tests.unit.run import replayed

BUSY = replace(
    ok(1.0), outcome="busy", reason=busy_text(0.9), processor_wait_share=0.9, seconds=1900.0
)
"""Two of these are longer than the 60 minutes of the run."""


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[Any]:
    """While it is entered, every probe is disturbed."""
    monkeypatch.setattr(loop, "PAUSES_S", (0.0, 0.0))

    def disturbed(call: Call) -> Any:
        write_json(Path(call.folder) / "measurement.json", BUSY.plain())
        return BUSY

    patched: AbstractContextManager[Any] = mock.patch.object(replayed, "replay_probe", disturbed)
    return patched


def ending(folder: Path) -> str:
    stored: Any = read_json(RunFolder(path=folder / "run").ending)
    return str(stored["stop_reason"])


def test_a_run_that_was_disturbed_measures_when_it_goes_on_and_then_says_what_is_missing(
    tmp_path: Path, busy: AbstractContextManager[Any]
) -> None:
    with busy:
        assert replayed.play(tmp_path) == ("nothing_stable", None)
    assert ending(tmp_path) == "the budget of 60 minutes is used"
    outcome, knobs = replayed.play(tmp_path)
    assert outcome == "recommended" and knobs is not None
    assert ending(tmp_path) == f"the budget of {replayed.PROBES} probes is used"
    assert replayed.play(tmp_path) == (outcome, knobs)
    assert ending(tmp_path) == (
        f"the budget of {replayed.PROBES} probes is used; a larger one measures more, such as "
        f"`budget.probes={2 * replayed.PROBES}`"
    )


def test_in_one_session_disturbed_probes_take_of_the_budget_however_often_it_goes_on(
    tmp_path: Path, busy: AbstractContextManager[Any]
) -> None:
    with busy:
        for session in (1, 2):
            assert replayed.play(tmp_path) == ("nothing_stable", None)
            assert ending(tmp_path) == "the budget of 60 minutes is used"
            assert len(RunFolder(path=tmp_path / "run").probe_numbers()) == 2 * session
