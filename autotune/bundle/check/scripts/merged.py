"""The files of a launch, with what flags of its commands say where they say nothing. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autotune.bundle.check.commands import Flags, Started, plain
from autotune.bundle.check.files import LaunchFiles, section
from autotune.bundle.check.scripts.accelerate_flags import LEFT_OPEN, OF_DEEPSPEED, launches
from autotune.bundle.check.scripts.trainer_flags import trained_by, trains


def filled(files: LaunchFiles) -> list[LaunchFiles]:
    """The files as each of their commands completes them; as they are, where none does."""
    reading = {id(one): one for one, _ in (*launches(files), *trains(files))}
    return [_launched_by(trained_by(files, one), one) for one in reading.values()] or [files]


def _launched_by(files: LaunchFiles, one: Started) -> LaunchFiles:
    """The files with what a command tells accelerate where accelerate's file says nothing."""
    flags = one.told
    if flags is None or all(told is not flags for _, told in launches(files)):
        return files
    given, accelerate = dict(files.given), dict(files.accelerate)
    for inside, name, value in _of_launch(files, flags):
        if inside and not isinstance(accelerate.get(inside), Mapping | None):
            continue  # what it is is said elsewhere
        if inside:
            accelerate[inside] = {**section(accelerate, inside), name: value}
        else:
            accelerate[name] = value
        place = f"{inside}.{name}" if inside else name
        given["accelerate", place] = f"{one.script}: --{name}"
    return replace(files, accelerate=accelerate, given=given)


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
