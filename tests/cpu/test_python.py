"""`import autotune` in a notebook and in a script, and what its answers give a trainer."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.api.planning import PlannedAnswer
from autotune.job.job import Job
from tests.cpu.stand_ins import EXAMPLES
from tests.cpu.test_run import write_job
from tests.unit.builders import make_facts, make_job
from tests.unit.cli.views.test_answer import estimated, made

NOTEBOOK = EXAMPLES / "notebook" / "first_answer.ipynb"
SCRIPT = """
import json, os, signal
import autotune

class Stopping(autotune.Listener):
    def improved(self, best, space, devices):
        os.kill(os.getpid(), signal.SIGINT)

answer = autotune.plan(autotune.load_job("job.yaml"), device="h200", listener=Stopping())
print(json.dumps([answer.stopped, answer.fits, answer.text]))
"""
"""As people write one: nothing in it waits for being the main module."""


def planned(kind: str = "cpu", **fields: Any) -> PlannedAnswer:
    """A plan that nobody traced, of a real space."""
    job: Job = make_job(global_batch_size=8, **fields)
    return PlannedAnswer(job=job, plan=made(estimated, job, make_facts(kind)))


@pytest.mark.nightly("documents")
def test_the_notebook_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(NOTEBOOK.parent)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Jupyter's own
        NotebookClient(notebook, kernel_name="python3", timeout=300, resources=place).execute()
    results = [
        output["data"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output["output_type"] == "execute_result"
    ]
    shown, frame, files, found, probes, trained = results
    assert "<b>Use 4 x 1 with" in shown["text/html"] and "<table>" in shown["text/html"]
    assert "peak_memory_bytes" in frame["text/html"]
    assert "'launch.sh'" in files["text/plain"] and "'sft_config.yaml'" in files["text/plain"]
    assert "tokens/s (measured" in found["text/plain"]
    assert "<td>ok</td>" in probes["text/html"]
    assert trained["text/plain"] == "(2, True)"


def test_a_script_needs_no_main_guard_and_an_interrupt_gives_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "nothing is remembered"))
    write_job(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    stopped, fits, text = json.loads(done.stdout)
    assert stopped and fits and text.startswith("Stopped early; so far use ")


def test_fields_come_over_the_answers_own() -> None:
    own = planned(precision="fp32").training_arguments("out", max_steps=2)
    assert (own.output_dir, own.max_steps, own.report_to) == ("out", 2, [])


def test_a_field_that_the_class_lacks_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(autotune.UserError, match="Unknown arguments.*max_stepps"):
        planned(precision="fp32").training_arguments("out", max_stepps=2)
    with pytest.raises(autotune.UserError, match="max_steps.*invalid int value: 'two'"):
        planned(precision="fp32").training_arguments("out", max_steps="two")
    assert "usage:" not in capfd.readouterr().err


def test_what_this_machine_cannot_make_says_where_it_can_be_made() -> None:
    answer = planned("cuda", precision="bf16")
    with pytest.raises(autotune.MachineError, match="write_bundle"):
        answer.training_arguments()
    assert answer.environment["CUDA_VISIBLE_DEVICES"] == str(answer.plan.facts.device.index)


def test_several_processes_are_the_launchers_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    pins = {"loss_type": "nll"}  # the test's facts are of an older TRL, which has another name
    answer = planned("cuda", precision="fp32", devices={"count": 2}, fixed=pins)
    with pytest.warns(UserWarning, match="accelerate launch"):
        answer.training_arguments()
    monkeypatch.setenv("WORLD_SIZE", "1")  # warnings are errors here
    assert answer.training_arguments().per_device_train_batch_size == 4
