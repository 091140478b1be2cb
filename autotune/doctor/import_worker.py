"""CHILD: imports the training stack, and computes a sum on each GPU. Raises nothing."""

import importlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.doctor.torch_facts import ImportReply, ImportRequest, TorchFacts
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.progress import Progress

ONES = 64


def examine(path: Path) -> None:
    """Answer `request.json` with an `ImportReply`, written twice: a GPU may end this process."""
    folder = ChildFolder(path=path)
    request = ImportRequest.from_plain(read_json(folder.request) or {})
    progress, problems = Progress(folder.progress), {}
    for name in request.modules:
        progress.tell("importing", at=f"importing {name}")
        problems[name] = _import_problem(name)
        if name == "torch" and problems[name]:
            break
    torch = None if problems.get("torch") else _torch_facts()
    write_json(folder.reply, asdict(ImportReply(problems=problems, torch=torch)))
    if torch is None or not request.gpus:
        return
    for number in request.gpus:
        progress.tell("computing", at=f"computing on GPU {number}")
        torch.trials[str(number)] = _trial_problem(number)
    write_json(folder.reply, asdict(ImportReply(problems=problems, torch=torch)))


def _import_problem(name: str) -> str:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever a package does as it is imported
        return _sentence(error)
    return ""


def _sentence(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _torch_facts() -> TorchFacts:
    import torch

    has_cuda = torch.version.cuda is not None
    return TorchFacts(
        version=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        architectures=tuple(torch._C._cuda_getArchFlags().split()) if has_cuda else (),
        nccl=_nccl(torch) if has_cuda else None,
    )


def _nccl(torch: Any) -> str | None:
    if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


def _trial_problem(number: int) -> str:
    """Return why a sum cannot be computed on a GPU; empty: it can."""
    import torch

    try:
        found = float(torch.ones(ONES, device=f"cuda:{number}").sum())
    except Exception as error:
        return _sentence(error)
    return "" if found == ONES else f"{ONES} ones add up to {found:g}"
