"""The log of a service or a worker: a JSON object a line, on stderr."""

import json
import logging
import sys
import time


class _Lines(logging.Formatter):
    """Writes records as JSON; a message that is an object already is taken into it."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            data = json.loads(record.getMessage())
        except ValueError:
            data = None
        if not isinstance(data, dict):
            data = {"event": record.getMessage()}
        if record.exc_info:
            data["exception"] = self.formatException(record.exc_info)
        utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        return json.dumps({"utc": utc, "level": record.levelname.lower(), **data})


def log_to_stderr() -> None:
    """Write what our own loggers and uvicorn's say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("autotune").setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.INFO)
