"""`launch_nodes.sh` as a job of Slurm, SkyPilot and Kubeflow Trainer; a search as one of Slurm."""

import shlex
from collections.abc import Sequence

from autotune.bundle.launch_script import NODES_SCRIPT, fewest_machines
from autotune.job.job import Devices
from autotune.space.trl_config import Settings, threads

_SLURM_FILL_IN = """\
##SBATCH --partition=FILL_IN  # fill in what your cluster wants, and take one `#` away
##SBATCH --account=FILL_IN
##SBATCH --time=FILL_IN
##SBATCH --exclusive --mem=0  # whole machines, with all of their memory
"""


def scheduled(chosen: Settings, packages: Sequence[str]) -> dict[str, str]:
    """Return the files of schedulers: Slurm's, and of a job for several machines the others'. For a
    job of one, Slurm is asked for the fewest machines that have 8 GPUs at most.

    Args:
        packages: that it was tuned with, as pip requirements.
    """
    name, on_gpus = chosen.job.method, chosen.facts.device.kind == "cuda"
    processes, machines = chosen.processes, chosen.job.devices.nodes
    cpus = threads(chosen.facts, processes // machines)
    cpus += chosen.config.get("dataloader_num_workers") or 0  # of each process
    nodes = machines if machines > 1 else fewest_machines(processes, -(-processes // 8))
    each = processes // nodes
    files = {"launch.slurm": _slurm_script(name, on_gpus, nodes, each, each * cpus)}
    if machines > 1:
        files["sky.yaml"] = _sky_task(name, nodes, each, packages)
        files["trainjob.yaml"] = _train_job(name, nodes, each)
    return files


def _slurm_script(name: str, on_gpus: bool, nodes: int, per_node: int, cpus: int) -> str:
    """Return the Slurm job: one task on each machine, which starts that machine's processes."""
    gpus = f"#SBATCH --gpus-per-node={per_node}\n" if on_gpus else ""
    return f"""\
#!/usr/bin/env bash
# Written by autotune: {NODES_SCRIPT} as a Slurm job. Submit it from this folder, which all machines
# have to see: sbatch launch.slurm [arguments for TRL]
# Machines times processes of each have to stay {nodes * per_node}. Flags of sbatch win over these.
#SBATCH --job-name=autotune-{name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{gpus}#SBATCH --cpus-per-task={cpus}
#SBATCH --output=%x-%j.log
{_SLURM_FILL_IN}\
set -euo pipefail
here="${{SLURM_SUBMIT_DIR:?submit this script with sbatch, from its folder}}"
machines="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
export MAIN_ADDRESS="${{MAIN_ADDRESS:-${{machines%%$'\\n'*}}}}"
export MAIN_PORT="${{MAIN_PORT:-$((20000 + SLURM_JOB_ID % 10000))}}"
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # which srun takes from nowhere else (22.05)
unset NODES MACHINE_RANK  # srun says them on each machine
srun --ntasks-per-node=1 --kill-on-bad-exit=1 bash "$here/{NODES_SCRIPT}" "$@"
"""


def _sky_task(name: str, machines: int, gpus: int, packages: Sequence[str]) -> str:
    """Return the task of SkyPilot."""
    return f"""\
# Written by autotune: {NODES_SCRIPT} as a SkyPilot task. Fill in the GPU and a bucket that all
# machines mount, then start it from this folder: sky launch sky.yaml
name: autotune-{name}
num_nodes: {machines}
workdir: .
resources: {{accelerators: "FILL_IN:{gpus}"}}  # of each machine, such as H100:8
file_mounts: {{/shared: {{source: FILL_IN, mode: MOUNT}}}}  # such as s3://mine, with model and data
setup: pip install {" ".join(packages)}
run: PYTHON=python bash {NODES_SCRIPT} --output_dir /shared/trained
"""


def _train_job(name: str, machines: int, gpus: int) -> str:
    """Return the TrainJob of Kubeflow Trainer."""
    return f"""\
# Written by autotune: {NODES_SCRIPT} as a TrainJob of Kubeflow Trainer (2.2 or newer). Fill in an
# image with the packages of sky.yaml and a claim that all pods may write to (ReadWriteMany); copy
# this folder there as `bundle`, then: kubectl create -f trainjob.yaml
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {{name: autotune-{name}}}  # Kueue: labels: {{kueue.x-k8s.io/queue-name: FILL_IN}}
spec:
  runtimeRef: {{name: torch-distributed}}
  trainer:
    image: FILL_IN
    numNodes: {machines}
    command: [bash, /shared/bundle/{NODES_SCRIPT}, --output_dir, /shared/trained]
    env: [{{name: PYTHON, value: python}}]
    resourcesPerNode: {{limits: {{nvidia.com/gpu: {gpus}}}}}
  runtimePatches:
  - manager: autotune
    trainingRuntimeSpec: {{template: {{spec: {{replicatedJobs: [
      {{name: node, template: {{spec: {{template: {{spec: {{
        volumes: [{{name: shared, persistentVolumeClaim: {{claimName: FILL_IN}}}},
          {{name: shm, emptyDir: {{medium: Memory}}}}],
        containers: [{{name: node, volumeMounts: [
          {{name: shared, mountPath: /shared}}, {{name: shm, mountPath: /dev/shm}}]}}]
      }}}}}}}}}}]}}}}}}
"""


def ray_script(job: str, python: str, devices: Devices) -> str:
    """Return the Slurm job that searches on Ray, with what is installed beside a Python. Ray ends
    with `srun`: `ray symmetric-run` kills by name, on a machine of several jobs theirs, too."""
    gpus = 0 if devices.kind == "cpu" else devices.count
    asked = f"#SBATCH --gpus-per-node={gpus}" if gpus else "##SBATCH --cpus-per-task=FILL_IN"
    return f"""\
#!/usr/bin/env bash
# Written by autotune: searches on Ray, on as many machines as `--nodes` says. They have to see the
# folder that you submit it from, the job's files and Python: sbatch ray.slurm [flags of the run]
#SBATCH --job-name=autotune-search
#SBATCH --nodes={2 * devices.nodes}
#SBATCH --ntasks-per-node=1
{asked}
#SBATCH --no-kill  # a machine that fails takes its probe along, and nothing else
#SBATCH --output=%x-%j.log
{_SLURM_FILL_IN}\
set -euo pipefail
export PATH="$(dirname -- {shlex.quote(python)}):$PATH" SRUN_CPUS_PER_TASK="$SLURM_CPUS_ON_NODE"
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_worker_niceness=0 RAY_memory_monitor_refresh_ms=0  # probes do not stand back
(umask 077 && ray get-auth-token --generate >/dev/null)  # ~/.ray/auth_token, in a home that all see
chmod -f 600 ~/.ray/auth_token || true  # Ray writes it for all to read
host="${{MAIN_ADDRESS:-$(python -c 'import ray; print(ray.util.get_node_ip_address())')}}"
export HEAD="$host:$((20000 + SLURM_JOB_ID % 10000))"
srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 bash -c '
    part="--address $HEAD"
    [ "$SLURM_NODEID" != 0 ] || part="--head --node-ip-address ${{HEAD%:*}} --port ${{HEAD##*:}}
        --include-dashboard false --temp-dir /tmp/ray-$SLURM_JOB_ID"
    until ray start $part --block --num-cpus "$SLURM_CPUS_ON_NODE" \\
        --object-store-memory 80000000; do sleep 5; done' &
trap 'kill "$!" 2>/dev/null' EXIT
count='import ray, sys; ray.init(sys.argv[1]); print(sum(node["Alive"] for node in ray.nodes()))'
for ((attempt = 0; attempt < 60; attempt++)); do  # five minutes; then with those that are there
    [ "$(python -c "$count" "$HEAD" 2>/dev/null)" != "$SLURM_JOB_NUM_NODES" ] || break; sleep 5
done
autotune run {shlex.quote(job)} --engine ray --address "$HEAD" \\
    --at-once "$((SLURM_JOB_NUM_NODES / {devices.nodes}))" "$@"
"""
