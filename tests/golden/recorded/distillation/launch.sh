#!/usr/bin/env bash
# Written by autotune: trains with distillation_config.yaml. Arguments are passed on to TRL, for example
#   bash launch.sh --max_steps 10
set -euo pipefail
here="$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
python=/opt/venv/bin/python
export PYTHONSAFEPATH=1  # nothing is imported from the folder that you stand in
export CUDA_DEVICE_ORDER="${CUDA_DEVICE_ORDER-PCI_BUS_ID}"
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-3}"
export TORCH_CUDNN_SDPA_DEPRIORITIZED="${TORCH_CUDNN_SDPA_DEPRIORITIZED-1}"
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES%%,*}"  # one device
exec "${PYTHON:-$python}" -m accelerate.commands.launch \
    --config_file "$here/accelerate.yaml" \
    --num_cpu_threads_per_process 4 \
    -m trl.scripts.distillation --config "$here/distillation_config.yaml" "$@"
