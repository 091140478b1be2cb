"""A log line is one JSON object, and tells no secret that an exception carries."""

import json
import logging
import sys

import pytest

from autotune.cli.views import log


def line(message: str, error: Exception | None = None) -> str:
    exc_info = None if error is None else (type(error), error, None)
    record = logging.LogRecord("autotune", logging.INFO, "", 0, message, None, exc_info)
    return log._Lines().format(record)


def test_an_object_is_taken_into_the_line_and_text_is_its_event() -> None:
    data = json.loads(line('{"event": "request", "status": 200}'))
    assert (data["event"], data["status"], data["level"]) == ("request", 200, "info")
    text = line('x\n{"level": "forged"}\x1b[31m')
    assert "\n" not in text and "\x1b" not in text
    assert json.loads(text)["level"] == "info"


@pytest.mark.parametrize(
    "text",
    [
        "cannot connect to postgresql://user:hunter2@db/autotune",
        "Authorization: Bearer hunter2",
        "GET /x?token=hunter2",
        "connection failed: host=db password=hunter2",
    ],
)
def test_secrets_of_exceptions_are_left_out(text: str) -> None:
    assert "hunter2" not in line(text)
    assert "hunter2" not in line("failed", RuntimeError(text))


def test_in_plain_text_a_problem_is_one_that_people_read() -> None:
    try:
        raise RuntimeError("token=hunter2 \x1b[31m")
    except RuntimeError:
        message = '{"event": "mistake", "request": "12ab"}'
        record = logging.LogRecord("autotune", logging.ERROR, "", 0, message, None, sys.exc_info())
    first, *_, last = log._Plain().format(record).splitlines()
    assert first == "error: mistake, request 12ab"
    assert last == r"RuntimeError: token=... \x1b[31m"


def test_what_is_no_secret_stays() -> None:
    assert "http://127.0.0.1:8642/x" in line("Uvicorn running on http://127.0.0.1:8642/x")


def test_the_level_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    root, own = logging.getLogger(), logging.getLogger("autotune")
    before = root.handlers, root.level, own.level
    try:
        for as_json, usual in ((True, logging.INFO), (False, logging.WARNING)):
            for value, level in (("debug", logging.DEBUG), ("x", usual), ("", usual)):
                monkeypatch.setenv(log.LEVEL, value)
                log.log_to_stderr(as_json=as_json)
                assert own.level == level
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])
        own.setLevel(before[2])
