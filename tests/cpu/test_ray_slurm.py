"""The Slurm job that searches on Ray, with a stand-in for `srun` and real nodes of Ray. What it
starts to search is stood in for by a program that counts them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.calling import call, refused

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

SLURM = Path(__file__).parents[1] / "slurm"
PYTHON = '#!/bin/bash\nexec {python} "$@"\n'
RAY = '#!/bin/bash\nexec {python} -m ray.scripts.scripts "$@"\n'
COUNTS = """\
#!{python}
import json, os, sys
import ray
ray.init(sys.argv[sys.argv.index("--address") + 1], log_to_driver=False)
alive = sum(node["Alive"] for node in ray.nodes())
print(json.dumps([sys.argv[1:], alive, os.environ["RAY_AUTH_MODE"]]))
sys.exit(3)
"""


def test_every_machine_of_an_allocation_joins_the_search(tmp_path):
    job, home, commands = tmp_path / "a job.yaml", tmp_path / "home", tmp_path / "commands"
    job.write_text("model: m\ndataset: {lengths: {max: 64}}\ndevices: {kind: cpu}\n")
    home.mkdir(exist_ok=True)
    assert call("emit", job, "--format=ray-slurm", "--out", tmp_path / "out").exit_code == 0
    script = (tmp_path / "out" / "ray.slurm").read_text(encoding="utf-8")
    commands.mkdir()
    for name, text in (("python", PYTHON), ("ray", RAY), ("autotune", COUNTS)):
        (commands / name).write_text(text.format(python=sys.executable), encoding="utf-8")
        (commands / name).chmod(0o755)
    ours = script.replace(sys.executable, str(commands / "python"))
    (tmp_path / "copied").write_text(ours, encoding="utf-8")
    number = str(os.getpid())
    done = subprocess.run(
        ["bash", str(tmp_path / "copied"), "--no-verify"],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "HOME": str(home),
            "PATH": f"{SLURM}:{os.environ['PATH']}",
            "SLURM_JOB_ID": number,
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_CPUS_ON_NODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=400,
    )
    shutil.rmtree(f"/tmp/ray-{number}", ignore_errors=True)
    assert done.returncode == 3, done.stderr[-3000:]  # the search's own
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[[")]
    arguments, alive, token = json.loads(line)
    assert arguments[:4] == ["run", str(job), "--engine", "ray"]
    assert arguments[-3:] == ["--at-once", "2", "--no-verify"]
    assert (alive, token) == (2, "token")
    assert (home / ".ray" / "auth_token").stat().st_mode & 0o77 == 0


def test_a_search_has_no_probe_to_emit(tmp_path):
    said = refused("emit", tmp_path, "--format=ray-slurm", "--probe=1")
    assert "a search has many probes" in said
