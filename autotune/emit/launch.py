"""`launch.sh`: the command that trains with the bundle. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.methods import Method

_NEEDS = """\
case " $* " in
    *" --{flag}"*) ;;
    *)
        echo "launch.sh: the job {why}: add --{flag} {value}" >&2
        exit 2
        ;;
esac
"""
_MISSING = {
    "dataset_name": ("gave lengths in place of data", "DATA"),
    "reward_model_path": ("named no reward model", "MODEL"),
}
"""What a launch has to be told, where the job left it open."""


def missing_fields(config: Mapping[str, Any], method: Method) -> tuple[str, ...]:
    """What a launch has to be told besides the configuration."""
    asked = ["dataset_name"]
    if method.online and not method.rewards_by_functions:
        asked.append(method.reward_model)
    return tuple(name for name in asked if not config.get(name))


def flags(missing: Sequence[str]) -> str:
    """The same as it is typed."""
    return "".join(f" --{name} {_MISSING[name][1]}" for name in missing)


def _one_device(environment: Mapping[str, str]) -> str:
    """Several visible GPUs would multiply the batch (transformers wraps the model by itself)."""
    if "CUDA_VISIBLE_DEVICES" not in environment:
        return ""
    return 'export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES%%,*}"  # one device\n'


def launch_script(
    *,
    method: Method,
    python: str,
    environment: Mapping[str, str],
    threads: int,
    missing: Sequence[str] = (),
) -> str:
    """The launch script as text.

    Args:
        python: interpreter of the environment that was tuned; `PYTHON` overrides it.
        environment: variables the training process needs; those already set, be it to nothing,
            win, so that a scheduler's choice of devices holds.
        threads: of the training process.
        missing: fields that the configuration lacks and a training needs.
    """
    needs = "".join(
        _NEEDS.format(flag=n, why=_MISSING[n][0], value=_MISSING[n][1]) for n in missing
    )
    trains = f'"$here/{method.own_script}"' if method.own_script else f"-m {method.script}"
    exports = "".join(
        f'export {name}="${{{name}-{value}}}"\n' for name, value in sorted(environment.items())
    )
    return f"""\
#!/usr/bin/env bash
# Written by autotune: trains with {method.config_file}. Arguments are passed on to TRL, for example
#   bash launch.sh --max_steps 10
set -euo pipefail
here="$(CDPATH= cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"
python={shlex.quote(python)}
{needs}{exports}{_one_device(environment)}\
exec "${{PYTHON:-$python}}" -m accelerate.commands.launch \\
    --config_file "$here/accelerate.yaml" \\
    --num_cpu_threads_per_process {threads} \\
    {trains} --config "$here/{method.config_file}" "$@"
"""
