"""A real run in a real terminal: what is seen as it goes, and what is left of that."""

import json
import re
import shlex
import sys

from tests.cpu.conftest import Command
from tests.cpu.test_run import FEW, own_children, write_job
from tests.terminals import terminal

ROWS = {
    "now": r"probe N, N s: NxN.*",
    "steps": r"N of at most N micro-steps.*",
    "memory": r"\[#+\.+\] peak N \w+ of N \w+.*",
    "best": r"probe N, N tokens/s \+-N%, N \w+.*",
    "gain": r"(this probe is )?expected to save N .* of .*N .*",
    "time": r"the search (is over in N .* at the latest|takes up to about N .* more)",
    "budget": r"N of N probes; N s of N min",
    "left": r"N of N candidates; N probed.*",
}
"""The rows of a panel while a probe trains, and another was measured."""
STARTED_S, DRAWN_S = 180.0, 20.0


def panel(screen: str) -> dict[str, str]:
    """The rows of the panel below what was printed, with N for each number."""
    found = re.findall(r"^(\w+) {3,}(.*)$", screen, re.MULTILINE)
    return {name: re.sub(r"\d+(\.\d+)?", "N", text) for name, text in found if name in ROWS}


def is_whole(screen: str) -> bool:
    """Whether all its rows are seen, and as they should."""
    shown = panel(screen)
    return all(name in shown and re.fullmatch(ROWS[name], shown[name]) for name in ROWS)


def test_a_run_is_followed_in_a_terminal_and_leaves_it_clean(autotune: Command) -> None:
    """Slow probes, on rows of 1,600 tokens: each drawing of the panel can be caught."""
    folder = autotune.folder
    lengths = {"lengths": {"max": 2000, "p50": 1600, "p99": 1960, "rows": 500}}
    few = {**FEW, "gradient_checkpointing": False}
    budget = {"probes": 30, "minutes": 5}
    write_job(folder, dataset=lengths, max_length=2000, budget=budget, fixed=few)
    run = f"{shlex.quote(sys.executable)} -m autotune run job.yaml --out run --json"
    line = f'{run} >out.json; echo "code $?"'
    with terminal(line, folder, 120, 30, {"CI": "", "COLORTERM": ""}) as there:
        seen = there.until(is_whole, STARTED_S)
        assert is_whole(seen), f"{seen}\n{panel(seen)}"
        lines = [text for text in seen.splitlines() if text.startswith("probe ")]
        assert lines, "what was measured is printed above"
        for width in (60, 200, 80):
            there.resize(width, 30)
            narrow = there.until(lambda screen, w=width: fits(screen, w), DRAWN_S)
            assert fits(narrow, width), narrow
        there.type("C-c")
        seen = there.until(lambda screen: "code " in screen, DRAWN_S)
        assert "code 130" in seen and "interrupted; go on with: autotune run --resume" in seen
        assert not panel(seen), "nothing of the panel is left"
        assert there.shows_cursor
    result = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert result["outcome"] == "interrupted" and result["knobs"]
    assert not own_children(str(folder / "run"))


def fits(screen: str, width: int) -> bool:
    """Whether the panel is there once, with rows no wider than the terminal."""
    rows = re.findall(r"^(\w+) {3,}\S.*$", screen, re.MULTILINE)
    names = [name for name in rows if name in ROWS]
    whole = {"now", "budget", "left"} <= set(names) and len(names) == len(set(names))
    return whole and all(len(text) <= width for text in screen.splitlines())
