"""Runs a command on virtual GPUs. `scripts/virtual_gpu` calls it with the Python of .venv-cuda.

    python tests/virtual_gpu/run.py LIBRARIES [--kind h200] [--devices 2] [--virtual] -- COMMAND ...

The kinds are those of autotune/facts/device_kinds.yaml.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from autotune.errors import UserError
from autotune.facts.device_kinds import DeviceKind, find_kind

SITE = Path(__file__).parent / "site"
DRIVER = Path("/proc/driver/nvidia/version")
USUAL_FLOPS, USUAL_BANDWIDTH = 1e14, 1e12
"""Of the clock, where the table has no rate. No measurement either way."""


def device_environment(kind: DeviceKind, devices: int, libraries: Path) -> dict[str, str]:
    """The variables that make a process see this many GPUs of a kind."""
    major, minor = kind.capability
    rates = kind.matrix_flops_per_s
    flops = rates.get("bfloat16") or rates.get("float16") or rates.get("float32")
    return {
        "LD_LIBRARY_PATH": str(libraries),
        "VIRTUAL_GPU_NAME": kind.name,
        "VIRTUAL_GPU_DEVICES": str(devices),
        "VIRTUAL_GPU_MAJOR": str(major),
        "VIRTUAL_GPU_MINOR": str(minor),
        "VIRTUAL_GPU_MULTIPROCESSORS": str(kind.multiprocessors or 100),
        "VIRTUAL_GPU_TOTAL": str(kind.cuda_total_bytes or kind.memory_bytes),
        "VIRTUAL_GPU_NVML_TOTAL": str(kind.memory_bytes),
        "VIRTUAL_GPU_FLOPS": str(flops or USUAL_FLOPS),
        "VIRTUAL_GPU_BANDWIDTH": str(kind.bandwidth_bytes_per_s or USUAL_BANDWIDTH),
    }


def command_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a command on virtual GPUs."""
    path = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **variables,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/virtual_gpu")
    parser.add_argument("libraries", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kind", default="h200", help="a kind of GPU; h200 unless given")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="how many; 1")
    parser.add_argument("--virtual", action="store_true", help="although there is a real GPU")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    given = parser.parse_args()
    if DRIVER.exists() and not given.virtual:
        sys.exit(
            "virtual_gpu: this machine has an NVIDIA GPU, and a virtual one would hide it\n\n"
            "hint: run the command without scripts/virtual_gpu, or add --virtual"
        )
    if not 1 <= given.devices <= 16:
        sys.exit(f"virtual_gpu: --devices must be 1 to 16, but got {given.devices}")
    try:
        kind = find_kind(given.kind)
    except UserError as error:
        sys.exit(f"virtual_gpu: {error}")
    variables = device_environment(kind, given.devices, given.libraries)
    if "VIRTUAL_GPU_STATE" in os.environ:  # shared with other commands
        environment = command_environment(variables)
        os.execvpe(given.command[0], given.command, environment)
    shared = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    state = tempfile.mkdtemp(prefix="virtual-gpu-", dir=shared)
    variables["VIRTUAL_GPU_STATE"] = f"{state}/state"
    sys.exit(run_and_clean(given.command, command_environment(variables), Path(state)))


def run_and_clean(command: list[str], environment: Mapping[str, str], state: Path) -> int:
    """Run a command, remove the devices' shared state; its exit code. Signals reach both."""
    import shutil
    import signal
    import subprocess

    try:
        process = subprocess.Popen(command, env=dict(environment))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command has it, too, and ends us
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        code = process.wait()
        return code if code >= 0 else 128 - code
    except FileNotFoundError:
        sys.exit(f"virtual_gpu: there is no command {command[0]}")
    finally:
        shutil.rmtree(state, ignore_errors=True)


if __name__ == "__main__":
    main()
