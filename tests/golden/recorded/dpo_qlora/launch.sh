#!/usr/bin/env bash
# Written by autotune: trains with dpo_config.yaml. Arguments are passed on to TRL, for example
#   bash launch.sh --max_steps 10
set -euo pipefail
here="$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
python=/opt/venv/bin/python
export PYTHONSAFEPATH=1  # nothing is imported from the folder that you stand in
exec "${PYTHON:-$python}" -m accelerate.commands.launch \
    --config_file "$here/accelerate.yaml" \
    --num_cpu_threads_per_process 6 \
    -m trl.scripts.dpo --config "$here/dpo_config.yaml" "$@"
