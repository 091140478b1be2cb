"""Imports the training stack in a child, so that this process starts no CUDA and survives it."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from autotune.doctor.torch_facts import TRAINERS, ImportReply, ImportRequest, TorchFacts
from autotune.facts.stack import OPTIONAL, module_found
from autotune.process.limits import Ending, Limits, signal_name
from autotune.process.logs import ending_of
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.server import ChildServer

WORKER = "autotune.doctor.import_worker:examine"
LIMITS = Limits(wall_s=300.0, stall_s=120.0)
STACK = ("torch", "transformers", "datasets", "accelerate", "peft", "deepspeed", "trl")
SLOW = frozenset({"vllm"})
"""Takes half a minute to be imported."""


def modules_to_import() -> tuple[str, ...]:
    """Return the stack, and of what it can do without what is installed."""
    optional = [m for name, m in OPTIONAL.items() if name not in SLOW and module_found(m)]
    return (*STACK, TRAINERS, *optional)


def import_stack(gpus: Sequence[int]) -> ImportReply:
    """Import the stack in a child, and compute on these GPUs of torch's.

    Raises:
        MachineError: no process can be started.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-doctor-") as scratch:
        folder = ChildFolder(path=Path(scratch) / "child")
        folder.path.mkdir()
        request = ImportRequest(modules=modules_to_import(), gpus=tuple(gpus))
        write_json(folder.request, request.plain())
        with ChildServer(Path(scratch) / "server.log", preload=()) as server:
            ending = server.run(folder, WORKER, LIMITS)
        reply = read_json(folder.reply)
        found = reply if isinstance(reply, dict) else {"problems": {}, "torch": None}
        return ImportReply(
            problems=found["problems"],
            torch=TorchFacts.from_plain(found["torch"]) if found["torch"] else None,
            ending=_early_ending(ending, folder),
        )


def _early_ending(ending: Ending, folder: ChildFolder) -> str:
    if ending.why == "exited" and ending.exit_code == 0:
        return ""
    at = next((event["at"] for event in reversed(ending.events) if "at" in event), "starting")
    how = {
        "wall": f"it was given up after {LIMITS.wall_s:g} s",
        "stall": f"it made no progress for {LIMITS.stall_s:g} s",
    }.get(ending.why, f"exit code {ending.exit_code}")
    if ending.signal is not None and ending.why == "exited":
        how = f"{signal_name(ending.signal)} ended it"
    return f"{at}: {how}{ending_of(folder.stderr)}"
