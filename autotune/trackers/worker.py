"""CHILD: sends entries to one tool, one after another, and remembers what was sent.

    python -m autotune.trackers.worker TOOL FEED SENT_FILE PARENT

The first line of FEED is a `TrackedRun`, each that follows an `Entry`; the file grows as the run
goes, until a line says that it is over. An entry that was sent before is passed over. SENT_FILE
has what was sent, and the first failure, with which this process ends: what hangs or crashes here
is not the search. PARENT is the process that starts this one.
"""

import importlib
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.plain_data import from_plain
from autotune.process.descendants import die_with_parent
from autotune.process.messages import read_json, write_json
from autotune.trackers.tracker import OVER, Entry, TrackedRun, Tracker

POLL_S = 0.3


def main(tool: str, feed: Path, sent_file: Path, parent: int) -> int:
    """Send what comes until the run is over; return the exit code."""
    die_with_parent()
    if os.getppid() != parent:  # it died before that took effect
        return 1
    marks = _marks(sent_file)
    try:
        make: type[Tracker] = importlib.import_module(f"autotune.trackers.{tool}").Runs
        messages = _messages(feed)
        run = next(messages, None)
        if run is None:
            return 0
        tracker = make(from_plain(TrackedRun, run))
        for message in messages:
            entry = from_plain(Entry, message)
            if entry.mark not in marks:
                tracker.record(entry)
                marks.append(entry.mark)
                write_json(sent_file, {"sent": marks})
    except (Exception, SystemExit) as error:
        print(without_passwords(traceback.format_exc()), file=sys.stderr)
        words = without_passwords(" ".join(str(error).split()))
        fault = f"{type(error).__name__}: {words}"[:300]
        write_json(sent_file, {"sent": marks, "fault": fault})
        return 1
    return 0


def without_passwords(text: str) -> str:
    """Return a text whose addresses name nobody: a tracking URI may hold a password."""
    return re.sub(r"://[^/\s@]+@", "://...@", text)


def _messages(feed: Path) -> Iterator[Any]:
    """Yield what the feed says, as it is written, until it is over."""
    line = ""
    with feed.open(encoding="ascii") as file:
        while True:
            line += file.readline()
            if not line.endswith("\n"):
                time.sleep(POLL_S)
                continue
            message, line = json.loads(line), ""
            if message == OVER:
                return
            yield message


def _marks(sent_file: Path) -> list[str]:
    data = read_json(sent_file)
    marks = data.get("sent") if isinstance(data, dict) else None
    return [mark for mark in marks if isinstance(mark, str)] if isinstance(marks, list) else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
