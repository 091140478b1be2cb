"""How far estimates are: what is counted while children trace, and what is shown of it."""

import io
from pathlib import Path

import pytest

from autotune.cli.views import console as consoles
from autotune.cli.views.console import EstimatesShown, PlainConsole
from autotune.estimate.protocol import POINT
from autotune.plan.children import traced_in_children
from autotune.plan.choices import Choice
from autotune.plan.progress import Progress
from autotune.report import progress_lines
from tests.unit.builders import make_estimate, make_facts, make_job, make_space
from tests.unit.plan.test_plan import SilentServer, tasks


class TellingServer(SilentServer):
    """Its children tell of each point but the last, as real ones may when they end."""

    def run(self, folder, worker, limits, watch=None, host=None, cancelled=None):
        if watch is None:  # tried again, as somebody else ended it: nothing is counted twice
            return super().run()
        points = self.points.pop(0)
        for index in range(points - 1):
            assert watch({"event": POINT, "index": index}) is None
        return super().run()


class Heard(Progress):
    def __init__(self, heard: list) -> None:
        self._heard = heard

    def estimated(self, done: int, of: int) -> None:
        self._heard.append((done, of))


def test_every_candidate_is_counted_once(tmp_path: Path) -> None:
    asked, heard = tasks(tmp_path), []
    server = TellingServer()
    server.points = [len(task.request.points) for task in asked]
    assert max(server.points) > 1
    traced_in_children(asked, server, tmp_path, Heard(heard))
    of = sum(len(task.members) for task in asked)
    assert [done for done, _ in heard] == sorted({done for done, _ in heard})
    assert len(heard) > len(asked)
    assert heard[0] == (0, of)
    assert heard[-1] == (of, of) == (8, 8)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, ["estimated 1 of 3 candidates ...", "estimated 2 of 3 candidates ..."]), (60.0, [])],
)
def test_without_a_terminal_there_is_a_line_now_and_then(seconds, shown, monkeypatch) -> None:
    monkeypatch.setattr(consoles, "NOW_AND_THEN_S", seconds)
    file = io.StringIO()
    told = EstimatesShown(PlainConsole(file=file))
    for done in (1, 2, 3):
        told.estimated(done, 3)
    told.clear()
    assert file.getvalue().splitlines() == shown


def test_in_a_terminal_one_line_moves_and_goes(monkeypatch) -> None:
    monkeypatch.setattr(consoles, "_MOVE_S", 0.0)
    file = io.StringIO()
    told = EstimatesShown(PlainConsole(file=file, force_terminal=True, color_system=None))
    told.estimated(1, 3)
    assert file.getvalue() == "\x1b[2Kestimated 1 of 3 candidates ...\r"
    told.looking_at("list of changes 2")
    told.estimated(2, 3)  # in the place of a line that may have been longer
    assert file.getvalue().endswith("\x1b[2Klist of changes 2: estimated 2 of 3 candidates ...\r")
    told.estimated(3, 3)
    assert file.getvalue().endswith("\x1b[2K") and "\n" not in file.getvalue()


def test_the_best_so_far_has_a_line_of_its_own() -> None:
    file = io.StringIO()
    space, estimate = (
        make_space(make_job(), make_facts()),
        make_estimate(2**30, tokens_per_s=1234.0),
    )
    best = Choice(candidate=space.default(), estimate=estimate, folded=1)
    EstimatesShown(PlainConsole(file=file, width=200)).improved(best, space, 1)
    (line,) = file.getvalue().splitlines()
    assert line.startswith("so far: ") and "1.23k tokens/s" in line


def test_that_nothing_fits_is_said_before_what_would_is_looked_for() -> None:
    file = io.StringIO()
    EstimatesShown(PlainConsole(file=file, width=200)).nothing_fits(24 * 2**30)
    assert file.getvalue() == "so far: nothing fits in 24 GiB; looking for what would\n"


def test_what_is_left_is_said_once_some_seconds_tell_of_it(monkeypatch) -> None:
    monkeypatch.setattr(consoles, "NOW_AND_THEN_S", 0.0)
    seconds = iter([0.0, 0.0, 10.0])
    monkeypatch.setattr(progress_lines.time, "monotonic", lambda: next(seconds))
    file = io.StringIO()
    told = EstimatesShown(PlainConsole(file=file, width=200))
    told.estimated(0, 4)
    told.estimated(1, 4)
    assert file.getvalue().splitlines()[-1] == "estimated 1 of 4 candidates, about 30.0 s left ..."
