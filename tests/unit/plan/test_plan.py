"""A trace that goes wrong must not end a plan or a run."""

import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.plan import children
from autotune.plan.children import traced_in_children
from autotune.plan.progress import Progress
from autotune.plan.variants import variant_tasks
from autotune.process.limits import Ending
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from tests.unit.builders import make_facts, make_job


class SilentServer:
    """Its children end without an answer; or somebody presses Ctrl-C while they run."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.closed = False
        self._error = error

    def run(self, *_: object, **__: object) -> Ending:
        if self._error is not None:
            raise self._error
        return Ending(
            why="exited", exit_code=None, signal=9, max_rss_bytes=None, strays=0, seconds=1.0
        )

    def close(self) -> None:
        self.closed = True


def tasks(folder: Path) -> list:
    job, facts = make_job(), make_facts()
    facts = replace(facts, model=replace(facts.model, path=str(folder)))
    space = bind(load_definition("sft"), job, facts)
    return variant_tasks(
        [space.settings(one) for one in space.candidates[:8]], rows=folder, limit=2**34, cache=None
    )


def test_a_child_that_dies_leaves_its_path_to_the_formula(tmp_path: Path) -> None:
    asked = tasks(tmp_path)
    replies = traced_in_children(asked, SilentServer(), tmp_path, Progress())
    assert len(replies) == len(asked) > 0
    assert all("signal 9" in (reply.problem or "") for reply in replies)


def test_ctrl_c_closes_the_server_and_goes_on_up(tmp_path: Path) -> None:
    server = SilentServer(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        traced_in_children(tasks(tmp_path), server, tmp_path, Progress())
    assert server.closed


def test_a_trace_that_ctrl_c_ended_is_not_begun_again(tmp_path: Path, monkeypatch) -> None:
    """It took an import of the stack, and its trace, to end."""

    class Pressed(SilentServer):
        """The first of its two children runs until the server is closed; at the second, Ctrl-C."""

        def __init__(self) -> None:
            super().__init__()
            self.runs, self.ended = itertools.count(), threading.Event()

        def run(self, *_: object, cancelled: threading.Event, **__: object) -> Ending:
            if next(self.runs):
                raise KeyboardInterrupt
            assert self.ended.wait(20) and cancelled.is_set()
            return Ending(why="lost", seconds=1.0)

        def close(self) -> None:
            super().close()
            self.ended.set()

    monkeypatch.setattr(children, "cores", lambda: 2)
    server, heard = Pressed(), []
    with pytest.raises(KeyboardInterrupt):
        traced_in_children(
            tasks(tmp_path), server, tmp_path, Progress(), lambda *told: heard.append(told)
        )
    assert next(server.runs) == 2
    assert heard == []
