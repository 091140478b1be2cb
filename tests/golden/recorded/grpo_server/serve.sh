#!/usr/bin/env bash
# Written by autotune: the vLLM server that generates for launch.sh. Start it first, on GPUs that do
# not train, and leave it running:
#   CUDA_VISIBLE_DEVICES=1,2 bash serve.sh
# Each GPU holds a part of the model (tensor parallel). Arguments are passed on to vLLM. Whoever
# reaches its port can change the weights it serves: it listens on this machine only, unless the
# job has a `vllm_server_host`.
set -euo pipefail
python=/opt/venv/bin/python
if [[ -z "${CUDA_VISIBLE_DEVICES:-}" ]]; then
    echo "serve.sh: name the GPUs that generate: CUDA_VISIBLE_DEVICES=1 bash serve.sh" >&2
    exit 2
fi
IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
trains=(3)
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
    --tensor-parallel-size "${#gpus[@]}" \
    --max-model-len 1064 \
    --weight-transfer-config '{"backend": "nccl"}' \
    --logprobs-mode processed_logprobs --max-logprobs -1 "$@"
