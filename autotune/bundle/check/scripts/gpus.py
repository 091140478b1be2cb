"""Whether a machine has a GPU for each process that it starts. Pure."""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from autotune.bundle.check.commands import Flags, Started, plain
from autotune.bundle.check.files import LaunchFiles, number
from autotune.bundle.check.scripts.accelerate_flags import kind_told, launches
from autotune.bundle.check.scripts.shell import GPUS
from autotune.errors import Problem
from autotune.space.sharding.sharding import NONE

IDS = "gpu_ids"


def a_gpu_for_each(files: LaunchFiles) -> Iterator[Problem]:
    """Each process takes the GPU of its own number; without one it fails."""
    own = files.accelerate.get(IDS)
    reading = list(launches(files))
    for one, flags in reading:
        if "cpu" in flags.launch or _on_cpus(files):
            continue
        yield from _two_lists(files, one, flags)
        count = _processes(files, flags, kind_told(files, flags))
        where, gpus = _gpus(files, one, flags)
        if count is not None and gpus is not None and len(gpus) < count:
            yield _too_few(where, gpus, count)
    if not reading and isinstance(own, str) and own != "all" and not _on_cpus(files):
        count = _processes(files, None, files.kind)
        if count is not None and len(_ids(own)) < count:
            yield _too_few(f"{files.accelerate_file}: {IDS}", _ids(own), count)


def _on_cpus(files: LaunchFiles) -> bool:
    told = (files.accelerate.get("use_cpu"), files.trainer.get("use_cpu"))
    return True in told or files.kind == "MULTI_CPU" or files.trainer.get("ddp_backend") == "gloo"


def _too_few(where: str, gpus: Sequence[str], count: int) -> Problem:
    named = f"{len(gpus)} GPU{'s' if len(gpus) != 1 else ''} ({','.join(gpus) or 'none'})"
    return Problem(
        where=where,
        what=f"names {named}, but this machine starts {count} processes, and each wants its own",
        hint="name as many GPUs as processes, or start fewer processes (num_processes)",
    )


def _processes(files: LaunchFiles, flags: Flags | None, kind: str) -> int | None:
    """How many processes one machine starts; None: it is not told."""
    told = []
    for name, default in (("num_processes", None), ("num_machines", 1)):
        flag = None if flags is None else flags.launch.get(name)
        if flag is not None and not plain(flag):
            return None
        told.append(number(files.accelerate.get(name, default) if flag is None else flag))
    count, machines = told
    if kind == NONE:
        return 1
    if count is None or machines is None or count < 1 or machines < 1:
        return None
    return int(count // machines)


def _gpus(files: LaunchFiles, one: Started, flags: Flags) -> tuple[str, Sequence[str] | None]:
    """(Where GPUs are named, which); None: nothing names them, or a variable does."""
    flag, own = flags.launch.get(IDS), files.accelerate.get(IDS)
    if flag not in (None, "all"):
        told = _ids(flag) if flag is not None and plain(flag) else None
        return f"{one.script}: --{IDS}", told
    if flag is None and own not in (None, "all"):
        return f"{files.accelerate_file}: {IDS}", _ids(own) if isinstance(own, str) else None
    return f"{one.script}: {GPUS}", list(takewhile(_is_there, one.gpus)) if one.gpus else None


def _is_there(gpu: str) -> bool:
    """CUDA sees none of those behind a number below zero."""
    return not gpu.startswith("-")


def _ids(text: str) -> list[str]:
    return [one for one in text.replace(" ", "").split(",") if one]


def _two_lists(files: LaunchFiles, one: Started, flags: Flags) -> Iterator[Problem]:
    """accelerate sets the variable to its `gpu_ids`, whatever it was."""
    where, gpus = _gpus(files, one, flags)
    if gpus is None or not one.gpus or where.endswith(GPUS) or list(gpus) == list(one.gpus):
        return
    yield Problem(
        where=f"{one.script}: {GPUS}",
        what=f"names GPU {','.join(one.gpus)}, but {where} names {','.join(gpus)}: "
        f"accelerate takes {IDS}",
        hint="make them equal, or take one of them out",
    )


CHECKS = (a_gpu_for_each,)
