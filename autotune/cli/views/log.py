"""The log of a service or a worker: a JSON object a line, on stderr."""

import json
import logging
import os
import re
import sys
import time

LEVEL = "AUTOTUNE_LOG"
"""The variable that says from which level on our own lines are written, such as `debug`."""
_SECRETS = re.compile(
    r"(?i)(?P<name>bearer\s+|token=|password=)[^\s\"'&,]+|(?P<at>://[^/\s:@]*:)[^\s/@]+(?=@)"
)
"""What comes with an exception of a library, such as the URL of a database."""


class _Lines(logging.Formatter):
    """Writes records as JSON; a message that is an object already is taken into it."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            data = json.loads(record.getMessage())
        except ValueError:
            data = None
        if not isinstance(data, dict):
            data = {"event": _without_secrets(record.getMessage())}
        if record.exc_info:
            data["exception"] = _without_secrets(self.formatException(record.exc_info))
        utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        return json.dumps({"utc": utc, "level": record.levelname.lower(), **data})


def log_to_stderr() -> None:
    """Write what our own loggers and uvicorn's say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    level = os.environ.get(LEVEL, "info").upper()
    levels = logging.getLevelNamesMapping()
    logging.getLogger("autotune").setLevel(levels.get(level, logging.INFO))
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)


def _without_secrets(text: str) -> str:
    return _SECRETS.sub(lambda found: f"{found['name'] or found['at']}...", text)
