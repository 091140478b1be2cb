"""CHILD: sends entries to one tool, one after another, and remembers what was sent.

    python -m autotune.trackers.worker TOOL SENT_FILE

The first line that comes in is a `TrackedRun`, each that follows an `Entry`; one that was sent
before is passed over. A line goes out for each, {"sent": key}, or, at the first failure,
{"fault": words}, with which it ends: what hangs or crashes here is not the search.
"""

import importlib
import json
import os
import re
import sys
import traceback
from pathlib import Path

from autotune.process.descendants import die_with_parent
from autotune.process.messages import read_json, write_json
from autotune.trackers.tracker import Entry, TrackedRun, Tracker


def main(tool: str, sent_file: Path) -> int:
    """Send what comes until the input ends; the exit code."""
    die_with_parent()
    replies = os.dup(1)  # stdout is for lines alone: whatever a tool prints goes to the log
    os.dup2(2, 1)

    def say(**line: str) -> None:
        os.write(replies, json.dumps(line).encode() + b"\n")

    try:
        make: type[Tracker] = importlib.import_module(f"autotune.trackers.{tool}").Runs
        first = sys.stdin.readline()
        if not first:
            return 0
        tracker = make(TrackedRun.from_plain(json.loads(first)))
        marks = _marks(sent_file)
        for line in sys.stdin:
            entry = Entry.from_plain(json.loads(line))
            if entry.mark not in marks:
                tracker.record(entry)
                marks = [*marks, entry.mark]
                write_json(sent_file, {"sent": marks})
            say(sent=entry.key)
    except (Exception, SystemExit) as error:
        print(without_passwords(traceback.format_exc()), file=sys.stderr)
        words = without_passwords(" ".join(str(error).split()))
        say(fault=f"{type(error).__name__}: {words}"[:300])
        return 1
    return 0


def without_passwords(text: str) -> str:
    """Return a text whose addresses name nobody: a tracking URI may hold a password."""
    return re.sub(r"://[^/\s@]+@", "://...@", text)


def _marks(sent_file: Path) -> list[str]:
    data = read_json(sent_file)
    marks = data.get("sent") if isinstance(data, dict) else None
    return [mark for mark in marks if isinstance(mark, str)] if isinstance(marks, list) else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
