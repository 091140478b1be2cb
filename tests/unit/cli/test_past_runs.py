"""`report`, `emit` and `verify` on a run that was made before."""

import json
import shlex
from dataclasses import replace

import pytest

from autotune.process.messages import read_json
from autotune.process.run_folder import RunFolder
from tests.unit.builders import GIB, bad, ok
from tests.unit.calling import call, refused
from tests.unit.past_run import MEASUREMENTS, make_run, start_run


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    """A finished run; tests must leave it as it is."""
    return make_run(tmp_path_factory.mktemp("past"))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def emitted(past, folder, *arguments):
    result = call("emit", past.path, "--out", folder, *arguments)
    assert (result.exit_code, result.stdout) == (0, f"{folder}\n")
    return contents(folder)


def test_report_shows_every_candidate(past):
    result = call("report", past.path)
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    shown = [row for row in rows if row and row[0].isdigit()]
    assert [row[0] for row in shown] == ["0", "1", "2", "3", "4", "5"]
    outcomes = [m.outcome for m in MEASUREMENTS]
    outcomes[4] = "headroom"  # it ran, and takes too much
    assert [o for row, o in zip(shown, outcomes, strict=True) if o in row] == outcomes
    assert "200" in shown[1] and "3 GiB" in " ".join(shown[1])
    assert rows[-1] == ["no", "recommendation", "yet"]


def test_report_is_written_as_html_beside_what_is_printed(past, tmp_path):
    page = tmp_path / "new" / "r.html"
    plain = call("report", past.path).stdout
    shown = call("report", past.path, "--html", page).stdout
    assert shown == f"{plain}report: {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [file.name for file in page.parent.iterdir()] == ["r.html"]
    again = call("report", past.path, "--json", "--html", tmp_path / "j.html").stdout
    assert json.loads(again) == json.loads(call("report", past.path, "--json").stdout)
    assert (tmp_path / "j.html").read_bytes() == page.read_bytes()


def test_a_report_takes_no_other_files_place(past, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("mine", "link"):
        stderr = refused("report", past.path, "--html", tmp_path / name)
        assert f"--html {tmp_path / name}: the file exists already" in stderr
    assert "is a directory" in refused("report", past.path, "--html", tmp_path)
    assert not (tmp_path / "nowhere").exists()
    assert (tmp_path / "mine").read_text() == "mine"


def test_report_as_json_has_every_measurement_whole(past):
    result = call("report", past.path, "--json")
    plain = json.loads(result.stdout)
    assert plain["schema"] == 1
    assert plain["counts"] == {"total": 5, "ok": 3, "oom": 1, "other": 1}
    assert [probe["probe"] for probe in plain["probes"]] == list(range(len(MEASUREMENTS)))
    assert [probe["measurement"] for probe in plain["probes"]] == [m.plain() for m in MEASUREMENTS]
    assert plain["probes"][0]["knobs"]["optim"] == "adamw_torch"
    assert plain["recommendation"] is None


def test_emit_writes_the_fastest_that_leaves_the_headroom(past, tmp_path):
    files = emitted(past, tmp_path / "bundle")
    names = {"sft_config.yaml", "accelerate.yaml", "launch.sh", "recommendation.json", "README.md"}
    assert files.keys() == names
    stored = json.loads(files["recommendation.json"])
    assert stored["chosen"]["probe"] == 1
    assert stored["verified"] is False
    headroom = "it leaves less memory free than the headroom asks for"
    assert stored["rejected"] == {"oom": [2], "crash": [3], "interrupted": [5], headroom: [4]}
    assert b"run_name: 1e-4\n" in files["sft_config.yaml"]
    assert (tmp_path / "bundle" / "launch.sh").stat().st_mode & 0o111


def test_a_run_is_shown_where_its_model_and_data_have_gone_and_not_launched(tmp_path):
    run = make_run(tmp_path)
    before, files = call("report", run.path), emitted(run, tmp_path / "before")
    for name in ("m", "d"):
        (tmp_path / name).rmdir()
    after = call("report", run.path)
    assert (after.exit_code, after.stdout, after.stderr) == (0, before.stdout, "")
    assert emitted(run, tmp_path / "after") == files
    for command in (("verify",), ("run", "--resume")):
        stderr = refused(*command, run.path)
        for field, name in (("model", "m"), ("dataset", "d")):
            assert f"`{field}`: there is no {tmp_path / name}" in stderr


def test_emitting_twice_gives_the_same_bytes(past, tmp_path):
    assert emitted(past, tmp_path / "one") == emitted(past, tmp_path / "two")


def test_another_probe_can_be_emitted(past, tmp_path):
    stored = json.loads(emitted(past, tmp_path / "b", "--probe", "0")["recommendation.json"])
    assert stored["chosen"]["probe"] == 0
    assert stored["reasons"] == ["asked for; -50% tokens/s against probe 1, the recommended one"]
    same = emitted(past, tmp_path / "c", "--probe", "1")
    assert same == emitted(past, tmp_path / "d")


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6, -1])
def test_a_probe_that_is_not_stable_is_not_emitted(past, number, tmp_path):
    stderr = refused("emit", past.path, "--out", tmp_path / "bundle", "--probe", number)
    assert f"probe {number} is not a stable candidate of this run" in stderr
    assert not (tmp_path / "bundle").exists()


def test_emit_replaces_the_bundle_of_the_run_but_no_other_folder(tmp_path):
    run = make_run(tmp_path)
    (tmp_path / "mine").mkdir()
    assert "the folder exists already" in refused("emit", run.path, "--out", tmp_path / "mine")
    first = call("emit", run.path, "--json")
    assert json.loads(first.stdout) == {"schema": 1, "bundle": str(run.bundle), "probe": 1}
    call("emit", run.path, "--probe", "0")
    assert read_json(run.recommendation)["chosen"]["probe"] == 0
    left = {"run.json", "job.yaml", "facts.json", "study.db", "bundle", ".lock"}
    assert {path.name for path in run.path.iterdir()} == left


def test_report_shows_what_is_recommended(tmp_path):
    run = make_run(tmp_path)
    call("emit", run.path)
    lines = call("report", run.path).stdout.splitlines()
    start = lines.index("recommended: probe 1")
    assert lines[start + 1].startswith("- fastest stable candidate: 200 tokens/s")
    assert lines[-1] == f"bundle: {run.bundle}"
    plain = json.loads(call("report", run.path, "--json").stdout)
    assert plain["recommendation"] == read_json(run.recommendation)


def test_a_folder_that_looks_like_markup_is_printed_as_it_is(tmp_path):
    (tmp_path / "bold").mkdir()
    made = make_run(tmp_path / "bold")  # none begins in a folder of the other name
    (tmp_path / "bold").rename(tmp_path / "[bold]")
    run = RunFolder(path=tmp_path / "[bold]" / made.path.name)
    call("emit", run.path)
    stored = read_json(run.recommendation)
    stored["reasons"] = ["faster than [red]that[/red]"]
    stored["verification"] = {"verified": False, "reason": "see [/log]"}
    run.recommendation.write_text(json.dumps(stored))
    lines = call("report", run.path).stdout.splitlines()
    assert "- faster than [red]that[/red]" in lines
    assert "NOT verified: see [/log]" in lines
    assert f"bundle: {run.bundle}" in lines


def test_a_run_with_a_nasty_name_is_reported_and_emitted(nasty_dir):
    run = make_run(nasty_dir)
    assert call("emit", run.path).stdout == f"{run.bundle}\n"
    assert call("report", run.path).exit_code == 0


def test_a_run_in_which_nothing_was_stable_emits_nothing(tmp_path):
    run = make_run(tmp_path, (bad("oom", missing_bytes=GIB), replace(ok(1.0, 70 * GIB))))
    assert "nothing stable was measured in this run" in refused("emit", run.path)
    assert call("report", run.path).exit_code == 0


@pytest.mark.parametrize("command", ["report", "verify", "emit", "run --resume"])
def test_a_folder_that_is_no_run_is_refused(command, tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        stderr = refused(*command.split(), folder)
        assert stderr.startswith(f"error: {folder}: run.json is missing or unreadable\n  hint: ")


@pytest.mark.parametrize("command", ["report", "verify", "emit"])
def test_a_run_that_ended_before_its_facts_is_refused(command, tmp_path):
    run = start_run(tmp_path)
    assert "facts.json is missing or unreadable" in refused(command, run.path)


@pytest.mark.parametrize("command", ["report", "verify", "emit"])
@pytest.mark.parametrize("lost", ["missing", "empty"])
def test_a_run_without_its_study_is_refused_and_nothing_is_made(command, lost, tmp_path):
    run = make_run(tmp_path)
    run.database.unlink()
    if lost == "empty":
        run.database.touch()
    stderr = refused(command, run.path)
    assert f"study.db: it is {lost}, and no probe has left files" in stderr
    assert (not run.database.exists()) if lost == "missing" else run.database.stat().st_size == 0
    assert not list(run.path.glob("study.db?*"))


def test_a_lost_study_of_which_probes_have_left_files_can_be_made_anew(tmp_path):
    run = make_run(tmp_path)
    run.keep_candidate(0, {})
    run.database.unlink()
    stderr = refused("report", run.path)
    assert "study.db: it is missing, and 1 probe(s) have left their files" in stderr
    assert f"`autotune run --resume {shlex.quote(str(run.path))}` rebuilds it from them" in stderr


@pytest.mark.parametrize("file", ["run.json", "facts.json"])
@pytest.mark.parametrize("text", ["[]", "{}", "{", ""])
def test_a_run_with_a_broken_file_is_refused_in_words(file, text, tmp_path):
    run = make_run(tmp_path)
    (run.path / file).write_text(text)
    assert file in refused("report", run.path)
