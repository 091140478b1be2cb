"""`autotune run`: how a run starts, goes on and ends. The search itself is left out."""

import json
import shlex

import pytest

from autotune.engine.opening import EngineOptions
from autotune.errors import Problem, UserError
from autotune.job.yaml_file import to_yaml
from autotune.plain_data import from_plain
from autotune.process.messages import read_json
from autotune.process.run_folder import RunFolder
from autotune.run.opening import begin
from autotune.run.session import Options, Result
from autotune.run.verdict import Verification
from autotune.search.recommend import NothingFits, recommend
from autotune.search.storage import open_storage
from autotune.space.job_file.load import load_job
from tests.unit.builders import ok
from tests.unit.calling import call, refused
from tests.unit.past_run import make_run, start_run, write_job

NOTHING = recommend([], None)
FIELDS = {"records": (), "stop_reason": "the budget of 1 probe(s) is spent", "space_size": 3}


@pytest.fixture
def tuned(monkeypatch):
    """Calls that `tune` got, in place of the search; `ends` is what the next one comes to."""

    class Tuned:
        calls = []
        ends = Result(outcome="interrupted", **FIELDS)

    def tune(job, definition, run, *, storage, listener, options):
        if options is not None:
            begin(run, to_yaml(job.plain()), options, own_storage=storage is None)
        Tuned.calls.append((job, run, storage))
        return Tuned.ends

    Tuned.calls = []
    monkeypatch.setattr("autotune.run.tuning.tune", tune)
    return Tuned


def test_a_run_begins_with_its_job_resolved_in_its_folder(nasty_dir, tuned):
    out = nasty_dir / "out"
    result = call("run", write_job(nasty_dir), "--out", out, "--budget", "3")
    assert result.exit_code == 130
    assert (
        result.stderr == f"interrupted; go on with: autotune run --resume {shlex.quote(str(out))}\n"
    )
    ((job, run, storage),) = tuned.calls
    assert (run.path, storage) == (out, None)
    assert load_job(run.job)[0] == job
    assert job.budget.probes == 3
    assert read_json(run.run)["study"].startswith("autotune-")


def test_a_quiet_run_says_nothing_but_its_result(tmp_path, monkeypatch):
    def tune(job, definition, run, *, storage, listener, options):
        begin(run, to_yaml(job.plain()), options)
        listener.surveying(job)
        listener.stopped("it is over")
        return Result(outcome="nothing_fits", nothing_fits=NOTHING, **FIELDS)

    monkeypatch.setattr("autotune.run.tuning.tune", tune)
    job = write_job(tmp_path)
    loud = call("run", job, "--out", tmp_path / "loud")
    quiet = call("run", job, "--out", tmp_path / "quiet", "--quiet")
    assert loud.stderr.splitlines()[-1] == "search ends: it is over"
    assert (quiet.stdout, quiet.stderr) == (loud.stdout, "")
    assert json.loads(call("run", job, "--out", tmp_path / "json", "--quiet", "--json").stdout)


def test_a_run_is_named_after_its_job_below_the_working_folder(tmp_path, tuned, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("run", write_job(tmp_path))
    ((_, run, _),) = tuned.calls
    assert run.path.parent == tmp_path / "runs"
    assert run.path.name.startswith("job-")


def test_a_folder_with_a_run_is_not_overwritten(tmp_path, tuned):
    run = make_run(tmp_path)
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    stderr = refused("run", tmp_path / "job.yaml", "--out", run.path)
    assert f"error: {run.path}: the folder is not empty" in stderr
    assert f"hint: go on with it by `autotune run --resume {shlex.quote(str(run.path))}`" in stderr
    assert {path.name: path.read_bytes() for path in run.path.iterdir()} == before
    assert tuned.calls == []


def test_a_folder_with_something_else_gets_no_hint_to_resume(tmp_path, tuned):
    stderr = refused("run", write_job(tmp_path), "--out", tmp_path)
    assert "the folder is not empty" in stderr and "--resume" not in stderr
    assert "this is a file, not a folder" in refused(
        "run", tmp_path / "job.yaml", "--out", tmp_path / "job.yaml"
    )


def test_a_bad_job_leaves_no_folder_behind(tmp_path, tuned):
    refused("run", write_job(tmp_path, headroom=2), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_goes_on_with_its_own_job(tmp_path, tuned):
    run = start_run(tmp_path)
    (tmp_path / "job.yaml").unlink()
    assert call("run", "--resume", run.path).exit_code == 130
    assert tuned.calls == [(load_job(run.job)[0], run, None)]


@pytest.mark.parametrize(
    "flags", [("--budget", "50"), ("--budget", "2h"), ("--set", "budget.probes=50")]
)
def test_the_budget_of_a_resumed_run_may_change(flags, tmp_path, tuned):
    run = start_run(tmp_path)
    assert call("run", "--resume", run.path, *flags).exit_code == 130
    ((job, _, _),) = tuned.calls
    before, _ = load_job(run.job)
    assert job.budget != before.budget
    assert job.model_copy(update={"budget": before.budget}) == before


@pytest.mark.parametrize(
    "flags",
    [
        ("--set", "learning_rate=1e-3"),
        ("--set", "headroom=0.2"),
        ("--set", "gradient_checkpointing=true"),
        ("--max-length", "99"),
        ("--budget", "50", "--global-batch-size", "4"),
    ],
)
def test_nothing_else_of_a_resumed_run_may_change(flags, tmp_path, tuned):
    run = start_run(tmp_path)
    stderr = refused("run", "--resume", run.path, *flags)
    assert "only the budget of a resumed run may change" in stderr
    assert tuned.calls == []


def test_a_resumed_run_takes_no_other_job(tmp_path, tuned):
    run = start_run(tmp_path)
    stderr = refused("run", tmp_path / "job.yaml", "--resume", run.path)
    assert "a resumed run keeps its job" in stderr


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("recommended", 0),
        ("not verified", 1),
        ("nothing_fits", 1),
        ("nothing_measured", 4),
        ("nothing_stable", 4),
        ("interrupted", 130),
    ],
)
def test_the_exit_code_and_the_json_tell_how_it_ended(outcome, code, tmp_path, tuned):
    from tests.unit.builders import make_record

    found = recommend([make_record(0, ok(10.0))], None)
    nothing = NothingFits(nearest=None, short_bytes=None, short_is_lower_bound=True, rejected={})
    verified = {"recommended": True, "not verified": False}.get(outcome)
    outcome = "recommended" if verified is not None else outcome
    none = outcome in ("nothing_measured", "nothing_stable")
    tuned.ends = Result(
        outcome=outcome,
        recommendation=found if outcome == "recommended" else None,
        verification=None if verified is None else Verification(verified=verified, reason="so"),
        nothing_fits=nothing if outcome == "nothing_fits" else None,
        nothing_measured=Problem(where="", what="late") if none else None,
        **FIELDS,
    )
    result = call("run", write_job(tmp_path), "--out", tmp_path / "out", "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout)["outcome"] == outcome


def test_how_to_search_is_a_flag_no_part_of_the_job_and_kept_with_the_run(tmp_path, tuned):
    def kept():
        _, run, _ = tuned.calls[-1]
        return from_plain(Options, read_json(run.run)["options"])

    call("run", write_job(tmp_path), "--out", tmp_path / "one")
    assert kept() == Options(history=True)
    flags = ["--no-history", "--no-verify"]
    call("run", tmp_path / "job.yaml", "--out", tmp_path / "two", *flags)
    assert kept() == Options(history=False, verify=False)
    call("run", "--resume", tmp_path / "two")
    assert kept() == Options(history=False, verify=False)
    call("run", "--resume", tmp_path / "two", "--engine", "ray", "--at-once", "3")
    on_ray = EngineOptions(name="ray", at_once=3)
    assert kept() == Options(history=False, verify=False, engine=on_ray)
    for flag in flags:
        refused = call("run", "--resume", tmp_path / "two", flag)
        assert (refused.exit_code, flag in refused.stderr) == (2, True)


def test_ctrl_c_and_a_failing_machine_end_with_their_codes(tmp_path, monkeypatch):
    from autotune.errors import machine_error

    def raising(error):
        def tune(*args, **kwargs):
            raise error

        return tune

    monkeypatch.setattr("autotune.run.tuning.tune", raising(KeyboardInterrupt()))
    result = call("run", write_job(tmp_path), "--out", tmp_path / "one")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")
    monkeypatch.setattr("autotune.run.tuning.tune", raising(machine_error("no GPU 3", hint="look")))
    result = call("run", tmp_path / "job.yaml", "--out", tmp_path / "two")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "error: no GPU 3\n  hint: look\n"


def test_a_study_kept_elsewhere_is_asked_for_again_and_its_url_is_not_kept(
    tmp_path, tuned, monkeypatch
):
    job = write_job(tmp_path)
    url = "sqlite:///" + str(tmp_path / "else.db")
    monkeypatch.setenv("AUTOTUNE_STORAGE", url)
    assert call("run", job, "--out", tmp_path / "run").exit_code == 130
    assert call("run", "--resume", tmp_path / "run").exit_code == 130
    assert [storage for _, _, storage in tuned.calls] == [url, url]
    assert url not in (tmp_path / "run" / "run.json").read_text(encoding="utf-8")
    monkeypatch.delenv("AUTOTUNE_STORAGE")
    forgotten = call("run", "--resume", tmp_path / "run")
    assert forgotten.exit_code == 2 and "set AUTOTUNE_STORAGE" in forgotten.stderr


def test_a_run_takes_its_lock_before_it_begins(tmp_path):
    """Two that begin at once in one folder: nothing of the second is written."""
    run = RunFolder(path=tmp_path / "out")
    with run.locked():
        stderr = refused("run", write_job(tmp_path), "--out", run.path)
    assert "another autotune process is working on this run" in stderr
    assert [entry.name for entry in run.path.iterdir()] == [".lock"]


def test_of_two_that_resume_a_run_the_second_says_so(tmp_path):
    run = start_run(tmp_path)
    with run.locked():
        stderr = refused("run", "--resume", run.path)
    assert "another autotune process is working on this run" in stderr


SECRET = "postgresql://me:a-secret@127.0.0.1:1/studies"


def test_the_password_of_a_storage_is_not_kept(tmp_path, tuned, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_STORAGE", SECRET)
    assert call("run", write_job(tmp_path), "--out", tmp_path / "one").exit_code == 130
    assert [storage for _, _, storage in tuned.calls] == [SECRET]
    stored = [path.read_bytes() for path in tmp_path.rglob("*.json")]
    assert stored and not any(b"a-secret" in data for data in stored)
    with pytest.raises(UserError) as caught:
        open_storage(SECRET, make=False)
    assert "cannot open the study" in str(caught.value) and "a-secret" not in str(caught.value)
