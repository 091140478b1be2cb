"""`serve.sh`: the vLLM server that generates for a training of the bundle. Pure."""

import shlex
from collections.abc import Mapping
from typing import Any

from autotune.facts import Facts
from autotune.space.trl_config import Settings
from autotune.space.vllm.colocated import MAX_LENGTH, MODE, SERVER, USE
from autotune.space.vllm.server import Split

FILE = "serve.sh"
PORT = 8000
"""The default port of vLLM's server and of TRL's trainers."""

_HEAD_OTHER_GPUS = """\
# Written by autotune: the vLLM server that generates for launch.sh. Start it first, on GPUs that do
# not train, and leave it running:
#   CUDA_VISIBLE_DEVICES={free},{next} bash serve.sh
"""
_HEAD_JOB_GPUS = """\
# Written by autotune: the vLLM server that generates for launch.sh. Start it first, and leave it
# running. Of the job's GPUs {trains} train and {own}: where CUDA_VISIBLE_DEVICES names
# them all, launch.sh takes its own from the front of that list, and this script those after them.
"""
_NAMED_GPUS = """\
if [[ -z "${{CUDA_VISIBLE_DEVICES:-}}" ]]; then
    echo "serve.sh: name the GPUs that generate: CUDA_VISIBLE_DEVICES={free} bash serve.sh" >&2
    exit 2
fi
IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
trains=({trains})
"""
_DIVIDED = """\
IFS=, read -ra gpus <<<"${{CUDA_VISIBLE_DEVICES-{own}}}"
trains=({trains})
if [ "${{#gpus[@]}}" -ge {all} ]; then # those of the whole job
    trains=("${{gpus[@]:0:{first}}}") gpus=("${{gpus[@]:{first}:{size}}}")
fi
if [ "${{#gpus[@]}}" -ne {size} ]; then
    echo "serve.sh: {size} GPU(s) generate, but CUDA_VISIBLE_DEVICES names ${{#gpus[@]}}: name" \\
        "{size} that do not train, or all of the job, at least {all}" >&2
    exit 2
fi
"""
_NO_SHARED_GPU = """\
for gpu in "${gpus[@]}"; do
    if [[ " ${trains[*]} " == *" $gpu "* ]]; then
        echo "serve.sh: GPU $gpu trains (launch.sh trains on ${trains[*]}): name others" >&2
        exit 2
    fi
done
export CUDA_VISIBLE_DEVICES="$(IFS=,; echo "${gpus[*]}")"
"""


def wants_server(config: Mapping[str, Any]) -> bool:
    """True if the training asks a server for its completions."""
    return bool(config.get(USE)) and config.get(MODE) == SERVER


def serve_script(chosen: Settings, python: str) -> str:
    """Return the script as text; the flags are those that TRL's trainers need
    (`trl/scripts/vllm_serve.py`).

    Args:
        python: interpreter of an environment with vLLM; `PYTHON` overrides it.
    """
    config, facts, split = chosen.config, chosen.facts, chosen.split
    size = '"${#gpus[@]}"' if split is None else str(len(split.generating))
    flags = "".join(f" \\\n    {flag}" for flag in _flags(config, split))
    return f"""\
#!/usr/bin/env bash
{_head(facts, split)}\
# Each GPU holds a part of the model (tensor parallel). Arguments are passed on to vLLM. Whoever
# reaches its port can change the weights it serves: it listens on this machine only, unless the
# job has a `vllm_server_host`.
set -euo pipefail
python={shlex.quote(python)}
{_gpus(facts, split)}{_NO_SHARED_GPU}\
export PYTHONSAFEPATH=1  # nothing is imported from the folder that you stand in
export CUDA_DEVICE_ORDER=PCI_BUS_ID VLLM_SERVER_DEV_MODE=1 VLLM_WORKER_MULTIPROC_METHOD=spawn
exec "${{PYTHON:-$python}}" -m vllm.entrypoints.cli.main serve {_quoted(config)} \\
    --host {shlex.quote(str(config.get("vllm_server_host", "127.0.0.1")))} \\
    --port {shlex.quote(str(config.get("vllm_server_port", PORT)))} \\
    --tensor-parallel-size {size}{flags} \\
    --weight-transfer-config '{{"backend": "nccl"}}' \\
    --logprobs-mode processed_logprobs --max-logprobs -1 "$@"
"""


def _head(facts: Facts, split: Split | None) -> str:
    if split is None:
        free = _free(facts)
        return _HEAD_OTHER_GPUS.format(free=free, next=free + 1)
    server_gpus = _gpu_list(split.generating, " ")
    word = f"{server_gpus} generate" if len(split.generating) > 1 else f"{server_gpus} generates"
    return _HEAD_JOB_GPUS.format(trains=_gpu_list(split.training, " "), own=word)


def _gpus(facts: Facts, split: Split | None) -> str:
    """Return the lines that tell the server's GPUs from those that train."""
    if split is None:
        device = facts.device
        trains = (device.index, *device.peers) if device.kind == "cuda" else ()
        return _NAMED_GPUS.format(free=_free(facts), trains=_gpu_list(trains, " "))
    first, size = len(split.training), len(split.generating)
    return _DIVIDED.format(
        own=_gpu_list(split.generating, ","),
        trains=_gpu_list(split.training, " "),
        first=first,
        size=size,
        all=first + size,
    )


def _free(facts: Facts) -> int:
    """Return the index of a GPU that does not train, as an example."""
    return max(facts.device.index, *facts.device.peers) + 1 if facts.device.peers else 1


def _gpu_list(gpus: tuple[int, ...], separator: str) -> str:
    return separator.join(map(str, gpus))


def _flags(config: Mapping[str, Any], split: Split | None) -> list[str]:
    """Return the flags of the server besides its model's name and GPUs."""
    flags = [] if split is None else [f"--gpu-memory-utilization {split.share:g}"]
    if config.get(MAX_LENGTH) is not None:
        flags.append(f"--max-model-len {shlex.quote(str(config[MAX_LENGTH]))}")
    if config.get("model_revision") not in (None, "main"):
        flags.append(f"--revision {shlex.quote(str(config['model_revision']))}")
    if config.get("trust_remote_code") is True:
        flags.append("--trust-remote-code")
    return flags


def _quoted(config: Mapping[str, Any]) -> str:
    return shlex.quote(str(config["model_name_or_path"]))
