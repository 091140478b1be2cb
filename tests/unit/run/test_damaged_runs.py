"""Commands on run folders whose files are damaged: words, never a traceback."""

import json
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from autotune.estimate.residual import Residual
from autotune.process.messages import write_json
from autotune.process.run_folder import RunFolder
from autotune.run.expectations import Expectations
from autotune.run.past_run import reopen
from tests.unit.builders import GIB, make_estimate
from tests.unit.calling import call, refused
from tests.unit.past_run import make_run
from tests.unit.run.damage import damage

FILES = ("facts.json", "estimates.json", "ending.json", "bundle/recommendation.json", "study.db")
FILES += ("run.json", "job.yaml")
EXECUTIONS = int(os.environ.get("AUTOTUNE_FUZZ", "50"))
SAVING = {"probing_s": 9.0, "job_s": 100.0, "default_s": 200.0, "measured": True}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that came to its end, with all its files."""
    run = make_run(tmp_path_factory.mktemp("past"))
    keys = [record.candidate.key for record in reopen(run.path).records]
    estimates = {key: make_estimate(2 * GIB, tokens_per_s=150.0) for key in keys}
    expected = Expectations(estimates=estimates, prior=Residual(), limit_bytes=70 * GIB)
    write_json(run.estimates, expected.plain())
    ending = {"outcome": "recommended", "stop_reason": "all probed", "saving": SAVING}
    write_json(run.ending, ending)
    call("emit", run.path)
    return run


def test_damage_at_random_is_answered_in_words(whole: RunFolder, tmp_path: Path) -> None:
    """For longer: `scripts/nightly`."""
    rng, tracebacks = random.Random(7), []
    for number in range(EXECUTIONS):
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole.path, folder)
        name = rng.choice(FILES)
        said = f"{number}: {name} {damage(folder / name, rng)}"
        page = ["report", "--html", str(tmp_path / f"{number}.html")]
        command = rng.choice((page, ["report", "--json"], ["emit"]))
        result = call(*command, folder)
        if result.exit_code not in (0, 2, 3) or "Traceback" in result.stderr:
            last = result.stderr.strip().splitlines()[-2:]
            tracebacks.append(f"{command[0]} after {said}: {last}")
    assert not tracebacks, f"{len(tracebacks)} of {EXECUTIONS}:\n" + "\n".join(tracebacks)


@pytest.mark.parametrize("file", ["estimates.json", "ending.json", "bundle/recommendation.json"])
def test_what_is_damaged_is_named_and_the_rest_is_shown(
    whole: RunFolder, tmp_path: Path, file: str
) -> None:
    run = RunFolder(path=tmp_path / "run")
    shutil.copytree(whole.path, run.path)
    (run.path / file).write_text('{"half": ', encoding="utf-8")
    result, name = call("report", run.path), Path(file).name
    assert result.exit_code == 0
    assert result.stderr.startswith(f"damaged: {name} is left out: ")
    rows = [line.split() for line in result.stdout.partition("\n\n")[0].splitlines()]
    assert [row[0] for row in rows if row[0].isdigit()] == ["0", "1", "2", "3", "4", "5"]
    plain = json.loads(call("report", run.path, "--json").stdout)
    assert len(plain["damaged"]) == 1 and len(plain["probes"]) == 6
    assert call("emit", run.path).exit_code == 0
    assert (call("report", run.path).stderr == "") == (name == "recommendation.json")


@pytest.mark.parametrize("file", ["facts.json", "study.db"])
def test_what_a_run_cannot_do_without_is_named(whole: RunFolder, tmp_path: Path, file: str) -> None:
    run = RunFolder(path=tmp_path / "run")
    shutil.copytree(whole.path, run.path)
    (run.path / file).write_bytes(b'{"model": {}} and much else' * 200)
    for command in ("report", "emit", "verify"):
        stderr = refused(command, run.path)
        assert stderr.startswith(f"error: {run.path}: {file}") and "--resume" in stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_run_that_may_only_be_read_is_shown_and_not_written() -> None:
    folder = Path(tempfile.mkdtemp(prefix="autotune-read-only-"))
    try:
        run = make_run(folder)
        call("emit", run.path)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.seteuid(65534)
        try:
            shown = call("report", run.path)
            written = [call("emit", run.path), call("verify", run.path)]
        finally:
            os.seteuid(0)
    finally:
        shutil.rmtree(folder)
    assert (shown.exit_code, shown.stderr) == (0, "")
    for result in written:
        assert result.exit_code == 3 and "Traceback" not in result.stderr
        assert result.stderr.startswith("error: ") and str(run.path) in result.stderr
