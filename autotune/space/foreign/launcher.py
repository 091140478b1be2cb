"""Flags of launchers and variables of the environment that say how many processes train. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.facts.stack import source_of
from autotune.job.yaml_file import parse_yaml
from autotune.space.foreign.fields import CARRIED, LEFT, SEARCHED, Fate
from autotune.space.foreign.launch import (
    CONFIG,
    KNOBS,
    PARALLEL,
    WHERE,
    Launch,
    Read,
    accelerate_field,
    fate_of,
    is_count,
    of_accelerate,
    of_file,
    of_part,
)
from autotune.space.foreign.tool import SHARDING
from autotune.space.sharding.sharding import DEEPSPEED, DISTRIBUTED_TYPE, FSDP

_OF_ALL, _OF_EACH = ("num_processes",), ("nproc_per_node", "num_gpus")
_NODES = ("num_machines", "nnodes", "num_nodes")
COUNTS = frozenset({*_OF_ALL, *_OF_EACH, *_NODES})
"""Settings of launchers that TRL and Axolotl take among their own."""
_CONFIG = "accelerate_config"
_KINDS = {"use_deepspeed": DEEPSPEED, "use_fsdp": FSDP}
_OPEN = ("gpu", "auto", "cpu", "xpu")
"""Words for which torchrun counts devices itself."""


def of_flags(flags: Mapping[str, Any], launcher: str, read: Read) -> Launch:
    """Return what the flags of `accelerate launch`, `torchrun` or `deepspeed` say."""
    launch = Launch()
    if launcher == "torchrun" and str(flags.get("nproc_per_node", "")).lower() not in _OPEN:
        launch = Launch(count=1, per_machine=True)  # unless its flag says more
    for name, value in flags.items():
        launch = launch.joined(_flag(name.replace("-", "_"), value, f"--{name}", read))
    return launch


def of_settings(data: Mapping[str, Any], read: Read) -> tuple[Launch, dict[str, Any]]:
    """Return what a trainer's fields say of its launcher, and the other fields."""
    launch, rest = Launch(), dict(data)
    names = [name for name in data if name in COUNTS or name == "mixed_precision"]
    for name in (_CONFIG, *names):
        if name in rest:
            launch = launch.joined(_flag(name, rest.pop(name), name, read))
    return launch, rest


def of_variable(name: str, value: str) -> Launch:
    """Return what a variable of the environment before a command says."""
    if name == "CUDA_VISIBLE_DEVICES" and "$" not in value:
        listed = [part.strip() for part in value.split(",")]
        end = next((n for n, part in enumerate(listed) if part in ("", "-1")), len(listed))
        fate = fate_of(name, value, CARRIED, "devices, where nothing else says how many")
        return Launch(visible=end or None, fates=(fate,))
    if name == "NPROC_PER_NODE" and is_count(value):
        fate = fate_of(name, value, CARRIED, "devices")
        return Launch(count=int(value), per_machine=True, fates=(fate,))
    if name == "NNODES" and is_count(value):
        return Launch(nodes=int(value), fates=(fate_of(name, value, CARRIED, "devices.nodes"),))
    detail = "set it where the training starts"
    return Launch(fates=(fate_of(name, "***", LEFT, detail),))


def without_counts(variables: Launch) -> Launch:
    """Return what is left of LLaMA-Factory's variables where a launcher starts the program."""
    fates = (
        Fate(
            field=f.field, value=f.value, kind=LEFT, detail="only LLaMA-Factory's command reads it"
        )
        if f.field in ("NPROC_PER_NODE", "NNODES")
        else f
        for f in variables.fates
    )
    return Launch(visible=variables.visible, fates=tuple(fates))


def _flag(key: str, value: Any, spelling: str, read: Read) -> Launch:
    """Return what one setting says.

    Args:
        spelling: as it was given, for its fate.
    """
    if key in (*_OF_ALL, *_OF_EACH) and is_count(value):
        fate = fate_of(spelling, value, CARRIED, "devices")
        return Launch(count=int(value), per_machine=key in _OF_EACH, fates=(fate,))
    if key in _NODES:
        return _nodes(value, spelling)
    if key == "include":
        return _included(str(value), spelling)
    if key in _KINDS:
        fate = fate_of(spelling, value, SEARCHED, SHARDING)
        return Launch(pins={DISTRIBUTED_TYPE: _KINDS[key]}, fates=(fate,))
    if key == _CONFIG:
        text = (
            source_of("trl", f"accelerate_configs/{value}.yaml")
            if str(value).isidentifier()
            else ""
        )
        data = parse_yaml(text, "TRL's file")[0] if text else read(str(value))
        if data is not None:
            fate = fate_of(
                spelling, value, CARRIED, "TRL brings that file along" if text else "read"
            )
            found = of_part("accelerate", of_accelerate(data, read))
            return replace(found, fates=(fate, *(() if text else found.fates)))
        return Launch(
            unread=(str(value),), fates=(fate_of(spelling, value, LEFT, "give that file, too"),)
        )
    if key == CONFIG:
        return of_file(value, read)
    if key == "hostfile":
        text = "machines: 1 (`--hostfile` lists them; `--nodes 2` says how many)"
        return Launch(assumed=(text,), fates=(fate_of(spelling, value, LEFT, WHERE),))
    if key == "mixed_precision" or key in KNOBS or key in PARALLEL:
        found = accelerate_field(key, value)
        fates = tuple(fate_of(spelling, f.value, f.kind, f.detail) for f in found.fates)
        return Launch(
            parallel=found.parallel, pins=found.pins, precision=found.precision, fates=fates
        )
    return Launch(fates=(fate_of(spelling, value, LEFT, WHERE),))


def _nodes(value: Any, spelling: str) -> Launch:
    least, _, most = str(value).partition(":")
    if is_count(least) and most in ("", least):
        return Launch(nodes=int(least), fates=(fate_of(spelling, value, CARRIED, "devices.nodes"),))
    text = f"machines: 1 (`{spelling} {value}` leaves it open; `--nodes 2` says how many)"
    return Launch(assumed=(text,), fates=(fate_of(spelling, value, LEFT, "it leaves it open"),))


def _included(value: str, spelling: str) -> Launch:
    """Read DeepSpeed's `--include host:0,1@other:0,1`."""
    counts = [_slots(part) for part in value.split("@")]
    known = [count for count in counts if count]
    fate = fate_of(spelling, value, CARRIED if len(known) == len(counts) else LEFT, "devices")
    if len(known) < len(counts):
        return Launch(nodes=len(counts), fates=(fate,))
    return Launch(count=sum(known), nodes=len(counts), fates=(fate,))


def _slots(part: str) -> int:
    """Return the devices of a machine; 0: it does not list them."""
    listed = [slot for slot in part.partition(":")[2].split(",") if slot.strip()]
    return len(listed) if all(slot.strip().isdecimal() for slot in listed) else 0
