"""A study that is lost, made anew from what its probes left."""

import shutil
from pathlib import Path

import pytest

from autotune.probe.survey import allowed_memory
from autotune.process.messages import write_json
from autotune.process.run_folder import RunFolder
from autotune.run.past_run import reopen
from autotune.run.study import rebuild, set_aside
from autotune.search.record import Record
from autotune.search.study import Study
from tests.unit.builders import make_sampler
from tests.unit.past_run import STUDY, make_run


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose probes have left their files; probe 3 left its reply alone, 5 nothing."""
    run = make_run(tmp_path_factory.mktemp("past"))
    for record in reopen(run.path).records:
        run.keep_candidate(record.number, record.candidate.knobs)
        folder = run.probe(record.number)
        file = folder.reply if record.number == 3 else folder.measurement
        if record.number != 5:
            write_json(file, record.measurement.plain())
    return run


def records_again(run: RunFolder) -> tuple[str | None, list[Record]]:
    """What was wrong, and the records of the study as a run that goes on opens it."""
    space, allowed = reopen_space(run)
    fault = set_aside(run, STUDY)
    sampler = make_sampler(space)
    study = Study(space, run.database, STUDY, allowed_bytes=allowed, sampler=sampler)
    rebuild(study, space, run)
    return fault, study.records()


def reopen_space(run: RunFolder):
    from autotune.run.stored import stored_facts
    from autotune.space.bind import bind
    from autotune.space.job_file.load import load_job

    job, definition = load_job(run.job)
    facts = stored_facts(run)
    return bind(definition, job, facts), allowed_memory(job, facts.device)


def lose(run: RunFolder, how: str) -> None:
    data = run.database.read_bytes()
    if how == "missing":
        run.database.unlink()
    else:
        whole = {"empty": b"", "cut": data[: len(data) // 2], "text": b"nothing of SQLite" * 300}
        run.database.write_bytes(whole[how])


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "text"])
def test_a_lost_study_has_all_its_probes_again(kept: RunFolder, tmp_path: Path, how: str) -> None:
    before = list(reopen(kept.path).records)
    shutil.copytree(kept.path, tmp_path / "run")
    run = RunFolder(path=tmp_path / "run")
    lose(run, how)
    fault, records = records_again(run)
    assert fault is not None
    assert [r.number for r in records] == [r.number for r in before]
    assert [r.candidate.key for r in records] == [r.candidate.key for r in before]
    assert [r.measurement for r in records[:5]] == [r.measurement for r in before[:5]]
    assert records[5].measurement.outcome == "interrupted"
    assert reopen(run.path).recommendation().chosen.number == 1
    broken = run.database.with_name("study.db.broken")
    assert broken.exists() == (how != "missing")
    again, same = records_again(run)
    assert again is None and same == records


def test_a_probe_of_another_space_is_left_out_and_keeps_its_number(kept: RunFolder) -> None:
    run = RunFolder(path=kept.path.with_name("foreign"))
    shutil.copytree(kept.path, run.path)
    run.keep_candidate(1, {"a knob": "of another job"})
    lose(run, "missing")
    _, records = records_again(run)
    assert [record.number for record in records] == [0, 2, 3, 4, 5]


def test_what_is_whole_is_left_as_it_is(kept: RunFolder) -> None:
    before = kept.database.read_bytes()
    assert set_aside(kept, STUDY) is None
    assert kept.database.read_bytes() == before
