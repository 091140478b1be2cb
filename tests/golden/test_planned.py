"""The bundle of a plan: marked in every file, readable as ever, without its mark once verified."""

import json
import os
import subprocess
from dataclasses import replace

import pytest
import yaml
from bundle_cases import CASES

from autotune.bundle.bundle import RECOMMENDATION, launched_files
from autotune.bundle.check.asking import Checked
from autotune.bundle.check.read import read_launch
from autotune.bundle.planned import JOB_FILE, MARK, Planned, planned_files, verified_files
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.space.trl_config import settings
from tests.guards import ppo_apart
from tests.unit.builders import GIB, make_estimate
from tests.unit.bundle.check.asking import checked

NASTY = 'it\'s `$(touch broken)` "so",\nand ü *more*: ' + "a long reason " * 12
VERIFICATION = {"verified": True, "reason": "launched"}


def planned(name):
    """What a plan expects of a case."""
    return Planned(
        candidate=CASES[name]().recommendation.chosen.candidate,
        estimate=replace(make_estimate(3 * GIB, 2700.0), step_time_s=1.6),
        device="NVIDIA GeForce RTX 4090",
        candidates=72,
        limit_bytes=20 * GIB,
    )


def facts_of(case):
    """Its facts, with DeepSpeed and a local version of torch."""
    versions = {**case.facts.stack.versions, "torch": "2.13.0+cpu", "deepspeed": "0.19.8"}
    return replace(case.facts, stack=replace(case.facts.stack, versions=versions))


def files_of(name, why=None, nodes=None):
    """The bundle of a plan that came to a case's candidate."""
    case = CASES[name]()
    devices = case.job.devices
    devices = devices.model_copy(update={"nodes": nodes or devices.nodes})
    verification = None if why is None else {"verified": False, "reason": why}
    job, named = case.job.model_copy(update={"devices": devices}), planned(name)
    chosen = settings(job, facts_of(case), named.candidate, "/out")
    return planned_files(named, chosen, python="python3", verification=verification)


def verified(name):
    """The same once it was launched."""
    case = CASES[name]()
    measured = case.recommendation.chosen
    chosen = settings(case.job, case.facts, planned(name).candidate, "/out")
    kinds = {"python": "python3", "verification": VERIFICATION}
    return verified_files(planned(name), measured, chosen, **kinds)


def written(files, folder):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("why", [None, NASTY])
@pytest.mark.parametrize("name", ppo_apart(CASES))
def test_every_file_has_its_mark_in_the_first_lines_and_holds_what_it_held(name, why, tmp_path):
    case, files = CASES[name](), files_of(name, why)
    for text in files.values():
        assert any(MARK in line for line in text.splitlines()[:3]), text[:300]
    chosen = settings(case.job, facts_of(case), case.recommendation.chosen.candidate, "/out")
    for file, plain in launched_files(chosen, "python3").items():
        if file.endswith(".yaml"):
            assert yaml.safe_load(files[file]) == yaml.safe_load(plain)
        elif file.endswith(".json"):
            assert json.loads(files[file]).pop("_autotune").startswith(MARK)
            assert json.loads(files[file]).items() >= json.loads(plain).items()
        else:
            kept = [line for line in files[file].splitlines() if line in plain.splitlines()]
            assert kept == plain.splitlines()
    assert yaml.safe_load(files[JOB_FILE]) == case.job.plain()
    assert checked(read_launch(written(files, tmp_path))) == Checked(problems=())


@pytest.mark.parametrize("why", [None, NASTY])
@pytest.mark.parametrize("name", ["cpu_full", "ppo", "grpo_split", "zero3"])
def test_every_script_says_it_as_it_starts(name, why, tmp_path):
    folder = written(files_of(name, why), tmp_path)
    scripts = [*folder.glob("*.sh"), *folder.glob("*.slurm")]
    assert folder / "launch.sh" in scripts
    for script in scripts:
        done = subprocess.run(
            ["bash", str(script)],
            env={"PATH": os.environ["PATH"], "PYTHON": "true"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = f"{MARK}: {' '.join(why.split())}" if why else MARK
        assert done.stderr.splitlines()[0].startswith(f"{script.name}: {said} (")
        assert done.stdout == ""
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize("name", CASES)
def test_once_verified_nothing_is_marked_and_all_figures_are_measured(name):
    files, before = verified(name), files_of(name)
    assert files.keys() == before.keys()
    assert not [file for file, text in files.items() if MARK in text or "_autotune" in text]
    stored = json.loads(files[RECOMMENDATION])
    assert stored["verified"] is True
    assert stored["chosen"]["measurement"]["tokens_per_s"] == 2000.0
    assert Planned.from_plain(stored["planned"]) == planned(name)
    assert "2000 real tokens/s" in files["README.md"]
    assert "estimated 2700 tokens/s, +35% off" in files["README.md"]
    assert "another candidate may be faster here" in files["README.md"]


def test_the_page_of_a_plan_has_what_it_expects_and_what_it_assumes():
    page = files_of("zero3")["README.md"]
    assert "- 1.6 s per optimizer step\n" in page
    assert "- 2700 real tokens/s, +-30%\n" in page
    assert "3 GiB of 20 GiB" in page
    assert "- 8 x NVIDIA GeForce RTX 4090\n" in page
    assert "`torch==2.13.0`, " in page and "`deepspeed==0.19.8`\n" in page
    assert "\nNot verified.\n" in page
    one_line = NASTY.replace("\n", " ")
    assert f"\nNo: {one_line}.\n" in files_of("cpu_full", NASTY)["README.md"]


def test_several_machines_are_launched_by_their_own_scripts():
    files = files_of("zero3", nodes=2)
    assert "launch.sh" not in files and {"launch_nodes.sh", "launch.slurm"} <= files.keys()
    assert "on 2 machines, one for each device: run `bash launch_nodes.sh`" in files["README.md"]
    assert 'nodes="${nodes:-2}"' in files["launch_nodes.sh"]


def test_a_name_that_only_looks_like_the_mark_is_a_problem_still(tmp_path):
    files = files_of("zero3")
    files["deepspeed.json"] = files["deepspeed.json"].replace("_autotune", "_autotun")
    (problem,) = checked(read_launch(written(files, tmp_path))).problems
    assert problem.where == "deepspeed.json: _autotun"
    assert problem.what == "DeepSpeed reads no such field"


def test_the_job_of_every_method_can_be_read_again(tmp_path):
    methods = set()
    for name in CASES:
        data = yaml.safe_load(files_of(name)[JOB_FILE])
        methods.add(Job.model_validate(data).method)
    assert methods == set(METHODS)
