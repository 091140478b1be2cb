"""`launch.sh`: the command that trains with the bundle. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.job.methods import Method
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE
from autotune.space.sharding.sharding import DEEPSPEED, Sharding
from autotune.space.vllm.server import Split

ONE_PROCESS = Sharding()
"""One process."""

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
}
"""What a launch has to be told, where the job left it open."""
_ON_DISK = f"""\
while IFS= read -r folder; do
    if [ ! -d "$folder" ] || [ ! -w "$folder" ]; then
        echo "{DEEPSPEED_FILE} keeps states in $folder: make that folder, on an NVMe disk, or" \\
            "name another one there (nvme_path)" >&2
        exit 2
    fi
done < <(sed -n 's/.*"nvme_path": "\\(.*\\)".*/\\1/p' "$here/{DEEPSPEED_FILE}")
"""
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


def missing_fields(config: Mapping[str, Any], method: Method) -> tuple[str, ...]:
    """Return the fields that a launch has to be told besides the configuration."""
    fields = ["dataset_name"]
    if method.online and not method.rewards_by_functions:
        fields.append(method.reward_model)
    return tuple(name for name in fields if not config.get(name))


def flags(missing: Sequence[str]) -> str:
    """Return the missing fields as flags, as they are typed."""
    return "".join(f" --{name} {_MISSING[name][1]}" for name in missing)


def data_kinds(missing: Sequence[str]) -> tuple[str, ...]:
    """Return what DATA may be, as a sentence, where it has to be told."""
    if "dataset_name" not in missing:
        return ()
    return ("DATA is a folder, one file (JSON, JSONL, CSV, Parquet), or a hub id.",)


def asks(missing: Sequence[str]) -> str:
    """Return the lines that refuse a launch without fields that it needs, and name all of them at
    once."""
    if not missing:
        return ""
    needs = [_NEEDS.format(flag=n, why=_MISSING[n][0], value=_MISSING[n][1]) for n in missing]
    file = _ONE_FILE if "dataset_name" in missing else ""
    return "".join(["missing=()\n", *needs, _REFUSES, file])


def _devices(environment: Mapping[str, str], processes: int, split: Split | None) -> str:
    """Return the lines that choose the GPUs. With one process, several visible ones would multiply
    the batch (transformers wraps the model by itself); several processes want one each, and none of
    a server's."""
    if not environment.get("CUDA_VISIBLE_DEVICES"):
        return ""
    if split is not None:
        server_gpus, first = " ".join(map(str, split.generating)), len(split.training)
        return _OF_THE_JOB.format(first=first, all=first + len(split.generating), own=server_gpus)
    if processes > 1:
        return enough_devices(str(processes))
    return 'export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES%%,*}"  # one device\n'


def enough_devices(count: str) -> str:
    """Return the lines that refuse a launch with fewer visible GPUs than processes.

    Args:
        count: how many processes a machine has, as bash computes it.
    """
    return _ENOUGH_DEVICES.format(wanted=count)


def exports(environment: Mapping[str, str]) -> str:
    """Return lines that set variables; those already set, be it to nothing, win."""
    return "".join(_export(name, value) for name, value in sorted(environment.items()))


def _export(name: str, value: str) -> str:
    if not value or shlex.quote(value) == value:
        return f'export {name}="${{{name}-{value}}}"\n'
    # Quotes count inside of "${...}".
    return f'[ -n "${{{name}+set}}" ] || {name}={shlex.quote(value)}\nexport {name}\n'


def trains(method: Method) -> str:
    """Return the module that accelerate starts, as arguments."""
    script = f'"$here/{method.own_script}"' if method.own_script else f"-m {method.script}"
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


def disk(sharding: Sharding) -> str:
    """Return the lines that refuse a launch that has nowhere to keep what is kept on disk."""
    return _ON_DISK if sharding.on_disk else ""


def launch_script(
    *,
    method: Method,
    python: str,
    environment: Mapping[str, str],
    threads: int,
    missing: Sequence[str] = (),
    sharding: Sharding = ONE_PROCESS,
    split: Split | None = None,
) -> str:
    """Return the launch script as text.

    Args:
        python: interpreter of the environment that was tuned; `PYTHON` overrides it.
        environment: variables the training process needs; those already set, be it to nothing,
            win, so that a scheduler's choice of devices holds.
        threads: of each training process.
        missing: fields that the configuration lacks and a training needs.
        sharding: how the training is spread over processes, all on this machine.
        split: which of the job's GPUs train, where a vLLM server has others of them.
    """
    flags = [f"--num_cpu_threads_per_process {threads}", *sharding_flags(sharding)]
    if sharding.in_group:
        flags.append('--main_process_port "${MASTER_PORT:-0}"')
    lines = "".join(f"    {flag} \\\n" for flag in flags)
    first = asks(missing) + disk(sharding) + exports(environment)
    return f"""\
#!/usr/bin/env bash
# Written by autotune: trains with {method.config_file}. Arguments are passed on to TRL, for example
#   bash launch.sh --max_steps 10
set -euo pipefail
here="$(CDPATH= cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
python={shlex.quote(python)}
{first}{_devices(environment, sharding.num_processes, split)}\
exec "${{PYTHON:-$python}}" -m accelerate.commands.launch \\
    --config_file "$here/accelerate.yaml" \\
{lines}\
    {trains(method)}
"""
