"""`launch.sh`, `launch_nodes.sh` and `launch.slurm` of several processes, with an interpreter that
only tells how it was called; Slurm's own commands are stood in for by scripts that do the least.
`tests/cpu/test_launch_several.py` trains by them."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from bundle_cases import CASES
from test_launch_script import bundle, launch, make_spy

from autotune.bundle.launch_script import nodes_script
from autotune.bundle.schedulers import scheduled
from autotune.space.sharding.sharding import Sharding
from autotune.space.trl_config import settings
from tests.unit.builders import make_facts, make_job, make_space

SLURM = Path(__file__).parents[1] / "slurm"
SCHEMAS = Path(__file__).parent / "schemas"
"""Of SkyPilot 0.14.1 and Kubeflow Trainer 2.3.0, the fields in use (each names its source)."""
SCHEDULERS = {
    "skypilot": {
        "SKYPILOT_NUM_NODES": "4",
        "SKYPILOT_NODE_RANK": "3",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3\n10.0.0.4",
    },
    "kubeflow": {"PET_NNODES": "4", "PET_NODE_RANK": "3", "PET_MASTER_ADDR": "10.0.0.1"},
    "srun": {"SLURM_NNODES": "4", "SLURM_NODEID": "3", "MAIN_ADDRESS": "10.0.0.1"},
}
"""What is set on the last of four machines: SkyPilot 0.14 (`sky/skylet/constants.py`), Kubeflow
Trainer 2.3 (`pkg/constants/constants.go`), srun(1)."""


def flag(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def nodes(folder: Path, tmp_path: Path, *arguments: str, **environment: str):
    spy = make_spy(tmp_path / "spy")
    script = folder / "launch_nodes.sh"
    return launch(script, *arguments, cwd=tmp_path, PYTHON=str(spy), **environment)


def test_deepspeeds_file_is_found_from_any_folder(nasty_dir, tmp_path):
    folder = nasty_dir / "bundle"
    spy = make_spy(tmp_path / "spy")
    call = launch(bundle(folder, "zero3"), "--max_steps", "3", cwd=tmp_path, PYTHON=str(spy))
    assert flag(call["argv"], "--deepspeed_config_file") == str(folder / "deepspeed.json")
    assert call["argv"][-2:] == ["--max_steps", "3"]
    assert call["environment"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"


def test_each_process_wants_a_gpu(tmp_path):
    spy = make_spy(tmp_path / "spy")
    script = bundle(tmp_path / "bundle", "zero3")
    refusal = launch(script, cwd=tmp_path, PYTHON=str(spy), CUDA_VISIBLE_DEVICES="4,5")
    assert (refusal.returncode, refusal.stdout) == (2, "")
    assert "8 processes want a GPU each" in refusal.stderr
    gpus = ",".join(map(str, range(8, 16)))
    call = launch(script, cwd=tmp_path, PYTHON=str(spy), CUDA_VISIBLE_DEVICES=gpus)
    assert call["environment"]["CUDA_VISIBLE_DEVICES"] == gpus


def test_the_server_takes_no_gpu_that_trains(tmp_path):
    case = CASES["grpo_server"]()
    devices = case.job.devices.model_copy(update={"count": 4})
    ranked = case.recommendation.chosen
    values_of_four = {"distributed_type": "MULTI_GPU", "generation_batch_size": 16}
    values = {**ranked.candidate.values, **values_of_four}
    candidate = replace(ranked.candidate, values=values, gradient_accumulation_steps=1)
    script = bundle(
        tmp_path / "bundle",
        "grpo_server",
        job=case.job.model_copy(update={"devices": devices}),
        facts=replace(case.facts, device=replace(case.facts.device, index=0, peers=(1, 2, 3))),
        recommendation=replace(case.recommendation, chosen=replace(ranked, candidate=candidate)),
    ).with_name("serve.sh")
    spy = make_spy(tmp_path / "spy")
    for gpu in ("0", "3", "4,2"):
        refusal = launch(script, cwd=tmp_path, PYTHON=str(spy), CUDA_VISIBLE_DEVICES=gpu)
        assert (refusal.returncode, "trains on 0 1 2 3" in refusal.stderr) == (2, True)
    call = launch(script, cwd=tmp_path, PYTHON=str(spy), CUDA_VISIBLE_DEVICES="4,5")
    assert flag(call["argv"], "--tensor-parallel-size") == "2"
    assert "CUDA_VISIBLE_DEVICES=4,5 bash serve.sh" in script.read_text(encoding="utf-8")


def seen_gpus(script: Path, tmp_path: Path, visible: str | None):
    """The GPUs of what a script starts, or what it says when it starts nothing."""
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    spy = make_spy(tmp_path / "spy")
    call = launch(script, cwd=tmp_path, PYTHON=str(spy), **environment)
    return call["environment"]["CUDA_VISIBLE_DEVICES"] if isinstance(call, dict) else call.stderr


@pytest.mark.parametrize(
    ("visible", "trains", "generates"),
    [
        (None, "0,1,2,3", "4,5"),
        # The whole job's, as a scheduler lists them: both take theirs from the same list.
        ("0,1,2,3,4,5,6,7", "0,1,2,3", "4,5"),
        ("7,6,5,4,3,2", "7,6,5,4", "3,2"),
        ("GPU-a,GPU-b,GPU-c,GPU-d,GPU-e,GPU-f", "GPU-a,GPU-b,GPU-c,GPU-d", "GPU-e,GPU-f"),
    ],
)
def test_of_the_jobs_gpus_each_script_takes_its_own(visible, trains, generates, tmp_path):
    launches = bundle(tmp_path / "bundle", "grpo_split")
    assert seen_gpus(launches, tmp_path, visible) == trains
    assert seen_gpus(launches.with_name("serve.sh"), tmp_path, visible) == generates
    assert not launches.with_name("launch_nodes.sh").exists()


@pytest.mark.parametrize(
    ("script", "visible", "message"),
    [
        ("launch.sh", "2,3,4,5", "GPU 4 generates (serve.sh has 4 5)"),
        ("launch.sh", "0,1,2", "4 GPU(s) train, CUDA_VISIBLE_DEVICES names 3"),
        ("serve.sh", "3,4", "GPU 3 trains (launch.sh trains on 0 1 2 3)"),
        ("serve.sh", "4,5,6", "2 GPU(s) generate, but CUDA_VISIBLE_DEVICES names 3"),
        ("serve.sh", "0,1,2,3,4,0", "GPU 0 trains"),
    ],
)
def test_a_gpu_never_trains_and_generates(script, visible, message, tmp_path):
    launches = bundle(tmp_path / "bundle", "grpo_split")
    assert message in seen_gpus(launches.with_name(script), tmp_path, visible)


def test_gpus_that_are_named_for_one_script_are_taken(tmp_path):
    launches = bundle(tmp_path / "bundle", "grpo_split")
    assert seen_gpus(launches, tmp_path, "3,2,1,0") == "3,2,1,0"
    assert seen_gpus(launches.with_name("serve.sh"), tmp_path, "7,6") == "7,6"


def test_nothing_is_started_before_the_placeholders_are_filled_in(tmp_path):
    folder = bundle(tmp_path / "bundle", "zero3").parent
    refusal = nodes(folder, tmp_path)
    assert (refusal.returncode, refusal.stdout) == (2, "")
    assert "MACHINE_RANK=0" in refusal.stderr
    assert "MAIN_ADDRESS=HOST" in refusal.stderr


@pytest.mark.parametrize("count", ["3", "16", "0", "two", "-1"])
def test_processes_are_spread_evenly_or_not_at_all(count, tmp_path):
    folder = bundle(tmp_path / "bundle", "zero3").parent
    refusal = nodes(folder, tmp_path, NODES=count, MACHINE_RANK="0", MAIN_ADDRESS="a")
    assert refusal.returncode == 2
    assert f"cannot be spread evenly over {count} machines" in refusal.stderr


@pytest.mark.parametrize(
    ("count", "gpus"), [("1", "0,1,2,3,4,5,6,7"), ("2", "0,1,2,3"), ("8", "0")]
)
def test_a_machine_starts_its_part_of_the_processes(count, gpus, tmp_path):
    folder = bundle(tmp_path / "bundle", "zero3").parent
    environment = {
        "NODES": count,
        "MACHINE_RANK": "0",
        "MAIN_ADDRESS": "node-a",
        "MAIN_PORT": "4711",
    }
    call = nodes(folder, tmp_path, "--max_steps", "3", **environment)
    argv = call["argv"]
    assert call["environment"]["CUDA_VISIBLE_DEVICES"] == gpus
    assert (flag(argv, "--num_machines"), flag(argv, "--num_processes")) == (count, "8")
    assert (flag(argv, "--machine_rank"), flag(argv, "--main_process_ip")) == ("0", "node-a")
    assert flag(argv, "--main_process_port") == "4711"
    assert flag(argv, "--deepspeed_config_file") == str(folder / "deepspeed.json")
    assert argv[-2:] == ["--max_steps", "3"]


def test_a_machine_with_too_few_gpus_starts_nothing(tmp_path):
    folder = bundle(tmp_path / "bundle", "zero3").parent
    environment = {"NODES": "2", "MACHINE_RANK": "1", "MAIN_ADDRESS": "node-a"}
    refusal = nodes(folder, tmp_path, CUDA_VISIBLE_DEVICES="0,1,2", **environment)
    assert (refusal.returncode, refusal.stdout) == (2, "")
    assert "4 processes want a GPU each, and CUDA_VISIBLE_DEVICES names 3" in refusal.stderr


def test_one_machine_needs_no_address(tmp_path):
    folder = bundle(tmp_path / "bundle", "fsdp2").parent
    argv = nodes(folder, tmp_path, NODES="1")["argv"]
    assert (flag(argv, "--machine_rank"), flag(argv, "--main_process_ip")) == ("0", "127.0.0.1")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_scheduler_says_what_nobody_has_said(scheduler, tmp_path):
    folder = bundle(tmp_path / "bundle", "machines").parent
    argv = nodes(folder, tmp_path, **SCHEDULERS[scheduler])["argv"]
    assert (flag(argv, "--num_machines"), flag(argv, "--machine_rank")) == ("4", "3")
    assert flag(argv, "--main_process_ip") == "10.0.0.1"
    mine = {"NODES": "8", "MACHINE_RANK": "5", "MAIN_ADDRESS": "head"}
    argv = nodes(folder, tmp_path, **{**SCHEDULERS[scheduler], **mine})["argv"]
    assert (flag(argv, "--num_machines"), flag(argv, "--machine_rank")) == ("8", "5")
    assert flag(argv, "--main_process_ip") == "head"


def test_an_allocation_of_one_machine_says_nothing_of_machines_that_a_user_counts(tmp_path):
    folder = bundle(tmp_path / "bundle", "machines").parent
    shell = {"SLURM_NNODES": "1", "SLURM_NODEID": "0"}
    mine = {"MACHINE_RANK": "1", "MAIN_ADDRESS": "head"}
    argv = nodes(folder, tmp_path, **shell, **mine)["argv"]
    assert (flag(argv, "--num_machines"), flag(argv, "--machine_rank")) == ("2", "1")


def test_a_slurm_job_tells_each_machine_its_place(nasty_dir, tmp_path):
    folder = nasty_dir / "bundle"
    bundle(folder, "zero3")
    # Slurm runs a copy of the script from a folder of its own.
    copied = tmp_path / "slurm_script"
    copied.write_bytes((folder / "launch.slurm").read_bytes())
    completed = subprocess.run(
        ["bash", str(copied), "--run_name", "a 'b' $c"],
        cwd=tmp_path,
        env={
            "PATH": f"{SLURM}:{os.environ['PATH']}",
            "PYTHON": str(make_spy(tmp_path / "spy")),
            "SLURM_SUBMIT_DIR": str(folder),
            "SLURM_JOB_NODELIST": "node-[a-b]",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_ID": "123456",
            "SLURM_CPUS_PER_TASK": "8",
            "MACHINE_RANK": "7",  # of the shell that submitted
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert completed.returncode == 0, completed.stderr
    calls = [json.loads(line)["argv"] for line in completed.stdout.splitlines()]
    assert sorted(flag(argv, "--machine_rank") for argv in calls) == ["0", "1"]
    for argv in calls:
        assert flag(argv, "--num_machines") == "2"
        assert (flag(argv, "--main_process_ip"), flag(argv, "--main_process_port")) == (
            "127.0.0.1",
            "23456",
        )
        assert flag(argv, "--config_file") == str(folder / "accelerate.yaml")
        assert argv[-2:] == ["--run_name", "a 'b' $c"]


def test_the_jobs_of_other_schedulers_are_for_the_same_machines():
    files = CASES["machines"]().files()
    task, job = (yaml.safe_load(files[name]) for name in ("sky.yaml", "trainjob.yaml"))
    assert (task["num_nodes"], task["resources"]) == (2, {"accelerators": "FILL_IN:8"})
    trainer = job["spec"]["trainer"]
    assert trainer["numNodes"] == 2
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 8}}
    assert "#SBATCH --gpus-per-node=8\n#SBATCH --cpus-per-task=8\n" in files["launch.slurm"]
    for name, value in (("sky_task", task), ("train_job", job)):
        schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
        jsonschema.validate(value, schema)


def test_one_process_has_none_of_it():
    files = CASES["cuda_bf16"]().files()
    assert not files.keys() & {"deepspeed.json", "launch_nodes.sh", "launch.slurm"}


@pytest.mark.parametrize(
    ("processes", "machines", "nodes", "slurm"),
    [(8, 1, 2, 1), (3, 1, 3, 1), (9, 1, 3, 3), (16, 1, 2, 2), (16, 4, 4, 4), (8, 2, 2, 2)],
)
def test_scripts_are_for_the_machines_of_the_job_or_the_fewest(processes, machines, nodes, slurm):
    sharding = Sharding(distributed_type="MULTI_GPU", num_processes=processes)
    job = make_job(devices={"nodes": machines})
    one = settings(job, make_facts("cuda"), make_space(make_job()).default())
    one = replace(one, sharding=sharding)
    script = nodes_script(one, "python")
    assert f'nodes="${{nodes:-{nodes}}}"' in script
    assert f"#   NODES={nodes} MACHINE_RANK=1 " in script
    text = scheduled(one, ())["launch.slurm"]
    assert f"#SBATCH --nodes={slurm}\n" in text
    assert f"#SBATCH --gpus-per-node={processes // slurm}\n" in text
