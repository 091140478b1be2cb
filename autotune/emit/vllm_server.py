"""`serve.sh`: the vLLM server that generates for a training of the bundle. Pure."""

import shlex
from collections.abc import Mapping
from typing import Any

from autotune.facts import Facts
from autotune.space.vllm import MAX_LENGTH, MODE, SERVER, USE

FILE = "serve.sh"


def wants_server(config: Mapping[str, Any]) -> bool:
    """Whether the training asks a server for its completions."""
    return bool(config.get(USE)) and config.get(MODE) == SERVER


def serve_script(config: Mapping[str, Any], facts: Facts, python: str) -> str:
    """The script as text; the flags are those that TRL's trainers need
    (`trl/scripts/vllm_serve.py`).

    Args:
        config: the flat configuration of the training.
        python: interpreter of an environment with vLLM; `PYTHON` overrides it.
    """
    free = max(facts.device.index, *facts.device.peers) + 1 if facts.device.peers else 1
    flags = "".join(f" \\\n    {flag}" for flag in _flags(config))
    return f"""\
#!/usr/bin/env bash
# Written by autotune: the vLLM server that generates for launch.sh. Start it first, on GPUs that do
# not train, and leave it running:
#   CUDA_VISIBLE_DEVICES={free},{free + 1} bash serve.sh
# Each GPU holds a part of the model (tensor parallel). Arguments are passed on to vLLM. Whoever
# reaches its port can change the weights it serves: it listens on this machine only, unless the
# job has a `vllm_server_host`.
set -euo pipefail
python={shlex.quote(python)}
if [[ -z "${{CUDA_VISIBLE_DEVICES:-}}" ]]; then
    echo "serve.sh: name the GPUs that generate: CUDA_VISIBLE_DEVICES={free} bash serve.sh" >&2
    exit 2
fi
IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
{_not_those_that_train(facts)}\
export CUDA_DEVICE_ORDER=PCI_BUS_ID VLLM_SERVER_DEV_MODE=1 VLLM_WORKER_MULTIPROC_METHOD=spawn
exec "${{PYTHON:-$python}}" -m vllm.entrypoints.cli.main serve {_quoted(config)} \\
    --host {shlex.quote(str(config.get("vllm_server_host", "127.0.0.1")))} \\
    --port {config.get("vllm_server_port", 8000)} \\
    --tensor-parallel-size "${{#gpus[@]}}"{flags} \\
    --weight-transfer-config '{{"backend": "nccl"}}' \\
    --logprobs-mode processed_logprobs --max-logprobs -1 "$@"
"""


def _flags(config: Mapping[str, Any]) -> list[str]:
    """What the server has to know of the model besides its name."""
    flags = []
    if config.get(MAX_LENGTH) is not None:
        flags.append(f"--max-model-len {config[MAX_LENGTH]}")
    if config.get("model_revision") not in (None, "main"):
        flags.append(f"--revision {shlex.quote(str(config['model_revision']))}")
    if config.get("trust_remote_code"):
        flags.append("--trust-remote-code")
    return flags


def _quoted(config: Mapping[str, Any]) -> str:
    return shlex.quote(str(config["model_name_or_path"]))


def _not_those_that_train(facts: Facts) -> str:
    if facts.device.kind != "cuda":
        return ""
    first, *others = (facts.device.index, *facts.device.peers)
    own, who = f'[[ "$gpu" == {first} ]]', f"GPU {first} trains"
    if others:
        each = " ".join(map(str, (first, *others)))
        own, who = f'[[ " {each} " == *" $gpu "* ]]', f"GPUs {each} train"
    return f"""\
for gpu in "${{gpus[@]}}"; do
    if {own}; then
        echo "serve.sh: {who} (launch.sh): name others" >&2
        exit 2
    fi
done
"""
