"""What a worker ends: plans that take too much memory, works that take too long, too much disk."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from autotune.server.store.values import Ending, Lease, WorkerInfo
from autotune.server.worker import task as task_module
from autotune.server.worker.loop import Capacity, WorkerLoop
from autotune.server.worker.task import Task

INFO = WorkerInfo(name="w", machine="m", device_kind="cpu", devices=[0], device_name="a processor")


class Command:
    """A command that runs until it is asked to end."""

    exit_code: int | None = None
    resident_bytes = 2**20

    def __init__(self, _: Any, *, output: Path, errors: Path, **__: Any) -> None:
        output.touch()
        errors.touch()

    def interrupt(self) -> None:
        self.exit_code = 130

    def end(self) -> None:
        self.exit_code = 137


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "Command", Command)


def lease(kind: Any, limit_s: float | None) -> Lease:
    return Lease(
        id="0" * 16,
        kind=kind,
        job="model: m\n",
        model_config_json=None,
        arguments=[],
        attempt=1,
        limit_s=limit_s,
        study=None,
    )


def ending(task: Task) -> tuple[int, str, bool]:
    assert task.has_ended
    said = task._ending(task._command.exit_code or 0)
    return said.exit_code, said.error, said.interrupted


@pytest.mark.parametrize("kind", ["plan", "run"])
def test_what_takes_too_long_or_too_much_is_ended_with_a_name(tmp_path: Path, kind: str) -> None:
    slow = Task(lease(kind, -1.0), tmp_path / "slow", {}, 2**30)
    slow.look()
    code, error, interrupted = ending(slow)
    assert code == 130 and "took longer" in error and "operator" in error and not interrupted
    patient = Task(lease(kind, None), tmp_path / "patient", {}, 2**30)
    patient.look()
    assert not patient.has_ended
    large = Task(lease(kind, 60.0), tmp_path / "large", {}, 2**10)
    large.look()
    assert large.has_ended is (kind == "plan"), "a run's memory has limits of its own"
    if kind == "plan":
        assert "plan_memory" in ending(large)[1]


def test_a_folder_beyond_the_quota_ends_its_work(tmp_path: Path) -> None:
    capacity = Capacity(runs=True, plans=1, plan_memory=2**30, folders=2**20)
    door: Any = None
    loop = WorkerLoop(
        info=INFO, door=door, root=tmp_path, capacity=capacity, environment={}, replaces=""
    )
    task = Task(lease("run", None), tmp_path, {}, 2**30)
    loop._tasks[task.lease.id] = task
    loop._kept()
    assert not task.has_ended
    (task.folder / "large").write_bytes(b"x" * 2**21)
    (task.folder / "link").symlink_to("/dev/zero")
    loop._kept()
    code, error, _ = ending(task)
    assert code == 130 and "its folder took more" in error
    assert task.folder.is_dir(), "what is under way is not deleted"
    del loop._tasks[task.lease.id]
    assert loop._kept() == [] and not task.folder.exists()


def test_a_work_that_cannot_begin_is_told_as_failed(tmp_path: Path) -> None:
    class Door:
        endings: ClassVar[list[Ending]] = []

        def lease(self, *_: Any) -> Lease:
            return lease("run", None)

        def finish(self, _worker: str, _id: str, how: Ending) -> None:
            self.endings.append(how)

    door: Any = Door()
    root = tmp_path / "works"
    root.write_text("a file where a folder should be", encoding="utf-8")
    capacity = Capacity(runs=True, plans=1, plan_memory=2**30, folders=2**20)
    loop = WorkerLoop(
        info=INFO, door=door, root=root, capacity=capacity, environment={}, replaces=""
    )
    loop._take()
    (told,) = door.endings
    assert told.exit_code == 3 and "cannot begin it: Not a directory" in told.error
    assert not loop._tasks
