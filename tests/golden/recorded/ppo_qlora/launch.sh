#!/usr/bin/env bash
# Written by autotune: trains with ppo_config.yaml. Arguments are passed on to TRL, for example
#   bash launch.sh --max_steps 10
set -euo pipefail
here="$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
python=/opt/venv/bin/python
export PYTHONSAFEPATH=1  # nothing is imported from the folder that you stand in
missing=()
case " $* " in
    *" --reward_model_path"*) ;;
    *) missing+=("the job named no reward model: add --reward_model_path MODEL") ;;
esac
if [ "${#missing[@]}" -gt 0 ]; then
    printf 'launch.sh: %s\n' "${missing[@]}" >&2
    exit 2
fi
exec "${PYTHON:-$python}" -m accelerate.commands.launch \
    --config_file "$here/accelerate.yaml" \
    --num_cpu_threads_per_process 6 \
    "$here/train_ppo.py" --config "$here/ppo_config.yaml" "$@"
