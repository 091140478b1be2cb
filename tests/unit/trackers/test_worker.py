"""What a tracker's process reads, and what it tells where it fails."""

import json
import threading
from pathlib import Path

from autotune.trackers.tracker import OVER
from autotune.trackers.worker import _messages, without_passwords


def test_an_address_in_a_fault_names_nobody() -> None:
    fault = "API request to https://me:secret@host/api failed; see https://host/x@y"
    assert (
        without_passwords(fault)
        == "API request to https://...@host/api failed; see https://host/x@y"
    )


def test_a_feed_is_read_in_whole_lines_until_it_is_over(tmp_path: Path) -> None:
    feed, read = tmp_path / "feed", list[object]()
    feed.write_text('{"first": ', encoding="ascii")
    reader = threading.Thread(target=lambda: read.extend(_messages(feed)), daemon=True)
    reader.start()
    with feed.open("a", encoding="ascii") as file:
        file.write('"\\u00fc"}\n' + json.dumps({"second": 2}) + "\n" + json.dumps(OVER) + "\n")
    reader.join(60)
    assert read == [{"first": "ü"}, {"second": 2}]
