"""CHILD: imports the training stack, and computes a sum on each GPU. Raises nothing."""

import importlib
from dataclasses import dataclass, field
from pathlib import Path

from autotune.plain_data import from_plain, to_plain
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.progress import Progress

TRAINERS = "autotune.process.preload"
"""Imports what a probe uses of TRL and transformers, which import that at its first use."""
ONES = 64


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """The modules that a child imports, and the GPUs it computes on.

    Attributes:
        modules: in this order; after `torch` nothing else is tried where it fails.
        gpus: torch's numbers of GPUs.
    """

    modules: tuple[str, ...]
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TorchFacts:
    """The installed build of torch.

    Attributes:
        cuda: which CUDA it is built for; None: for none.
        hip: which ROCm.
        trials: what went wrong as each GPU was computed on; empty: nothing.
    """

    version: str
    cuda: str | None = None
    hip: str | None = None
    trials: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ImportReply:
    """The outcome of the imports.

    Attributes:
        problems: of each module that was imported, why it cannot be; empty: it can.
        ending: how the child ended before its time, and where; empty: it did not.
    """

    problems: dict[str, str]
    torch: TorchFacts | None = None
    ending: str = ""


def examine(path: Path) -> None:
    """Answer `request.json` with an `ImportReply`, written twice: a GPU may end this process."""
    folder = ChildFolder(path=path)
    request = from_plain(ImportRequest, read_json(folder.request))
    progress, problems = Progress(folder.progress), {}
    for name in request.modules:
        progress.tell("importing", at=f"importing {name}")
        problems[name] = _import_problem(name)
        if name == "torch" and problems[name]:
            break
    torch = None if problems.get("torch") else _torch_facts()
    write_json(folder.reply, to_plain(ImportReply(problems=problems, torch=torch)))
    if torch is None or not request.gpus:
        return
    for number in request.gpus:
        progress.tell("computing", at=f"computing on GPU {number}")
        torch.trials[str(number)] = _trial_problem(number)
    write_json(folder.reply, to_plain(ImportReply(problems=problems, torch=torch)))


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

    return TorchFacts(version=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip)


def _trial_problem(number: int) -> str:
    """Return why a sum cannot be computed on a GPU; empty: it can."""
    import torch

    try:
        total = float(torch.ones(ONES, device=f"cuda:{number}").sum())
    except Exception as error:
        kernels = " ".join(torch._C._cuda_getArchFlags().split())
        return f"{_sentence(error)} (torch has kernels for {kernels})"
    return "" if total == ONES else f"{ONES} ones add up to {total:g}"
