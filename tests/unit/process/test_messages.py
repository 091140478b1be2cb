"""The files between parent and child: whole or absent, and nothing half-read."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.probe.protocol import OUTCOMES, Measurement
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.progress import ProgressReader

ROOT = Path(__file__).resolve().parents[3]


def test_what_is_written_is_read(nasty_dir: Path) -> None:
    data = {"a": [1, 2.5, None, True], "ü": "日本", "nested": {"x": {}}}
    write_json(nasty_dir / "x.json", data)
    assert read_json(nasty_dir / "x.json") == data
    assert [path.name for path in nasty_dir.iterdir()] == ["x.json"]


def test_a_writer_that_is_killed_leaves_the_old_file_whole(tmp_path: Path) -> None:
    """The kill comes where it hurts most: after the data, before the name."""
    path = tmp_path / "x.json"
    write_json(path, {"version": "old"})
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from autotune.process import messages\n"
        "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "messages.write_json(Path(sys.argv[1]), {'version': 'new'})\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script, str(path)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert completed.returncode == -signal.SIGKILL
    assert (tmp_path / "x.json.draft").exists()
    assert read_json(path) == {"version": "old"}
    write_json(path, {"version": "newer"})
    assert read_json(path) == {"version": "newer"}


@pytest.mark.parametrize("data", [{"x": float("nan")}, {"x": float("inf")}, {"x": object()}])
def test_what_is_no_json_is_refused_and_the_old_file_stays(tmp_path: Path, data: object) -> None:
    write_json(tmp_path / "x.json", 1)
    with pytest.raises((TypeError, ValueError)):
        write_json(tmp_path / "x.json", data)
    assert read_json(tmp_path / "x.json") == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"a": 1', b'{"a": 1}}', b"\xff\xfe{}", b"[" * 200_000, b"1" * 100_000],
)
def test_a_file_that_is_not_whole_json_reads_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    assert read_json(tmp_path / "x.json") is None


def test_a_file_that_is_missing_or_a_folder_reads_as_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "missing.json") is None
    assert read_json(tmp_path / "missing" / "x.json") is None
    assert read_json(tmp_path) is None


def test_progress_is_read_once_and_half_a_line_waits_for_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    reader = ProgressReader(path)
    assert reader.new_events() == []
    with path.open("ab", buffering=0) as file:
        file.write(b'{"n": 1}\n{"n": ')
        assert reader.new_events() == [{"n": 1}]
        assert reader.new_events() == []
        file.write(b"2}")
        assert reader.new_events() == []
        file.write(b'\n{"n": 3}\n')
        assert reader.new_events() == [{"n": 2}, {"n": 3}]
        file.write('{"n": "ü'.encode()[:-1])
        assert reader.new_events() == []
        file.write("ü".encode()[1:] + b'"}\n')
        assert reader.new_events() == [{"n": "ü"}]


def test_progress_that_is_no_event_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    lines = [b"garbage", b"\xff\xfe", b"", b"[1]", b"7", b'"x"', b"null", b"[" * 200_000, b"{}"]
    path.write_bytes(b"\n".join([*lines, b'{"n": 1}', b""]))
    assert ProgressReader(path).new_events() == [{}, {"n": 1}]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_measurement_survives_its_way_through_a_file(tmp_path: Path, outcome: str) -> None:
    measurement = Measurement(
        outcome=outcome,
        reason="because",
        tokens_per_s=1234.5,
        peak_memory_bytes=2**40,
        inferred=True,
        stages_s={"train": 1.5},
        failure={"type": "X"},
        processes=[{"pid": 1}],
    )
    write_json(tmp_path / "m.json", measurement.plain())
    assert Measurement.from_plain(json.loads((tmp_path / "m.json").read_text())) == measurement


def test_a_measurement_leaves_out_what_it_does_not_know() -> None:
    data = {"outcome": "ok", "reason": "x", "colour": "blue"}
    assert Measurement.from_plain(data) == Measurement(outcome="ok", reason="x")


@pytest.mark.parametrize("outcome", ["", "OK", "fine", None, 1, ["ok"]])
def test_an_outcome_that_does_not_exist_is_refused(outcome: object) -> None:
    with pytest.raises(ValueError, match="is not one of the outcomes ok, oom"):
        Measurement(outcome=outcome, reason="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens_per_s": "fast"},
        {"tokens_per_s": float("nan")},
        {"tokens_per_s": True},
        {"peak_memory_bytes": 1.5},
        {"micro_steps_measured": None},
        {"stages_s": []},
        {"reason": None},
    ],
)
def test_a_measurement_of_the_wrong_kind_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(fields))}|cannot be stored"):
        Measurement.from_plain({"outcome": "ok", "reason": "x", **fields})


def test_a_measurement_of_a_number_that_cannot_be_stored_is_not_made() -> None:
    with pytest.raises(ValueError, match="`last_loss` cannot be nan"):
        Measurement(outcome="ok", reason="x", last_loss=float("nan"))


def test_a_probes_files_lie_in_its_folder(nasty_dir: Path) -> None:
    folder = ChildFolder(path=nasty_dir)
    names = ("request", "reply", "progress", "stdout", "stderr", "scratch")
    assert {getattr(folder, name).parent for name in names} == {nasty_dir}
