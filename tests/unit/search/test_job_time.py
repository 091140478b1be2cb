"""How long the job is, and what a search saved of it."""

from dataclasses import replace

import pytest

from autotune.search.job_time import Saving, Work, work_of
from tests.unit.builders import ok

MEASURED = replace(ok(50.0), tokens_per_epoch=1000.0, tokens_per_step=20.0)


def test_epochs_over_the_data():
    assert work_of({"num_train_epochs": 3.0}).seconds(MEASURED) == 60.0


def test_steps_count_in_place_of_epochs():
    work = work_of({"num_train_epochs": 3.0, "max_steps": 10})
    assert work.seconds(MEASURED) == 4.0
    by_time = replace(MEASURED, tokens_per_step=None, step_time_s=0.4)
    assert work.seconds(by_time) == pytest.approx(4.0)
    assert work.seconds(replace(MEASURED, tokens_per_step=None)) is None


def test_a_measurement_that_does_not_tell_an_epoch_tells_no_time():
    work = Work(epochs=1.0, max_steps=None)
    assert work.seconds(replace(MEASURED, tokens_per_epoch=None)) is None


@pytest.mark.parametrize(
    ("is_measured", "default_s", "sentence"),
    [
        (True, 10801.0, "saved 2.0 h of the 3.0 h that the stack's defaults take"),
        (False, 10801.0, "saved an estimated 2.0 h of the 3.0 h that the stack's defaults take"),
        (True, 3601.0, "saved nothing: the stack's defaults are as fast"),
    ],
)
def test_a_saving_is_said_in_a_sentence(is_measured, default_s, sentence):
    saving = Saving(probing_s=30.0, job_s=3601.0, default_s=default_s, measured=is_measured)
    assert saving.sentence() == f"30.0 s of probing {sentence}"
