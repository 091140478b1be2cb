"""Runs a command on virtual GPUs. `scripts/virtual_gpu` calls it with the Python of .venv-cuda.

    python tests/virtual_gpu/run.py --libraries FOLDER [--kind h200] [--devices 2] -- COMMAND ...

Without `--libraries` nothing runs, and only the call is checked, by any Python.
The kinds are those of autotune/facts/device_kinds.yaml.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.errors import AutotuneError, machine_error, user_error
from autotune.facts.device_kinds import DeviceKind, find_kind

SITE = Path(__file__).parent / "site"
DRIVER = Path("/proc/driver/nvidia/version")
MOST_DEVICES = 16
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
        "VIRTUAL_GPU_TOTAL": str(kind.usable_bytes),
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


def read_call() -> tuple[argparse.Namespace, DeviceKind | None]:
    """The flags and the kind of GPU; no kind where this Python has no YAML and nothing shall run.

    Raises:
        UserError: what is called for cannot be.
        MachineError: there is a real GPU, and `--virtual` is not given.
    """
    parser = argparse.ArgumentParser(prog="scripts/virtual_gpu")
    parser.add_argument("--libraries", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kind", default="h200", help="a kind of GPU; h200 unless given")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="how many; 1")
    parser.add_argument("--virtual", action="store_true", help="although there is a real GPU")
    parser.add_argument("command", nargs="*", metavar="-- COMMAND")
    given = parser.parse_args()
    if not given.command:
        raise user_error(
            "there is no command to run",
            hint="scripts/virtual_gpu --kind h200 -- autotune run job.yaml",
        )
    if not 1 <= given.devices <= MOST_DEVICES:
        raise user_error(f"--devices must be 1 to {MOST_DEVICES}, but got {given.devices}")
    if DRIVER.exists() and not given.virtual:
        raise machine_error(
            "this machine has an NVIDIA GPU, and a virtual one would hide it",
            hint="run the command without scripts/virtual_gpu, or add --virtual",
        )
    try:
        return given, find_kind(given.kind)
    except ModuleNotFoundError:
        if given.libraries:
            raise
        return given, None


def main() -> None:
    try:
        given, kind = read_call()
        if given.libraries and kind:
            variables = device_environment(kind, given.devices, given.libraries)
            sys.exit(run_command(given.command, variables))
    except AutotuneError as error:
        print(f"virtual_gpu: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def run_command(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command on devices of its own, or those that VIRTUAL_GPU_STATE names; its exit code.

    Raises:
        UserError: there is no such command.
    """
    environment = command_environment(variables)
    if shutil.which(command[0], path=environment["PATH"]) is None:
        raise user_error(
            f"there is no command `{command[0]}`",
            hint="name a program that is on PATH or in .venv-cuda/bin",
        )
    if "VIRTUAL_GPU_STATE" in os.environ:  # shared with other commands
        os.execvpe(command[0], command, environment)
    shared = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(
        prefix="virtual-gpu-", dir=shared, ignore_cleanup_errors=True
    ) as state:
        return run_to_its_end(command, {**environment, "VIRTUAL_GPU_STATE": f"{state}/state"})


def run_to_its_end(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit code of a command. Signals reach it and leave this process."""
    process = subprocess.Popen(command, env=dict(environment))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command has it, too, and ends us
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
