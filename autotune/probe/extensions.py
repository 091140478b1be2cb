"""Code that DeepSpeed compiles at first use, compiled before the first probe that needs it.

It takes a minute, several on a busy machine. Within a probe it would count as the probe's time, and
a probe that is killed meanwhile leaves a lock behind it for which every later one would wait for
ever (torch's `FileBaton`). Where it cannot be compiled, the probe itself reports that.
"""

import os
from pathlib import Path

from autotune.probe.protocol import ProbeRequest
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.space.sharding.sharding import DEEPSPEED

WORKER = "autotune.probe.extensions:compile_extensions"
LIMITS = Limits(wall_s=900.0, stall_s=900.0)
"""Long enough to wait for another process that compiles the same."""
EXTENSIONS = "TORCH_EXTENSIONS_DIR"
"""DeepSpeed's own variable for that folder; the user's choice wins."""
COMPILED = "AUTOTUNE_COMPILED"
"""The variable for the folder of a lane, beside which others compile at the same time."""


def extensions_of(request: ProbeRequest) -> list[str]:
    """Return the names of the builders (`deepspeed.ops.op_builder`) whose code such a probe
    calls."""
    sharding = request.parsed_sharding
    if sharding.distributed_type != DEEPSPEED:
        return []
    exchange = ["ShareMemCommBuilder"] if request.device_kind == "cpu" else []
    update = ["CPUAdamBuilder"] if sharding.offload_optimizer_device != "none" else []
    return [*exchange, *update]


def compile_before(server: ChildServer, request: ProbeRequest) -> None:
    """Have all code compiled that a probe of `request` needs, once a run, or a lane."""
    names = extensions_of(request)
    if not names:
        return
    folder = ChildFolder(path=_folder_here(request) / "-".join([request.device_kind, *names]))
    if folder.reply.exists():
        return
    folder.path.mkdir(parents=True, exist_ok=True)
    write_json(folder.request, request.plain())
    server.run(folder, WORKER, LIMITS)
    if not folder.reply.exists():  # the child crashed, or took too long: the probe will say so
        write_json(folder.reply, {"missing": names})


def compiled_folder(tokenized: Path) -> Path:
    """Return the folder of a run's compiled code, beside its tokenized rows."""
    return tokenized.absolute().parent / "compiled"


def _folder_here(request: ProbeRequest) -> Path:
    """Return the folder of what is compiled for probes that come one after the other."""
    return Path(os.environ.get(COMPILED) or compiled_folder(Path(request.rows)))


def compile_extensions(path: Path) -> None:
    """Compile what the request in `path/request.json` needs. A child's work."""
    folder = ChildFolder(path=path)
    request = ProbeRequest.from_plain(read_json(folder.request))
    keep_extensions_in_run(request)
    os.environ.update(request.environment)  # its devices alone: DeepSpeed asks what they can
    from deepspeed.accelerator import get_accelerator

    missing = []
    for name in extensions_of(request):
        builder = get_accelerator().create_op_builder(name)
        try:
            builder.load()
        except (AttributeError, OSError, RuntimeError) as error:  # no builder, compiler or header
            missing.append(f"{name}: {error}")
    write_json(folder.reply, {"missing": missing})


def keep_extensions_in_run(request: ProbeRequest) -> None:
    """Have DeepSpeed compile into a folder of the run, or of a lane, whose probes come one after
    the other, unless the user has named one. A lock that a killed process left there is removed."""
    if EXTENSIONS not in os.environ:
        folder = _folder_here(request)
        os.environ[EXTENSIONS] = str(folder)
        for lock in folder.glob("*/lock"):
            lock.unlink()
