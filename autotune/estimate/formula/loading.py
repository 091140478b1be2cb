"""The memory that models take while they are loaded, on a device and on the host. Pure.

transformers 5.24 (`core_model_loading.py`) maps the checkpoint's files and makes one weight after
the other: on the device itself where one process trains or the base is quantised, else on the host,
from where the trainer moves all or an engine takes its part. A weight that is of another type in
the file is converted, which makes a copy of its own in each process: also under FSDP2, whose
`cpu_ram_efficient_loading` does not reach this loader. What is only mapped is one file for all
processes, and the kernel can take it back: it does not count.

Beside what stays there is what makes one weight at a time: 4-bit packing, fusing a layer's experts,
unpacking MXFP4. Real loads on a CPU took 1.3% (plain), 1.5% (4 and 8 bits), 3.0% (a mixture), 2.4%
(a rank of ZeRO-3) and 3.2% (MXFP4) more, 2 to 3 MB of that the process itself
(`tests/cpu/test_loading_peaks.py`); on a GPU none was measured.
"""

from dataclasses import dataclass

from autotune.estimate.formula.offload import WIDE
from autotune.space.sharding.sharding import FSDP, Sharding

_PACKING = {("cpu", 4): 13.0, ("cpu", 8): 8.0, ("cuda", 4): 0.125, ("cuda", 8): 2.0}
"""Bytes that bitsandbytes 0.50 needs beside a weight, for each of its numbers, to pack it: on a CPU
measured; on CUDA by its source: its maxima twice in float32, or a copy in float16."""
_UNPACKING = 7.0
"""The same of MXFP4, measured on a CPU: a product in float32 and its parts."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The models of a training, as they are loaded.

    Attributes:
        parameters: of each.
        models: how many there are: the policy, and a reference beside it.
        width: bytes of a weight as it is loaded.
        converted: whether the file has it in another type.
        held_bytes: of each as it is held once loaded, packed or not.
        largest: numbers of the largest weight inside layers, all experts of a layer together.
        embedding: numbers of the embedding.
        bits: of a quantised base; None: it is none.
        fused: whether experts are put together when loaded.
        unpacked: whether the file has experts in MXFP4.
        upcast: parameters that FSDP2 makes float32 before it divides them.
        others: bytes of models of another shape.
    """

    parameters: int
    models: int
    width: int
    converted: bool
    held_bytes: int
    largest: int
    embedding: int
    bits: int | None = None
    fused: bool = False
    unpacked: bool = False
    upcast: int = 0
    others: int = 0


def on_device(loaded: Loaded, sharding: Sharding, kind: str) -> int:
    """Return bytes of tensors on one device while models are loaded.

    held x models + making one weight
    FSDP2, ZeRO-3: held / n + the largest weight whole, once or twice; a quantised base is whole
    """
    if loaded.bits is None and _divided(sharding):
        whole = (2 if sharding.zero_stage else 1) * max(loaded.largest, loaded.embedding)
        part = (loaded.models * loaded.held_bytes + loaded.others) / sharding.num_processes
        return round(part + loaded.width * whole)
    making = _making(loaded, kind) if _made_on_device(loaded, sharding) else 0
    return round(loaded.models * loaded.held_bytes + loaded.others + making)


def on_host(loaded: Loaded, sharding: Sharding, processes: int) -> int:
    """Return bytes of the host while models are loaded for so many processes of one machine.

    n x (models x width x parameters, where they are not as in their file, + making one weight)
    FSDP2: what it makes float32 in the place of that; ZeRO-3: none, each weight goes to its parts
    """
    if _made_on_device(loaded, sharding) or sharding.zero_stage == 3:
        return 0
    width = loaded.width if loaded.converted or loaded.fused or loaded.unpacked else 0
    made = loaded.models * width * loaded.parameters + (WIDE - width) * loaded.upcast
    return round(processes * (made + _making(loaded, "cpu")))


def _making(loaded: Loaded, kind: str) -> float:
    """Return bytes that making one weight takes beside what becomes of it."""
    if loaded.unpacked:
        return _UNPACKING * loaded.largest
    if loaded.fused:
        return loaded.width * loaded.largest
    if loaded.bits is None:
        return 0
    # On a CPU a weight that is as in its file needs no copy.
    copied = loaded.width if kind != "cpu" or loaded.converted else 0
    return (_PACKING[kind, loaded.bits] + copied) * loaded.largest


def _divided(sharding: Sharding) -> bool:
    return sharding.distributed_type == FSDP or sharding.zero_stage == 3


def _made_on_device(loaded: Loaded, sharding: Sharding) -> bool:
    """True if weights go to the device one by one (TRL 1.16: `device_map` is "auto" where a process
    trains alone; transformers: so it is for a quantised base)."""
    return loaded.bits is not None or not sharding.in_group
