"""The log of a service or a worker on stderr: a JSON object a line, or a problem in plain text."""

import json
import logging
import os
import re
import sys
import time
from typing import Any

from autotune.errors import visible

LEVEL = "AUTOTUNE_LOG"
"""The variable that says from which level on our own lines are written, such as `debug`."""
_SECRETS = re.compile(
    r"(?i)(?P<name>bearer\s+|token=|password=)[^\s\"'&,]+|(?P<at>://[^/\s:@]*:)[^\s/@]+(?=@)"
)
"""What comes with an exception of a library, such as the URL of a database."""


class _Lines(logging.Formatter):
    """Writes records as JSON; a message that is an object already is taken into it."""

    def format(self, record: logging.LogRecord) -> str:
        data = _fields(record)
        if record.exc_info:
            data["exception"] = _without_secrets(self.formatException(record.exc_info))
        utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        return json.dumps({"utc": utc, "level": record.levelname.lower(), **data})


class _Plain(logging.Formatter):
    """Writes records as people read them."""

    def format(self, record: logging.LogRecord) -> str:
        event, *more = _fields(record).items()
        text = ", ".join([str(event[1]), *(f"{name} {value}" for name, value in more)])
        if record.exc_info:
            text += "\n" + _without_secrets(self.formatException(record.exc_info))
        return visible(f"{record.levelname.lower()}: {text}")


def log_to_stderr(*, as_json: bool = True) -> None:
    """Write what our own loggers and uvicorn's say; in plain text only problems."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines() if as_json else _Plain())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    usual = logging.INFO if as_json else logging.WARNING
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL, "").upper(), usual)
    logging.getLogger("autotune").setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(usual)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    text = record.getMessage()
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    return data if isinstance(data, dict) and data else {"event": _without_secrets(text)}


def _without_secrets(text: str) -> str:
    return _SECRETS.sub(lambda found: f"{found['name'] or found['at']}...", text)
