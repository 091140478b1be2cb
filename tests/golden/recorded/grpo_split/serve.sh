#!/usr/bin/env bash
# Written by autotune: the vLLM server that generates for launch.sh. Start it first, and leave it
# running. Of the job's GPUs 0 1 2 3 train and 4 5 generate: where CUDA_VISIBLE_DEVICES names
# them all, launch.sh takes its own from the front of that list, and this script those after them.
# Each GPU holds a part of the model (tensor parallel). Arguments are passed on to vLLM. Whoever
# reaches its port can change the weights it serves: it listens on this machine only, unless the
# job has a `vllm_server_host`.
set -euo pipefail
python=/opt/venv/bin/python
IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES-4,5}"
trains=(0 1 2 3)
if [ "${#gpus[@]}" -ge 6 ]; then # those of the whole job
    trains=("${gpus[@]:0:4}") gpus=("${gpus[@]:4:2}")
fi
if [ "${#gpus[@]}" -ne 2 ]; then
    echo "serve.sh: 2 GPU(s) generate, but CUDA_VISIBLE_DEVICES names ${#gpus[@]}: name" \
        "2 that do not train, or all of the job, at least 6" >&2
    exit 2
fi
for gpu in "${gpus[@]}"; do
    if [[ " ${trains[*]} " == *" $gpu "* ]]; then
        echo "serve.sh: GPU $gpu trains (launch.sh trains on ${trains[*]}): name others" >&2
        exit 2
    fi
done
export CUDA_VISIBLE_DEVICES="$(IFS=,; echo "${gpus[*]}")"
export PYTHONSAFEPATH=1  # nothing is imported from the folder that you stand in
export CUDA_DEVICE_ORDER=PCI_BUS_ID VLLM_SERVER_DEV_MODE=1 VLLM_WORKER_MULTIPROC_METHOD=spawn
exec "${PYTHON:-$python}" -m vllm.entrypoints.cli.main serve /models/small \
    --host 127.0.0.1 \
    --port 8000 \
    --tensor-parallel-size 2 \
    --gpu-memory-utilization 0.9 \
    --max-model-len 1064 \
    --weight-transfer-config '{"backend": "nccl"}' \
    --logprobs-mode processed_logprobs --max-logprobs -1 "$@"
