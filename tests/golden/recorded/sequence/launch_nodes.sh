#!/usr/bin/env bash
# Written by autotune: trains with sft_config.yaml on several machines. Copy this folder to the
# same place on each (or share it), fill in the two lines below or set their variables, and start
# the script on each machine:
#   NODES=2 MACHINE_RANK=0 MAIN_ADDRESS=10.0.0.1 bash launch_nodes.sh    # on 10.0.0.1
#   NODES=2 MACHINE_RANK=1 MAIN_ADDRESS=10.0.0.1 bash launch_nodes.sh    # on the other one
# Arguments are passed on to TRL.
set -euo pipefail
here="$(CDPATH= cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
python=/opt/venv/bin/python
export PYTHONSAFEPATH=1  # nothing is imported from the folder that you stand in
machine_rank="${MACHINE_RANK:-FILL_IN}"  # FILL_IN: 0 on the first machine, 1 on the second ...
main_address="${MAIN_ADDRESS:-FILL_IN}"  # FILL_IN: host name or IP of the first machine
nodes="${NODES-}"
if [ "$machine_rank" = FILL_IN ]; then  # SkyPilot, Kubeflow Trainer or srun may have started this
    machine_rank="${SKYPILOT_NODE_RANK:-${PET_NODE_RANK:-${SLURM_NODEID:-FILL_IN}}}"
    nodes="${nodes:-${SKYPILOT_NUM_NODES:-${PET_NNODES:-${SLURM_NNODES-}}}}"
fi
if [ "$main_address" = FILL_IN ]; then
    main_address="${SKYPILOT_NODE_IPS:-${PET_MASTER_ADDR:-FILL_IN}}"
    main_address="${main_address%%$'\n'*}"  # the first of them
fi
nodes="${nodes:-2}"
processes=8  # of all machines together: the batch was tuned for so many
if [ "$nodes" = 1 ]; then
    machine_rank="${MACHINE_RANK:-0}" main_address="${MAIN_ADDRESS:-127.0.0.1}"
fi
wrong=()
[ "$machine_rank" != FILL_IN ] || wrong+=("say which machine this is: MACHINE_RANK=0 on the first")
[ "$main_address" != FILL_IN ] || wrong+=("name the first machine: MAIN_ADDRESS=HOST")
if [[ ! "$nodes" =~ ^[1-9][0-9]*$ ]] || ((processes % nodes)); then
    wrong+=("$processes processes cannot be spread evenly over $nodes machines: set NODES")
fi
if [ "${#wrong[@]}" -gt 0 ]; then
    printf 'launch_nodes.sh: %s\n' "${wrong[@]}" >&2
    exit 2
fi
export CUDA_DEVICE_ORDER="${CUDA_DEVICE_ORDER-PCI_BUS_ID}"
export TORCH_CUDNN_SDPA_DEPRIORITIZED="${TORCH_CUDNN_SDPA_DEPRIORITIZED-1}"
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-$(seq -s, 0 $((processes / nodes - 1)))}"
IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
wanted=$((processes / nodes))
if [ "${#devices[@]}" -lt "$wanted" ]; then
    echo "$wanted processes want a GPU each, and CUDA_VISIBLE_DEVICES names ${#devices[@]}" >&2
    exit 2
fi
exec "${PYTHON:-$python}" -m accelerate.commands.launch \
    --config_file "$here/accelerate.yaml" \
    --num_cpu_threads_per_process 1 \
    --deepspeed_config_file "$here/deepspeed.json" \
    --num_machines "$nodes" \
    --num_processes "$processes" \
    --machine_rank "$machine_rank" \
    --main_process_ip "$main_address" \
    --main_process_port "${MAIN_PORT:-29500}" \
    --no_python env PYTHONPATH="${PYTHONPATH-}" "${PYTHON:-$python}" -u \
    -m trl.scripts.sft --config "$here/sft_config.yaml" "$@"
