"""What is wrong between a vLLM server and the training that it generates for. Pure."""

from collections.abc import Iterator, Sequence
from math import prod
from urllib.parse import urlsplit

from autotune.bundle.check.commands import Started
from autotune.bundle.check.files import LaunchFiles, number, shown
from autotune.bundle.check.scripts.shell import GPUS
from autotune.bundle.vllm_script import PORT
from autotune.errors import Problem
from autotune.space.vllm.colocated import MODE, SERVER, USE

SIZES = ("tensor-parallel-size", "data-parallel-size", "pipeline-parallel-size")
"""Flags of a server whose product is the number of its GPUs."""


def one_gpu_for_one(files: LaunchFiles) -> Iterator[Problem]:
    """No GPU trains and generates: both would take its memory, and NCCL refuses such a pair."""
    for server in files.servers:
        generating = _gpus(server, _size(server))
        for who, trained in _trainings(files):
            both = [gpu for gpu in generating if gpu in trained]
            if not both:
                continue
            yield Problem(
                where=f"{server.script}: {GPUS}",
                what=f"the server has GPU {','.join(generating)}, the training GPU "
                f"{','.join(trained)} ({who}): {','.join(both)} would do both",
                hint="give the server GPUs that do not train",
            )
            break


def enough_gpus(files: LaunchFiles) -> Iterator[Problem]:
    """A server has as many GPUs as it divides its model among."""
    for server in files.servers:
        wanted = _size(server)
        if not server.gpus or wanted is None or len(server.gpus) == wanted:
            continue
        short = len(server.gpus) < wanted
        yield Problem(
            where=f"{server.script}: --{SIZES[0]}",
            what=f"the server is divided among {wanted} GPU(s), but {GPUS} names "
            f"{len(server.gpus)} ({','.join(server.gpus)})"
            + ("" if short else ": the others stay idle"),
            hint="make them equal",
        )


def asked_for(files: LaunchFiles) -> Iterator[Problem]:
    """The training asks the server that is there, by its port, for the model that it trains."""
    for server in files.servers:
        if not files.trains(USE) or files.trains(MODE) != SERVER:
            told = f"{USE}: {shown(files.trains(USE))}, {MODE}: {shown(files.trains(MODE))}"
            yield files.at_trainer(
                MODE,
                f"nobody asks the server of {server.script} ({told})",
                f"set {USE} to true and {MODE} to server, or do without that script",
            )
            continue
        yield from _port(files, server)
        model = files.trains("model_name_or_path")
        if server.model is not None and model is not None and server.model != model:
            yield Problem(
                where=server.script,
                what=f"serves {server.model}, but {files.trainer_file} trains {model}",
                hint="serve the model that is trained: its weights are sent by their names",
            )
        if not server.by_trl and "weight-transfer-config" not in server.flags:
            yield Problem(
                where=f"{server.script}: --weight-transfer-config",
                what="is not there: the trainer cannot send its weights",
                hint="""add --weight-transfer-config '{"backend": "nccl"}'""",
            )


def _port(files: LaunchFiles, server: Started) -> Iterator[Problem]:
    url = files.trains("vllm_server_base_url")
    field = "vllm_server_base_url" if isinstance(url, str) else "vllm_server_port"
    asks = number(urlsplit(url).port if isinstance(url, str) else files.trains(field)) or PORT
    listens = number(server.flags.get("port", PORT))
    if listens is not None and asks != listens:
        yield files.at_trainer(
            field,
            f"asks port {asks:g}, but {server.script} listens on {listens:g}",
            "make them equal",
        )


def _size(server: Started) -> int | None:
    """How many GPUs a server is divided among; None: it is not told in so many words."""
    told = [number(server.flags.get(name, "1")) for name in SIZES]
    return None if None in told else prod(int(one or 1) for one in told)


def _gpus(command: Started, count: int | None) -> Sequence[str]:
    """Those that are named; where nothing names them the first ones, as many as it wants."""
    if command.gpus is not None:
        return command.gpus
    return [str(n) for n in range(count or 0)]


def _trainings(files: LaunchFiles) -> Iterator[tuple[str, Sequence[str]]]:
    """(Who says so, GPUs) of each training; accelerate sets the variable to its `gpu_ids`."""
    for one in files.trainings if not files.accelerate.get("use_cpu") else ():
        processes = int(number(one.flags.get("num-processes")) or files.processes)
        ids = one.flags.get("gpu-ids") or files.accelerate.get("gpu_ids")
        if ids not in (None, "all"):
            yield f"gpu_ids, {one.script}", str(ids).replace(" ", "").split(",")[:processes]
        elif one.gpus is None:
            yield f"{one.script}: the first of all", _gpus(one, processes)
        else:
            yield one.script, one.gpus[:processes]


CHECKS = (one_gpu_for_one, enough_gpus, asked_for)
