"""What the operator sets: `server.yaml` is strict; what has ended goes by age, number and size."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.server.access.tokens import LOCAL_WORKER
from autotune.server.serve import delete_old, serve, worker_token
from autotune.server.settings import Settings, load_settings
from autotune.server.store.tables import DeletedRow, FileRow, WorkRow
from tests.unit.server.conftest import JOB, Served

Serve = Callable[..., Served]


def test_without_a_file_it_is_for_this_machine_and_allows_nothing() -> None:
    settings = load_settings(None)
    assert settings == Settings()
    assert settings.is_local and settings.host == "127.0.0.1"
    allowed = settings.allowed
    assert not (allowed.folders or allowed.hub or allowed.training or allowed.reward_functions)


def test_all_problems_are_said_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        'hots: 127.0.0.1\nport: "80"\nplan_memory: 8 parsecs\nfolders: [x]\n'
        "keep: {age: 90, works: 0}\nallowed:\n  folders:\n    - /nope\n    - .\n  minutes: -1\n"
        "  hub: yes\nlimits: {queued: 1.5}\n",
        encoding="utf-8",
    )
    with pytest.raises(UserError) as caught:
        load_settings(file)
    said = {}
    for problem in caught.value.problems:
        match = re.fullmatch(rf"{re.escape(str(file))}:(\d+)", problem.where)
        assert match is not None, problem.where
        said.setdefault(int(match[1]), []).append((problem.what, problem.hint))
    assert sorted(said) == [1, 2, 3, 4, 5, 8, 10, 11, 12]
    assert said[1] == [("unknown field `hots`", "did you mean `host`?")]
    assert said[4] == [("unknown field `folders`", "write it under `allowed`")]
    assert len(said[5]) == 2
    assert said[3][0][1] == "write for example `20GiB`"


@pytest.mark.parametrize("text", ["[1]", "a: [", "allowed: 7", "allowed: {folders: x}", "port:"])
def test_what_is_no_settings_file_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError):
        load_settings(file)
    with pytest.raises(UserError):
        load_settings(tmp_path / "missing.yaml")


def test_folders_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    file = tmp_path / "server.yaml"
    file.write_text("allowed: {folders: [models]}\nport: 1\n", encoding="utf-8")
    settings = load_settings(file, {"port": 2})
    assert settings.allowed.folders == [str(tmp_path / "models")]
    assert settings.port == 2


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("", False)]
    + [("10.0.0.1", False), ("::", False), ("127.0.0.1 ", False)],
)
def test_only_loopback_is_local(host: str, local: bool) -> None:
    assert Settings(host=host).is_local is local


def works(served: Served, count: int) -> list[str]:
    return [served.submit(JOB).json()["id"] for _ in range(count)]


def end(served: Served, ids: list[str], ended: float | None = None) -> None:
    for id in ids:
        served.service.works.cancel(id)
    if ended is not None:
        with served.service.database.writing() as session:
            for id in ids:
                row = session.get(WorkRow, id)
                assert row is not None
                row.ended = ended


def left(served: Served, ids: list[str]) -> list[str]:
    return [id for id in ids if served.service.works.state(id) is not None]


def test_what_ended_long_ago_goes(served: Served) -> None:
    old, waiting = works(served, 2), works(served, 1)
    end(served, old[:1], ended=1.0)
    delete_old(served.service)
    assert left(served, old + waiting) == [old[1], *waiting]
    assert served.service.works.deleted(old) == [old[0]], "workers are told to forget its folder"


def test_what_was_deleted_is_forgotten_in_its_time(serve: Serve) -> None:
    served = serve(keep={"age": "1h"})
    old, new = works(served, 2)
    end(served, [old, new])
    assert served.service.works.delete([old, new]) == 2
    with served.service.database.writing() as session:
        row = session.get(DeletedRow, old)
        assert row is not None
        row.time -= 3601.0
    delete_old(served.service)
    assert served.service.works.deleted([old, new]) == [new]


def test_the_local_workers_token_is_made_anew_where_it_is_not_known(served: Served) -> None:
    service = served.service
    file = worker_token(service, service.folder)
    first = file.read_text(encoding="ascii")
    assert worker_token(service, service.folder).read_text(encoding="ascii") == first
    assert service.tokens.remove_named(LOCAL_WORKER) == 1
    second = worker_token(service, service.folder).read_text(encoding="ascii")
    holder = service.tokens.holder(second)
    assert second != first and holder is not None and holder.role == "worker"
    assert file.stat().st_mode & 0o777 == 0o600


def test_beyond_a_number_the_oldest_that_have_ended_go(serve: Serve) -> None:
    served = serve(keep={"works": 2})
    ids = works(served, 4)
    end(served, [ids[0], ids[1], ids[3]])
    delete_old(served.service)
    assert left(served, ids) == [ids[2], ids[3]]


def test_beyond_a_size_the_oldest_that_have_ended_go(serve: Serve) -> None:
    served = serve(keep={"database": "64MiB"})
    ids = works(served, 4)
    with served.service.database.writing() as session:
        for id in ids:
            session.add(FileRow(work=id, name="bundle.zip", content=b"x" * (24 * 2**20)))
    end(served, ids[:3])
    delete_old(served.service)
    assert left(served, ids) == ids[2:]


def test_the_services_own_folder_cannot_be_allowed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = served.service.folder
    file = folder / "server.yaml"
    (folder / "works").mkdir(exist_ok=True)
    for allowed in (folder.parent, folder, folder / "works"):
        file.write_text(f"allowed: {{folders: [{allowed}]}}\nport: 0\n", encoding="utf-8")
        with pytest.raises(Exception, match="own folder"):
            serve(load_settings(file), folder)
