#!/usr/bin/env bash
# Written by autotune: trains with grpo_config.yaml. Arguments are passed on to TRL, for example
#   bash launch.sh --max_steps 10
set -euo pipefail
here="$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
python=/opt/venv/bin/python
export PYTHONSAFEPATH=1  # nothing is imported from the folder that you stand in
export CUDA_DEVICE_ORDER="${CUDA_DEVICE_ORDER-PCI_BUS_ID}"
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-0,1,2,3}"
export TORCH_CUDNN_SDPA_DEPRIORITIZED="${TORCH_CUDNN_SDPA_DEPRIORITIZED-1}"
IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
if [ "${#devices[@]}" -lt 4 ]; then
    echo "launch.sh: 4 GPU(s) train, CUDA_VISIBLE_DEVICES names ${#devices[@]}" >&2
    exit 2
fi
if [ "${#devices[@]}" -lt 6 ]; then # not those of the whole job: serve.sh keeps to its own
    for gpu in "${devices[@]:0:4}"; do
        if [[ " 4 5 " == *" $gpu "* ]]; then
            echo "launch.sh: GPU $gpu generates (serve.sh has 4 5): name others, or at least" \
                "6 GPUs for both scripts, those that train first" >&2
            exit 2
        fi
    done
fi
export CUDA_VISIBLE_DEVICES="$(IFS=,; echo "${devices[*]:0:4}")"
exec "${PYTHON:-$python}" -m accelerate.commands.launch \
    --config_file "$here/accelerate.yaml" \
    --num_cpu_threads_per_process 1 \
    --deepspeed_config_file "$here/deepspeed.json" \
    --main_process_port "${MASTER_PORT:-0}" \
    --no_python env PYTHONPATH="${PYTHONPATH-}" "${PYTHON:-$python}" -u \
    -m trl.scripts.grpo --config "$here/grpo_config.yaml" "$@"
