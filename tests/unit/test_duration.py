"""How long the job is, and what a search saved of it."""

from dataclasses import replace

import pytest
from builders import ok

from autotune.duration import Saving, Work, work_of

MEASURED = replace(ok(50.0), tokens_per_epoch=1000.0, tokens_per_step=20.0)


def test_epochs_over_the_data():
    assert work_of({"num_train_epochs": 3.0}, has_data=True).seconds(MEASURED) == 60.0
    assert work_of({"num_train_epochs": 3.0}, has_data=True).seconds(MEASURED, 100.0) == 30.0


def test_steps_count_in_place_of_epochs():
    work = work_of({"num_train_epochs": 3.0, "max_steps": 10}, has_data=False)
    assert work.seconds(MEASURED) == 4.0
    by_time = replace(MEASURED, tokens_per_step=None, step_time_s=0.4)
    assert work.seconds(by_time) == pytest.approx(4.0)
    assert work.seconds(replace(MEASURED, tokens_per_step=None)) is None


def test_without_data_nobody_knows_how_long_an_epoch_is():
    work = Work(epochs=1.0, max_steps=None, known=False)
    assert work.seconds(MEASURED) is None
    known = replace(work, known=True)
    assert known.seconds(replace(MEASURED, tokens_per_epoch=None)) is None


@pytest.mark.parametrize(
    ("measured", "default_s", "sentence"),
    [
        (True, 7200.0, "30 s of probing saved 1 h of the 2 h that the stack's defaults take"),
        (
            False,
            7200.0,
            "30 s of probing saved an estimated 1 h of the 2 h that the stack's defaults take",
        ),
        (True, 3600.0, "30 s of probing saved nothing: the stack's defaults are as fast"),
    ],
)
def test_a_saving_is_said_in_a_sentence(measured, default_s, sentence):
    saving = Saving(probing_s=30.0, job_s=3600.0, default_s=default_s, measured=measured)
    assert saving.sentence() == sentence
