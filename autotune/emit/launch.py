"""`launch.sh`: the command that trains with the bundle. Pure."""

import shlex
from collections.abc import Mapping

from autotune.methods import Method

_NEEDS_DATA = """\
case " $* " in
    *" --dataset_name"*) ;;
    *)
        echo "launch.sh: the job gave lengths in place of data: add --dataset_name DATA" >&2
        exit 2
        ;;
esac
"""


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
    has_data: bool,
) -> str:
    """The launch script as text.

    Args:
        python: interpreter of the environment that was tuned; `PYTHON` overrides it.
        environment: variables the training process needs; those already set, be it to nothing,
            win, so that a scheduler's choice of devices holds.
        threads: of the training process.
        has_data: whether the configuration names a data set.
    """
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
{"" if has_data else _NEEDS_DATA}{exports}{_one_device(environment)}\
exec "${{PYTHON:-$python}}" -m accelerate.commands.launch \\
    --config_file "$here/accelerate.yaml" \\
    --num_cpu_threads_per_process {threads} \\
    -m {method.script} --config "$here/{method.config_file}" "$@"
"""
