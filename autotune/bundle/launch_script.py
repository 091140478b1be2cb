"""The scripts that train with the bundle: `launch.sh` on one machine, `launch_nodes.sh` on each of
several. Pure.

The number of processes is the one that was tuned, whatever the number of machines: with another
one the global batch would be another.
"""

import shlex
from collections.abc import Mapping, Sequence

from autotune.job.methods import METHODS, Method
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE
from autotune.space.sharding.sharding import DEEPSPEED, Sharding
from autotune.space.trl_config import Settings, threads

_NEEDS = """\
case " $* " in
    *" --{flag}"*) ;;
    *) missing+=("the job {why}: add --{flag} {value}") ;;
esac
"""
_REFUSES = """\
if [ "${#missing[@]}" -gt 0 ]; then
    printf 'launch.sh: %s\\n' "${missing[@]}" >&2
    exit 2
fi
"""
_ONE_FILE = """\
# One file is a data set, too: TRL takes folders, so it gets one.
arguments=()
for one in "$@"; do
    file="${one#--dataset_name=}"
    if [ "${before-}" = --dataset_name ] || [ "$file" != "$one" ]; then
        if [ -f "$file" ]; then
            whole="$(realpath -- "$file")"
            mkdir -p "$here/one_file"
            find "$here/one_file" -type l -delete
            ln -s "$whole" "$here/one_file/train.${file##*.}"
            one="${one%"$file"}$here/one_file"
        fi
    fi
    arguments+=("$one")
    before="$one"
done
set -- "${arguments[@]}"
"""
_MISSING = {
    "dataset_name": ("gave lengths in place of data", "DATA"),
    "reward_model_path": ("named no reward model", "MODEL"),
    "reward_funcs": ("named no reward", "FUNCTION"),
}
"""Fields that a launch needs where the job left them open: why, and a placeholder."""
_ENOUGH_DEVICES = """\
IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
wanted={wanted}
if [ "${{#devices[@]}}" -lt "$wanted" ]; then
    echo "$wanted processes want a GPU each, and CUDA_VISIBLE_DEVICES names ${{#devices[@]}}" >&2
    exit 2
fi
"""
_OF_THE_JOB = """\
IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
if [ "${{#devices[@]}}" -lt {first} ]; then
    echo "launch.sh: {first} GPU(s) train, CUDA_VISIBLE_DEVICES names ${{#devices[@]}}" >&2
    exit 2
fi
if [ "${{#devices[@]}}" -lt {all} ]; then # not those of the whole job: serve.sh keeps to its own
    for gpu in "${{devices[@]:0:{first}}}"; do
        if [[ " {own} " == *" $gpu "* ]]; then
            echo "launch.sh: GPU $gpu generates (serve.sh has {own}): name others, or at least" \\
                "{all} GPUs for both scripts, those that train first" >&2
            exit 2
        fi
    done
fi
export CUDA_VISIBLE_DEVICES="$(IFS=,; echo "${{devices[*]:0:{first}}}")"
"""
NODES_SCRIPT = "launch_nodes.sh"

_SCHEDULERS = """\
nodes="${NODES-}"
if [ "$machine_rank" = FILL_IN ]; then  # SkyPilot, Kubeflow Trainer or srun may have started this
    machine_rank="${SKYPILOT_NODE_RANK:-${PET_NODE_RANK:-${SLURM_NODEID:-FILL_IN}}}"
    nodes="${nodes:-${SKYPILOT_NUM_NODES:-${PET_NNODES:-${SLURM_NNODES-}}}}"
fi
if [ "$main_address" = FILL_IN ]; then
    main_address="${SKYPILOT_NODE_IPS:-${PET_MASTER_ADDR:-FILL_IN}}"
    main_address="${main_address%%$'\\n'*}"  # the first of them
fi
"""
"""Lines that ask a scheduler for what nobody has said or filled in."""
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


def missing_fields(chosen: Settings) -> tuple[str, ...]:
    """Return the fields that a launch needs besides the configuration."""
    config, method = chosen.config, METHODS[chosen.job.method]
    fields = ["dataset_name"]
    if method.online and not method.rewards_by_functions:
        fields.append(method.second_model)
    elif method.lacks_reward(config.get("reward_funcs"), config.get(method.second_model)):
        fields.append("reward_funcs")
    return tuple(name for name in fields if not config.get(name))


def flags(missing: Sequence[str]) -> str:
    """Return the missing fields as flags, as they are typed."""
    return "".join(f" --{name} {_MISSING[name][1]}" for name in missing)


def data_kinds(missing: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence on what DATA may be, where it is missing."""
    if "dataset_name" not in missing:
        return ()
    return ("DATA is a folder, one file (JSON, JSONL, CSV, Parquet), or a hub id.",)


def asks(missing: Sequence[str]) -> str:
    """Return the lines that refuse a launch without the fields that it needs, and name all of
    them."""
    if not missing:
        return ""
    needs = [_NEEDS.format(flag=n, why=_MISSING[n][0], value=_MISSING[n][1]) for n in missing]
    file = _ONE_FILE if "dataset_name" in missing else ""
    return "".join(["missing=()\n", *needs, _REFUSES, file])


def _devices(chosen: Settings) -> str:
    """Return the lines that choose the GPUs. With one process, several visible GPUs would multiply
    the batch (transformers wraps the model by itself); several processes need one each, and none of
    a server's."""
    if not chosen.environment.get("CUDA_VISIBLE_DEVICES"):
        return ""
    if (split := chosen.split) is not None:
        server_gpus, first = " ".join(map(str, split.generating)), len(split.training)
        return _OF_THE_JOB.format(first=first, all=first + len(split.generating), own=server_gpus)
    if chosen.processes > 1:
        return enough_devices(str(chosen.processes))
    return 'export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES%%,*}"  # one device\n'


def enough_devices(count: str) -> str:
    """Return the lines that refuse a launch with fewer visible GPUs than processes.

    Args:
        count: how many processes a machine has, as bash computes it.
    """
    return _ENOUGH_DEVICES.format(wanted=count)


def exports(environment: Mapping[str, str]) -> str:
    """Return lines that set variables; those already set win, even if they are empty."""
    return "".join(_export(name, value) for name, value in sorted(environment.items()))


def _export(name: str, value: str) -> str:
    if not value or shlex.quote(value) == value:
        return f'export {name}="${{{name}-{value}}}"\n'
    # Quotes count inside of "${...}".
    return f'[ -n "${{{name}+set}}" ] || {name}={shlex.quote(value)}\nexport {name}\n'


def trains(method: Method, sharding: Sharding) -> str:
    """Return what accelerate starts, as arguments."""
    script = f'"$here/{method.own_script}"' if method.own_script else f"-m {method.script}"
    if sharding.distributed_type == DEEPSPEED:  # accelerate puts the current folder on PYTHONPATH
        variable = 'PYTHONPATH="${PYTHONPATH-}"'
        script = f'--no_python env {variable} "${{PYTHON:-$python}}" -u \\\n    {script}'
    return f'{script} --config "$here/{method.config_file}" "$@"'


def sharding_flags(sharding: Sharding) -> list[str]:
    """Return the flags that accelerate needs for several processes besides its file."""
    if sharding.distributed_type == DEEPSPEED:
        # A name in its file is looked for where it is started, not beside it.
        return [f'--deepspeed_config_file "$here/{DEEPSPEED_FILE}"']
    if sharding.distributed_type == "MULTI_CPU":
        # Else it would want mpirun, and start one process without it.
        return ["--multi_gpu"]
    return []


def launch_script(chosen: Settings, python: str) -> str:
    """Return the launch of all processes on this machine, as text. Variables that are set already
    win, even if they are empty, so that a scheduler's choice of devices holds.

    Args:
        python: interpreter of the environment that was tuned; `PYTHON` overrides it.
    """
    method, sharding = METHODS[chosen.job.method], chosen.sharding
    each = threads(chosen.facts, chosen.processes)
    flags = [f"--num_cpu_threads_per_process {each}", *sharding_flags(sharding)]
    if sharding.in_group:
        flags.append('--main_process_port "${MASTER_PORT:-0}"')
    lines = "".join(f"    {flag} \\\n" for flag in flags)
    first = asks(missing_fields(chosen)) + exports(chosen.environment)
    return f"""\
#!/usr/bin/env bash
# Written by autotune: trains with {method.config_file}. Arguments are passed on to TRL, for example
#   bash launch.sh --max_steps 10
set -euo pipefail
here="$(CDPATH= cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
python={shlex.quote(python)}
export PYTHONSAFEPATH=1  # nothing is imported from the folder that you stand in
{first}{_devices(chosen)}\
exec "${{PYTHON:-$python}}" -m accelerate.commands.launch \\
    --config_file "$here/accelerate.yaml" \\
{lines}\
    {trains(method, sharding)}
"""


def nodes_script(chosen: Settings, python: str) -> str:
    """Return the script that is run on each machine, as text; for a job of one machine it is for
    the fewest (at least two) that can share the processes. `NODES` overrides it."""
    method, sharding = METHODS[chosen.job.method], chosen.sharding
    machines, environment = chosen.job.devices.nodes, chosen.environment
    machine_count = machines if machines > 1 else fewest_machines(sharding.num_processes, 2)
    each = threads(chosen.facts, chosen.processes // machines)
    machine = "the other one" if machine_count == 2 else "the second, and so on"
    flags = [f"--num_cpu_threads_per_process {each}", *sharding_flags(sharding)]
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
export PYTHONSAFEPATH=1  # nothing is imported from the folder that you stand in
machine_rank="${{MACHINE_RANK:-FILL_IN}}"  # FILL_IN: 0 on the first machine, 1 on the second ...
main_address="${{MAIN_ADDRESS:-FILL_IN}}"  # FILL_IN: host name or IP of the first machine
{_SCHEDULERS}\
nodes="${{nodes:-{machine_count}}}"
processes={sharding.num_processes}  # of all machines together: the batch was tuned for so many
{_REFUSALS}\
{asks(missing_fields(chosen))}{exports(variables)}{_own_devices(environment)}\
exec "${{PYTHON:-$python}}" -m accelerate.commands.launch \\
    --config_file "$here/accelerate.yaml" \\
{lines}\
    --num_machines "$nodes" \\
    --num_processes "$processes" \\
    --machine_rank "$machine_rank" \\
    --main_process_ip "$main_address" \\
    --main_process_port "${{MAIN_PORT:-29500}}" \\
    {trains(method, sharding)}
"""


def _own_devices(environment: Mapping[str, str]) -> str:
    """Return each machine's first GPUs, as many as it has processes."""
    if not environment.get("CUDA_VISIBLE_DEVICES"):
        return ""
    gpus = "$(seq -s, 0 $((processes / nodes - 1)))"
    visible = f'export CUDA_VISIBLE_DEVICES="${{CUDA_VISIBLE_DEVICES-{gpus}}}"\n'
    return visible + enough_devices("$((processes / nodes))")


def fewest_machines(processes: int, minimum: int) -> int:
    """Return the fewest machines, and no less than some, over which processes can be spread
    evenly."""
    return next(n for n in range(minimum, processes + 1) if processes % n == 0)
