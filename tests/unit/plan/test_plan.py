"""A trace that goes wrong must not end a plan or a run."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.plan.children import Servers, traced_in_children
from autotune.plan.progress import Progress
from autotune.plan.variants import variant_tasks
from autotune.process.limits import Ending, lost_ending
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from tests.unit.builders import make_facts, make_job


class SilentServer:
    """Its children end without an answer; or somebody presses Ctrl-C while they run."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.closed = False
        self._error = error

    def run(self, *_: object) -> Ending:
        if self._error is not None:
            raise self._error
        return Ending(
            why="exited", exit_code=None, signal=9, max_rss_bytes=None, strays=0, seconds=1.0
        )

    def close(self) -> None:
        self.closed = True


def tasks(folder: Path) -> list:
    job, facts = make_job(), make_facts()
    space = bind(load_definition("sft", None), job, facts)
    facts = replace(facts, model=replace(facts.model, path=str(folder)))
    return variant_tasks(job, facts, space.candidates[:8], rows=folder, limit=2**34, cache=None)


def test_a_child_that_dies_leaves_its_path_to_the_formula(tmp_path: Path) -> None:
    asked = tasks(tmp_path)
    replies = traced_in_children(asked, Servers(tmp_path, SilentServer()), tmp_path, Progress())
    assert len(replies) == len(asked) > 0
    assert all("signal 9" in (reply.problem or "") for reply in replies)


def test_ctrl_c_closes_the_servers_and_goes_on_up(tmp_path: Path) -> None:
    server = SilentServer(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        traced_in_children(tasks(tmp_path), Servers(tmp_path, server), tmp_path, Progress())
    assert server.closed


def test_a_second_ctrl_c_while_servers_are_closed_leaves_none_open(tmp_path: Path) -> None:
    """The others' children would be waited for until their traces end."""

    class Interrupted(SilentServer):
        def close(self) -> None:
            super().close()
            raise KeyboardInterrupt

    servers = [Interrupted(KeyboardInterrupt) for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        traced_in_children(tasks(tmp_path), Servers(tmp_path, *servers), tmp_path, Progress())
    assert all(server.closed for server in servers)


def test_a_trace_that_ctrl_c_ended_is_not_begun_again(tmp_path: Path) -> None:
    """It took an import of the stack, and its trace, to end."""

    class Running(SilentServer):
        runs = 0

        def __init__(self) -> None:
            super().__init__()
            self.ended = threading.Event()

        def run(self, *_: object) -> Ending:
            self.runs += 1
            assert self.ended.wait(20)
            return lost_ending(1.0)

        def close(self) -> None:
            super().close()
            self.ended.set()

    class Pressed(SilentServer):
        def run(self, *_: object) -> Ending:
            while not running.runs:
                time.sleep(0.01)
            raise KeyboardInterrupt

    running, heard = Running(), []
    servers = Servers(tmp_path, Pressed(), running)
    with pytest.raises(KeyboardInterrupt):
        traced_in_children(
            tasks(tmp_path), servers, tmp_path, Progress(), lambda *told: heard.append(told)
        )
    assert running.runs == 1
    assert heard == []
