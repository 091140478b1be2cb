"""What a survey makes of errors that others raise."""

import pytest

from autotune.probe.survey_worker import sentence_of


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("the data has no\n  split `train`"), "the data has no split `train`"),
        (FileNotFoundError(2, "No such file", "x"), "[Errno 2] No such file: 'x'"),
        (KeyError("prompt"), "KeyError: 'prompt'"),
        (TypeError("'int' object is not iterable"), "TypeError: 'int' object is not iterable"),
        (ValueError(), "ValueError, with no message"),
    ],
)
def test_only_what_is_no_sentence_is_told_with_its_class(error, sentence):
    assert sentence_of(error) == sentence
