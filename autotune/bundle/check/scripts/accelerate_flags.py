"""Flags of a command that say another thing than the files it reads. Pure.

Who wins: of accelerate's flags the flag (`accelerate/commands/launch.py`,
`_validate_launch_command`), but for what DeepSpeed's own file says (`DeepSpeedPlugin`) and for a
precision that the trainer has (`transformers/training_args.py`); of the trainer's flags the flag
(`trl/scripts/utils.py`, `TrlParser`: a file only sets defaults).
"""

from collections.abc import Iterator

from autotune.bundle.check.commands import Flags, Started, plain
from autotune.bundle.check.files import AUTO, LaunchFiles, section, shown, value_at
from autotune.bundle.check.scripts.trainer_flags import (
    EQUAL,
    named,
    same,
    trained_by,
    trainer_flags,
    trains,
)
from autotune.errors import Problem
from autotune.space.sharding.sharding import DEEPSPEED, FSDP

TYPES = {
    "multi_gpu": ("MULTI_GPU", "MULTI_CPU", "MULTI_NPU", "MULTI_MLU", "MULTI_XPU", "MULTI_HPU"),
    "use_deepspeed": (DEEPSPEED,),
    "use_fsdp": (FSDP,),
    "use_megatron_lm": ("MEGATRON_LM",),
    "tpu": ("XLA", "TPU"),
}
"""Flags that say how processes work together, and what the file calls the same."""
_ZERO = "zero_optimization"
IN_DEEPSPEEDS_FILE = {
    "zero_stage": f"{_ZERO}.stage",
    "offload_optimizer_device": f"{_ZERO}.offload_optimizer.device",
    "offload_optimizer_nvme_path": f"{_ZERO}.offload_optimizer.nvme_path",
    "offload_param_device": f"{_ZERO}.offload_param.device",
    "offload_param_nvme_path": f"{_ZERO}.offload_param.nvme_path",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "zero3_save_16bit_model": f"{_ZERO}.stage3_gather_16bit_weights_on_model_save",
}
"""Flags of accelerate, and where DeepSpeed's own file says the same."""
OF_DEEPSPEED = (*IN_DEEPSPEEDS_FILE, "deepspeed_config_file", "zero3_init_flag")
_TRAINERS = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
}
_COMPARED = ("num_processes", "num_machines", "gpu_ids")
LEFT_OPEN = -1
"""accelerate's number of processes where a command has to say it."""


def launches(files: LaunchFiles) -> Iterator[tuple[Started, Flags]]:
    """The commands that read accelerate's file, as far as it is told."""
    for one in files.trainings:
        if one.told is not None and named(_config(files, one.told)) == files.accelerate_file:
            yield one, one.told


def _config(files: LaunchFiles, flags: Flags) -> str | None:
    """accelerate's file as a command names it; for `trl` the trainer's file may, too."""
    named = flags.launch.get("config_file", flags.launch.get("accelerate_config"))
    if named is None and flags.by_trl:
        inside = files.trainer.get("accelerate_config", files.trainer.get("config_file"))
        return inside if isinstance(inside, str) else None
    return named


def nobody_reads(files: LaunchFiles) -> Iterator[Problem]:
    """Commands that name no file, where no other command does, so that the files do nothing."""
    accelerates, trainers = any(launches(files)), any(trains(files))
    for one in files.trainings:
        told = one.told
        if told is None:
            continue
        if not accelerates and _config(files, told) is None and not told.open_launch:
            flag = "accelerate_config" if told.by_trl else "config_file"
            yield Problem(
                where=f"{one.script}: --{flag}",
                what=f"is not there, so nobody reads {files.accelerate_file}",
                hint=f"add --{flag} {files.accelerate_file}",
            )
        closed = told.method is not None and not told.open_trains
        if not trainers and closed and "config" not in told.trains:
            yield Problem(
                where=f"{one.script}: --config",
                what=f"is not there, so nobody reads {files.trainer_file}",
                hint=f"add --config {files.trainer_file}",
            )


def kind_of_launch(files: LaunchFiles) -> Iterator[Problem]:
    """`--multi_gpu` and its like: where one is given, accelerate passes over the file's own."""
    for one, flags in launches(files):
        given = [name for name in (*TYPES, "cpu") if name in flags.launch]
        if len(given) > 1:
            yield Problem(
                where=f"{one.script}: --{given[1]}",
                what=f"stands beside --{given[0]}, and accelerate refuses that",
                hint="keep one of them",
            )
            continue
        for name in given:
            where = f"{one.script}: --{name}"
            if name == "cpu":
                if files.kind not in ("NO", "MULTI_CPU"):
                    what = f"starts one process on the CPU, but {_says(files, 'distributed_type')}"
                    yield Problem(where=where, what=f"{what}: the flag wins", hint=EQUAL)
            elif files.kind not in TYPES[name] and "distributed_type" in files.accelerate:
                what = f"stands there, but {_says(files, 'distributed_type')}: the flag wins"
                yield Problem(where=where, what=what, hint=EQUAL)


def _says(files: LaunchFiles, field: str) -> str:
    return f"{files.accelerate_file} has {field}: {shown(value_at(files.accelerate, field))}"


def kind_told(files: LaunchFiles, flags: Flags) -> str:
    """How processes work together, as the command has it."""
    if "cpu" in flags.launch:
        return "NO"
    given = [TYPES[name][0] for name in TYPES if name in flags.launch]
    return files.kind if not given or files.kind in TYPES_OF.get(given[0], ()) else given[0]


TYPES_OF = {names[0]: names for names in TYPES.values()}


def launch_flags(files: LaunchFiles) -> Iterator[Problem]:
    """accelerate's flags against accelerate's file, and DeepSpeed's, and what the trainer has."""
    for one, flags in launches(files):
        kind, told = kind_told(files, flags), trained_by(files, one)
        for name, value in flags.launch.items():
            if not plain(value):
                continue
            what = hint = None
            if name == "mixed_precision":
                what, hint = _precision(told, value)
            elif name == "deepspeed_config_file":
                what, hint = _deepspeeds_file(files, value, kind)
            elif name in OF_DEEPSPEED:
                what, hint = _of_deepspeed(told, name, value, kind)
            elif name in _COMPARED or name.startswith("fsdp_"):
                what, hint = _beside(files, name, value)
            if what is not None:
                said = f"is {shown(value)}, {what}"
                yield Problem(where=f"{one.script}: --{name}", what=said, hint=hint)


Told = tuple[str | None, str | None]
"""(What is wrong, what to do)."""


def _beside(files: LaunchFiles, name: str, value: str) -> Told:
    """A flag beside the same field of accelerate's file."""
    for where in ("", "deepspeed_config", "fsdp_config"):
        inside = section(files.accelerate, where) if where else files.accelerate
        for field in (name, name.removeprefix("fsdp_")):
            told = inside.get(field)
            if told not in (None, LEFT_OPEN) and not same(value, told):
                path = f"{where}.{field}" if where else field
                return f"but {_says(files, path)}: the flag wins", EQUAL
    return None, None


def _precision(files: LaunchFiles, value: str) -> Told:
    told = files.accelerate.get("mixed_precision")
    if told is not None and told is not False and not same(value, told):
        return f"but {_says(files, 'mixed_precision')}: the flag wins over it", EQUAL
    trained = next((kind for kind in ("fp16", "bf16") if files.trains(kind)), "no")
    if value == "fp8" or value == trained:
        return None, None
    wins = "the flag is taken" if trained == "no" else "the trainer's own wins"
    return f"but the trainer computes in {shown(trained)}: {wins}", EQUAL


def _deepspeeds_file(files: LaunchFiles, value: str, kind: str) -> Told:
    if kind != DEEPSPEED:
        return f"and nobody reads it: the launch is one of {kind}", "take the flag out"
    told = section(files.accelerate, "deepspeed_config").get("deepspeed_config_file")
    if isinstance(told, str) and named(value) not in (None, named(told)):
        where = "deepspeed_config.deepspeed_config_file"
        return f"but {_says(files, where)}: the flag wins", EQUAL
    return None, None


def _of_deepspeed(files: LaunchFiles, name: str, value: str, kind: str) -> Told:
    """A flag that only DeepSpeed has a use for, and that its own file wins over."""
    ours = files.trains(_TRAINERS[name]) if name in _TRAINERS else None
    if kind != DEEPSPEED:
        if ours is not None and same(value, ours):
            return None, None
        said = "" if ours is None else f", and the trainer has {_TRAINERS[name]}: {shown(ours)}"
        return f"and does nothing: the launch is one of {kind}{said}", "take the flag out"
    if files.deepspeed is None or name not in IN_DEEPSPEEDS_FILE:
        return _beside(files, name, value)
    told = value_at(files.deepspeed, IN_DEEPSPEEDS_FILE[name])
    if told == AUTO:
        if ours is None or same(value, ours):
            return None, None
        auto = f"takes the place of `{AUTO}` in {files.deepspeed_file}"
        return f"{auto}, but the trainer has {_TRAINERS[name]}: {shown(ours)}", EQUAL
    if told is not None and same(value, told):
        return None, None
    has = f"{files.deepspeed_file} has {IN_DEEPSPEEDS_FILE[name]}: {shown(told)}"
    return f"but {has}: the file wins", EQUAL


CHECKS = (nobody_reads, kind_of_launch, launch_flags, trainer_flags)
