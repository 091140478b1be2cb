"""A job that holds another tool's configuration as it is: nothing is left to the search. Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.space.foreign.fields import CARRIED, MEMORY, NOTHING
from autotune.space.foreign.launch import NO_SHARD, Launch
from autotune.space.foreign.reading import Reading
from autotune.space.knobs import MICRO_BATCH, SAMPLING, SEGMENTS, Knob, condition_holds
from autotune.space.sharding.sharding import (
    DEEPSPEED,
    DISTRIBUTED_TYPE,
    FSDP,
    OPTIMIZER_OFFLOAD,
    PARAM_OFFLOAD,
    RESHARD,
)

_OF_ZERO = ("zero_stage", OPTIMIZER_OFFLOAD, PARAM_OFFLOAD)


def pin(reading: Reading, launch: Launch, processes: int) -> None:
    """Pin every speed knob: as the files have it, as the tool does, or as TRL does."""
    fixed = reading.job.setdefault("fixed", {})
    for knob in reading.definition.knobs:
        if knob.name in fixed or not _is_open(knob, reading):
            continue
        default = knob.default if knob.default is not None else _first(knob)
        value = reading.tool.as_is.get(knob.name, default)
        if value is not None:
            fixed[knob.name] = value
    _pin_sharding(reading, launch, processes)


def _pin_sharding(reading: Reading, launch: Launch, processes: int) -> None:
    """Pin how devices share the training; leave it to the search where not all of it is known."""
    pins, knob = _sharding(launch.pins, processes), reading.definition.knob(DISTRIBUTED_TYPE)
    kind, said = pins.get(DISTRIBUTED_TYPE), f"fixed.{DISTRIBUTED_TYPE}: MULTI_GPU"
    absent = {name: _absence(name, reading) for name in (*launch.unread, launch.guessed)}
    lost = [*launch.not_built, *(f"`{n}` {absent[n]}: give it, too" for n in launch.unread)]
    if launch.hybrid and launch.machines > 1:
        lost.append(f"{launch.hybrid} on several machines is not built")
    if kind is not None and knob is not None and knob.choices and kind not in knob.choices:
        lost.append(f"{kind} is not built for `{reading.method.name}`")
    if lost:
        reading.assumed.append(f"how devices share the training is searched ({', '.join(lost)})")
        pins = {}
    elif reading.job.get("tuning") == "qlora" and not _divides_base(reading, pins):
        why = (
            "this quantised base is not divided: ZeRO-1 and 2 would divide only the adapter; 8 bits"
            " and methods that generate are whole"
        )
        reading.assumed.append(f"{said} ({why})")
        pins = _sharding({}, processes)
    elif kind == "MULTI_GPU" and (theirs := launch.pins.get(DISTRIBUTED_TYPE)) in (DEEPSPEED, FSDP):
        which = "ZeRO's stage 0" if theirs == DEEPSPEED else "FSDP's NO_SHARD"
        reading.assumed.append(f"{said} ({which} divides nothing)")
    for name in _OF_ZERO if launch.guessed else ():
        if pins.get(name, "none") != "none":
            why = f"by the name of `{launch.guessed}`, which {absent[launch.guessed]}"
            reading.assumed.append(f"fixed.{name}: {pins[name]} ({why})")
    reading.job["fixed"].update(pins)
    told = ", ".join(f"{name} {value}" for name, value in pins.items())
    for name in ("deepspeed", "fsdp", "fsdp_config"):
        if pins:
            reading.end(name, CARRIED, f"fixed: {told}")
        else:
            reading.leave(
                name, MEMORY if lost else NOTHING, (*lost, "one process shares nothing")[0]
            )


def _absence(name: str, reading: Reading) -> str:
    return "cannot be read" if reading.exists(name) else "is not here"


def _divides_base(reading: Reading, pins: Mapping[str, Any]) -> bool:
    """True if what is pinned divides a quantised base, or is no engine (`sharding.yaml`)."""
    if pins.get(DISTRIBUTED_TYPE) not in (DEEPSPEED, FSDP):
        return True
    eight = reading.job["fixed"].get("load_in_8bit")
    return not (pins.get("zero_stage") in (1, 2) or eight or reading.method.online)


def _is_open(knob: Knob, reading: Reading) -> bool:
    """True if the search would try several values of a speed knob that this job has, or another
    than the stack's."""
    if knob.kind != "speed" or knob.place == "launch" or knob.name == MICRO_BATCH:
        return False
    lists = knob.values.values() if isinstance(knob.values, Mapping) else [knob.values]
    if knob.name not in (SAMPLING, SEGMENTS) and not any(
        isinstance(values, list) and len(values) > 1 for values in lists
    ):
        return False
    context = {"job.tuning": reading.job.get("tuning"), **reading.job.get("fixed", {})}
    return all(
        name in context and condition_holds(condition, context[name], context)
        for name, condition in knob.only_if.items()
    )


def _first(knob: Knob) -> Any:
    return knob.values[0] if isinstance(knob.values, list) else None


def _sharding(pins: Mapping[str, Any], processes: int) -> dict[str, Any]:
    """Return how devices share the training, as knobs that hold together."""
    kind = pins.get(DISTRIBUTED_TYPE)
    zero = {name: pins[name] for name in _OF_ZERO if name in pins}
    offloads = any(zero.get(name) == "cpu" for name in _OF_ZERO[1:])
    if kind == DEEPSPEED and zero.get("zero_stage") and (processes > 1 or offloads):
        nowhere = dict.fromkeys((OPTIMIZER_OFFLOAD, PARAM_OFFLOAD), "none")
        return {DISTRIBUTED_TYPE: kind, **nowhere, **zero}
    if processes == 1:
        return {}
    if kind == FSDP and pins.get(RESHARD) != NO_SHARD:
        return {DISTRIBUTED_TYPE: FSDP, RESHARD: pins.get(RESHARD, True)}
    return {DISTRIBUTED_TYPE: "MULTI_CPU" if kind == "MULTI_CPU" else "MULTI_GPU"}
