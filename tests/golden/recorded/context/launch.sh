#!/usr/bin/env bash
# Written by autotune: trains with sft_config.yaml. Arguments are passed on to TRL, for example
#   bash launch.sh --max_steps 10
set -euo pipefail
here="$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
python=/opt/venv/bin/python
export PYTHONSAFEPATH=1  # nothing is imported from the folder that you stand in
export ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION="${ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION-true}"
export CUDA_DEVICE_ORDER="${CUDA_DEVICE_ORDER-PCI_BUS_ID}"
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-0,1,2,3,4,5,6,7}"
export TORCH_CUDNN_SDPA_DEPRIORITIZED="${TORCH_CUDNN_SDPA_DEPRIORITIZED-1}"
IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
wanted=8
if [ "${#devices[@]}" -lt "$wanted" ]; then
    echo "$wanted processes want a GPU each, and CUDA_VISIBLE_DEVICES names ${#devices[@]}" >&2
    exit 2
fi
exec "${PYTHON:-$python}" -m accelerate.commands.launch \
    --config_file "$here/accelerate.yaml" \
    --num_cpu_threads_per_process 1 \
    --main_process_port "${MASTER_PORT:-0}" \
    -m trl.scripts.sft --config "$here/sft_config.yaml" "$@"
