"""`launch_nodes.sh` and `launch.slurm`: the same training over several machines. Pure.

The number of processes is the one that was tuned, whatever the number of machines: with another
one the global batch would be another.
"""

import shlex
from collections.abc import Mapping, Sequence

from autotune.bundle.launch_script import (
    asks,
    disk,
    enough_devices,
    exports,
    sharding_flags,
    trains,
)
from autotune.job.methods import Method
from autotune.space.sharding.sharding import Sharding

NODES_SCRIPT, SLURM_SCRIPT = "launch_nodes.sh", "launch.slurm"
GPUS_OF_A_MACHINE = 8
"""What a Slurm job is asked for by default: machines of at most so many."""

_REFUSALS = """\
if [ "$nodes" = 1 ]; then
    machine_rank="${MACHINE_RANK:-0}" main_address="${MAIN_ADDRESS:-127.0.0.1}"
fi
wrong=()
[ "$machine_rank" != FILL_IN ] || wrong+=("say which machine this is: MACHINE_RANK=0 on the first")
[ "$main_address" != FILL_IN ] || wrong+=("name the first machine: MAIN_ADDRESS=HOST")
if [[ ! "$nodes" =~ ^[1-9][0-9]*$ ]] || ((processes % nodes)); then
    wrong+=("$processes processes cannot be spread evenly over $nodes machines: set NODES")
fi
if [ "${#wrong[@]}" -gt 0 ]; then
    printf 'launch_nodes.sh: %s\\n' "${wrong[@]}" >&2
    exit 2
fi
"""
"""Lines that end the script, with every reason at once."""


def nodes_script(
    *,
    method: Method,
    python: str,
    environment: Mapping[str, str],
    threads: int,
    missing: Sequence[str],
    sharding: Sharding,
    machines: int = 1,
) -> str:
    """Return the script that is run on each machine, as text. Arguments are those of
    `launch_script`.

    Args:
        machines: of the job; where it has one, the script is for the fewest that are several and
            can share the processes. `NODES` overrides it.
    """
    machine_count = machines if machines > 1 else _fewest(sharding.num_processes, 2)
    machine = "the other one" if machine_count == 2 else "the second, and so on"
    flags = [f"--num_cpu_threads_per_process {threads}", *sharding_flags(sharding)]
    lines = "".join(f"    {flag} \\\n" for flag in flags)
    variables = {n: v for n, v in environment.items() if n != "CUDA_VISIBLE_DEVICES" or not v}
    return f"""\
#!/usr/bin/env bash
# Written by autotune: trains with {method.config_file} on several machines. Copy this folder to the
# same place on each (or share it), fill in the two lines below or set their variables, and start
# the script on each machine:
#   NODES={machine_count} MACHINE_RANK=0 MAIN_ADDRESS=10.0.0.1 bash {NODES_SCRIPT}    # on 10.0.0.1
#   NODES={machine_count} MACHINE_RANK=1 MAIN_ADDRESS=10.0.0.1 bash {NODES_SCRIPT}    # on {machine}
# Arguments are passed on to TRL.
set -euo pipefail
here="$(CDPATH= cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
python={shlex.quote(python)}
machine_rank="${{MACHINE_RANK:-FILL_IN}}"  # FILL_IN: 0 on the first machine, 1 on the second ...
main_address="${{MAIN_ADDRESS:-FILL_IN}}"  # FILL_IN: host name or IP of the first machine
nodes="${{NODES:-{machine_count}}}"
processes={sharding.num_processes}  # of all machines together: the batch was tuned for so many
{_REFUSALS}\
{asks(missing)}{disk(sharding)}{exports(variables)}{_own_devices(environment)}\
exec "${{PYTHON:-$python}}" -m accelerate.commands.launch \\
    --config_file "$here/accelerate.yaml" \\
{lines}\
    --num_machines "$nodes" \\
    --num_processes "$processes" \\
    --machine_rank "$machine_rank" \\
    --main_process_ip "$main_address" \\
    --main_process_port "${{MAIN_PORT:-29500}}" \\
    {trains(method)}
"""


def _own_devices(environment: Mapping[str, str]) -> str:
    """Return each machine's first GPUs, as many as it has processes."""
    if not environment.get("CUDA_VISIBLE_DEVICES"):
        return ""
    gpus = "$(seq -s, 0 $((processes / nodes - 1)))"
    visible = f'export CUDA_VISIBLE_DEVICES="${{CUDA_VISIBLE_DEVICES-{gpus}}}"\n'
    return visible + enough_devices("$((processes / nodes))")


def slurm_script(*, method: Method, device_kind: str, processes: int, machines: int = 1) -> str:
    """Return the Slurm job as text: one task on each machine, which starts that machine's
    processes.

    Args:
        machines: of the job; where it has one, the fewest of `GPUS_OF_A_MACHINE` are asked for.
    """
    nodes = machines if machines > 1 else _fewest(processes, -(-processes // GPUS_OF_A_MACHINE))
    per_node = processes // nodes
    gpus = f"#SBATCH --gpus-per-node={per_node}\n" if device_kind == "cuda" else ""
    return f"""\
#!/usr/bin/env bash
# Written by autotune: {NODES_SCRIPT} as a Slurm job. Submit it from this folder, which all machines
# have to see:
#   sbatch {SLURM_SCRIPT} [arguments for TRL]
# The number of machines times the processes of each has to stay {processes}. Flags of sbatch win
# over the lines below.
#SBATCH --job-name=autotune-{method.name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{gpus}#SBATCH --output=%x-%j.log
##SBATCH --partition=FILL_IN  # fill in what your cluster wants, and take one `#` away
##SBATCH --account=FILL_IN
##SBATCH --time=FILL_IN
##SBATCH --cpus-per-task=FILL_IN
set -euo pipefail
here="${{SLURM_SUBMIT_DIR:?submit this script with sbatch, from its folder}}"
machines="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
export NODES="$SLURM_JOB_NUM_NODES" MAIN_ADDRESS="${{machines%%$'\n'*}}"
export MAIN_PORT="${{MAIN_PORT:-$((20000 + SLURM_JOB_ID % 10000))}}"
srun --ntasks-per-node=1 --kill-on-bad-exit=1 \\
    bash -c 'MACHINE_RANK="$SLURM_NODEID" exec bash "$0" "$@"' "$here/{NODES_SCRIPT}" "$@"
"""


def _fewest(processes: int, minimum: int) -> int:
    """Return the fewest machines, and no less than some, over which processes can be spread
    evenly."""
    return next(n for n in range(minimum, processes + 1) if processes % n == 0)
