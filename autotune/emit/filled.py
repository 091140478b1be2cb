"""The files of a launch, with what flags of its commands say where they say nothing. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autotune.emit.flag_checks import LEFT_OPEN, OF_DEEPSPEED, launches, positive, trains, truth
from autotune.emit.flags import Flags, plain
from autotune.emit.launch_files import LaunchFiles, section
from autotune.facts.stack import canonical_name


def filled(files: LaunchFiles) -> list[LaunchFiles]:
    """The files as each of their commands completes them; as they are, where none does."""
    reading = {id(one): one for one, _ in (*launches(files), *trains(files))}
    return [_by(files, one.told, one.script) for one in reading.values() if one.told] or [files]


def _by(files: LaunchFiles, flags: Flags, script: str) -> LaunchFiles:
    """The files as one command completes them."""
    given: dict[tuple[str, str], str] = {}
    accelerate, trainer = dict(files.accelerate), dict(files.trainer)
    launching = any(told is flags for _, told in launches(files))
    if launching:
        for inside, name, value in _of_launch(files, flags):
            if inside and not isinstance(accelerate.get(inside), Mapping | None):
                continue  # what it is is said elsewhere
            if inside:
                accelerate[inside] = {**section(accelerate, inside), name: value}
            else:
                accelerate[name] = value
            place = f"{inside}.{name}" if inside else name
            given["accelerate", place] = f"{script}: --{name}"
    if any(told is flags for _, told in trains(files)):
        for name, value in _of_trainer(files, flags):
            trainer[name] = value
            given["trainer", name] = f"{script}: --{name}"
    return replace(files, accelerate=accelerate, trainer=trainer, given=given)


def _of_launch(files: LaunchFiles, flags: Flags) -> Iterator[tuple[str, str, Any]]:
    """(Section, field, value) of accelerate's file that flags fill in."""
    for name in ("num_processes", "num_machines", "gpu_ids"):
        if name in flags.launch and files.accelerate.get(name) in (None, LEFT_OPEN):
            yield "", name, flags.launch[name]
    own: Mapping[str, Any] = section(files.accelerate, "deepspeed_config")
    alone = files.deepspeed is None or "deepspeed_config_file" not in {*own, *flags.launch}
    for name in OF_DEEPSPEED:
        value = flags.launch.get(name)
        if value is None or own.get(name) is not None or not plain(value.rpartition("/")[2]):
            continue
        if alone or name == "deepspeed_config_file":
            yield "deepspeed_config", name, value


def _of_trainer(files: LaunchFiles, flags: Flags) -> Iterator[tuple[str, Any]]:
    """(Field, value) of the trainer's file that flags fill in."""
    told = {canonical_name(str(name)) for name, value in files.trainer.items() if value is not None}
    for flag, text in flags.trains.items():
        name, value = positive(files, flag, text)
        if canonical_name(name) in told or name == "config" or not plain(value):
            continue
        may_be_switch = "bool" in files.types.get(name, "bool")
        switch = truth(value) if may_be_switch and not value.isdigit() else None
        yield name, value if switch is None else switch
