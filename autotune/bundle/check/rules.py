"""What no reader of a launch's files refuses, and what a user would notice too late. Pure.

All else is for the stack to say (`launch_worker.py`).
"""

import json
from collections.abc import Iterator, Mapping

import yaml

from autotune.bundle.check.files import AUTO, LaunchFiles, number, section, shown, value_at
from autotune.errors import Problem
from autotune.job.methods import Method
from autotune.space.quantization import STORAGE
from autotune.space.sharding.deepspeed import CPU_ADAMW
from autotune.space.sharding.deepspeed import FILE as DEEPSPEED_FILE
from autotune.space.sharding.sharding import DEEPSPEED, NONE

_SCHEDULES = {
    "WarmupLR": ("constant_with_warmup",),
    "WarmupDecayLR": ("linear",),
    "WarmupCosineLR": ("cosine",),
}


def disagreements(files: LaunchFiles) -> tuple[Problem, ...]:
    """Return all problems: where they are, what each file says, what to do."""
    return tuple(dict.fromkeys(problem for rule in RULES for problem in rule(files)))


def of_bundle(texts: Mapping[str, str], method: Method) -> LaunchFiles:
    """Return the files of a bundle, as trainer, accelerate and DeepSpeed read them.

    Args:
        texts: file name -> text.
    """
    deepspeed = texts.get(DEEPSPEED_FILE)
    return LaunchFiles(
        trainer=yaml.safe_load(texts[method.config_file]),
        accelerate=yaml.safe_load(texts["accelerate.yaml"]),
        deepspeed=None if deepspeed is None else json.loads(deepspeed),
        method=method,
        trainer_file=method.config_file,
    )


def condition(files: LaunchFiles) -> tuple[int, str] | None:
    """Return the number of processes on which DeepSpeed's batch is the trainer's, and that in
    words, where nobody says how many there are; None: any number may do, or none does."""
    whole = number((files.deepspeed or {}).get("train_batch_size"))
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    rows, steps = (int(number(files.trains(name)) or 0) for name in names)
    if files.count is not None or whole is None or rows * steps <= 0 or whole % (rows * steps):
        return None
    count = int(whole) // (rows * steps)
    where = f"{files.deepspeed_file}: train_batch_size"
    return count, f"{where}: {whole:g} = {rows} x {steps} x {count} processes"


def texts(files: LaunchFiles) -> Iterator[Problem]:
    """Yield numbers and switches of DeepSpeed's file that are written as texts, where no class of
    DeepSpeed's makes numbers of them."""
    file = files.deepspeed or {}
    places = {name: value for name, value in file.items() if not isinstance(value, Mapping)}
    inside = ("zero_optimization.stage", "bf16.enabled", "fp16.enabled")
    places |= {path: value_at(file, path) for path in inside}
    for name in ("optimizer.params", "scheduler.params"):
        params = value_at(file, name)
        if isinstance(params, Mapping):
            places |= {f"{name}.{key}": value for key, value in params.items()}
    for path, value in places.items():
        switch = isinstance(value, str) and value.lower() in ("true", "false")
        if switch or (isinstance(value, str) and number(value) is not None):
            hint = f"write {value.lower()}, without quotes"
            yield files.at("deepspeed", path, f"is the text `{value}`", hint)


def clipping(files: LaunchFiles) -> Iterator[Problem]:
    """Yield a DeepSpeed file that does not clip where the trainer says so."""
    clips = number(files.trains("max_grad_norm")) or 0.0
    if files.method is not None and "max_grad_norm" in files.method.refusals:
        clips = 0.0  # it clips by itself
    if files.deepspeed is not None and "gradient_clipping" not in files.deepspeed and clips:
        yield files.at(
            "deepspeed",
            "gradient_clipping",
            f"is missing, so nothing is clipped, but the trainer has max_grad_norm: {clips:g} "
            "(with DeepSpeed the trainer leaves clipping to it)",
            f"write `gradient_clipping: {clips:g}`, or set the trainer's `max_grad_norm: 0`",
        )


def precision(files: LaunchFiles) -> Iterator[Problem]:
    """Yield a precision of accelerate or DeepSpeed that is not the trainer's, and that nobody
    refuses."""
    trains = next((kind for kind in ("fp16", "bf16") if files.trains(kind)), "no")
    default = "" if {"bf16", "fp16"} & set(files.trainer) else " (TRL's default)"
    for kind in ("bf16", "fp16"):
        own = section(files.deepspeed or {}, kind)
        if kind == trains and kind in (files.deepspeed or {}) and own.get("enabled") is None:
            what = f"is missing, which means `false`, but the trainer has {kind}: `true`{default}"
            hint = f"write true, or leave it to the trainer (`{AUTO}`)"
            yield files.at("deepspeed", f"{kind}.enabled", what, hint)
    mixed = files.accelerate.get("mixed_precision")
    lost = isinstance(mixed, str) and mixed != trains and (mixed, trains) != ("fp8", "no")
    if lost and not files.by_deepspeed:
        yield files.at(
            "accelerate",
            "mixed_precision",
            f"is {shown(mixed)}, but the trainer computes in {shown(trains)}{default}",
            "set `bf16` and `fp16` of the trainer, and this, to the same",
        )


def processes(files: LaunchFiles) -> Iterator[Problem]:
    """Yield numbers of processes and machines that accelerate takes for others."""
    count = number(files.accelerate.get("num_processes"))
    machines = number(files.accelerate.get("num_machines")) or 1
    if files.accelerate.get("distributed_type") == NONE and (count or 1) > 1:
        what = f"is `{NONE}`, so accelerate starts one process, not num_processes: {count:g}"
        hint = "set it to MULTI_GPU, DEEPSPEED or FSDP, or num_processes: 1"
        yield files.at("accelerate", "distributed_type", what, hint)
    if count is not None and machines >= 1 and count % machines:
        what = f"is {count:g}, which {machines:g} machines (num_machines) cannot share evenly"
        yield files.at("accelerate", "num_processes", what)


def who_reads_deepspeeds_file(files: LaunchFiles) -> Iterator[Problem]:
    """Yield files of DeepSpeed that are not read, named twice, or missing."""
    named = section(files.accelerate, "deepspeed_config").get("deepspeed_config_file")
    trainers, file = files.trainer.get("deepspeed"), files.deepspeed_file
    wanted = named or (trainers if isinstance(trainers, str) else None)
    if files.alone and not trainers:
        what = f"is missing: without it {file} is never read"
        hint = f"set it to {file}, or start with `--deepspeed {file}`"
        yield files.at("trainer", "deepspeed", what, hint)
        return
    if named is not None and trainers:
        what = f"is {shown(trainers)}, and {files.accelerate_file} names one, too: {named}"
        yield files.at("trainer", "deepspeed", what, "take this line out")
    if files.deepspeed is None:
        if files.by_deepspeed and wanted is not None:
            field = "deepspeed_config.deepspeed_config_file" if named else "deepspeed"
            what = f"is {shown(wanted)}, and there is no such file"
            yield files.at("accelerate" if named else "trainer", field, what, "copy it there")
    elif not files.by_deepspeed:
        what = f"is {shown(files.kind)}, so {file} is never read"
        hint = f"set it to {DEEPSPEED}, or take that file away"
        yield files.at("accelerate", "distributed_type", what, hint)
    elif not wanted and not trainers:
        field = "deepspeed_config.deepspeed_config_file"
        what = f"is missing: without it {file} is never read"
        yield files.at("accelerate", field, what, f"set it to {file}")


def one_engine(files: LaunchFiles) -> Iterator[Problem]:
    """Yield two engines at once, and an engine on devices where it cannot run."""
    if files.by_deepspeed and (files.by_fsdp or section(files.accelerate, "fsdp_config")):
        by_trainer = bool(files.trainer.get("fsdp"))
        which = ("trainer", "fsdp") if by_trainer else ("accelerate", "fsdp_config")
        yield files.at(*which, "FSDP is asked for, and DeepSpeed, too", "keep one of them")
    if not files.by_deepspeed and not files.by_fsdp:
        return
    engine = "DeepSpeed" if files.by_deepspeed else "FSDP"
    for kind, settings in (("trainer", files.trainer), ("accelerate", files.accelerate)):
        if settings.get("use_cpu") is True:
            what = f"is `true`, which silently makes plain DDP of {engine}: nothing is sharded"
            hint = "set it to false (for CPUs: the trainer's ddp_backend: gloo)"
            if not files.by_deepspeed:
                hint = "set it to false: accelerate does FSDP on GPUs alone"
            yield files.at(kind, "use_cpu", what, hint)
    if files.by_fsdp and files.trainer.get("ddp_backend") == "gloo":
        yield files.at(
            "trainer",
            "ddp_backend",
            "is `gloo`, that of CPUs, but accelerate does FSDP on GPUs alone: without an error "
            "each process would train a whole model of its own",
            "on CPUs shard with DeepSpeed, or not at all",
        )


def whole_copies(files: LaunchFiles) -> Iterator[Problem]:
    """Yield a quantised base that no engine divides, and batches that are divided once more."""
    own = section(files.accelerate, "deepspeed_config").get("zero_stage")
    stage = number(value_at(files.deepspeed or {}, "zero_optimization.stage") or own)
    divides = files.by_fsdp or (files.by_deepspeed and stage == 3)
    stored = files.trainer.get(STORAGE)
    if divides and files.trainer.get("load_in_4bit") is True and stored in (None, "uint8"):
        what = f"is {shown(stored)}, so each device keeps the whole base: whole numbers are not"
        what += " divided"
        yield files.at("trainer", STORAGE, what, "write the `dtype` of the weights")
    splits = section(files.trainer, "accelerator_config").get("split_batches")
    if splits is True and files.processes > 1:
        what = "is `true`, so the processes share a batch of per_device_train_batch_size rows: "
        what += "they do not have one each"
        yield files.at("trainer", "accelerator_config.split_batches", what, "take it out")


def replaced(files: LaunchFiles) -> Iterator[Problem]:
    """Yield optimizers and schedules of DeepSpeed's that replace the trainer's, and weights that
    are offloaded at a stage that leaves them on the GPU."""
    file = files.deepspeed or {}
    optim, schedule = str(files.trains("optim")), str(files.trains("lr_scheduler_type"))
    kind, theirs = value_at(file, "optimizer.type"), value_at(file, "scheduler.type")
    is_adamw = str(kind).lower() in ("adam", "adamw") and optim.startswith("adamw_torch")
    if kind is not None and not is_adamw:
        what = f"is {shown(kind)}, which runs in place of the trainer's optim: {shown(optim)}"
        hint = "take this section out, or say the same in both"
        yield files.at("deepspeed", "optimizer.type", what, hint)
    if theirs is not None and schedule not in _SCHEDULES.get(str(theirs), ()):
        what = f"is {shown(theirs)}, which runs in place of the trainer's lr_scheduler_type: "
        hint = "take this section out: the trainer's schedule works with DeepSpeed"
        yield files.at("deepspeed", "scheduler.type", what + shown(schedule), hint)
    zero, own = section(file, "zero_optimization"), section(files.accelerate, "deepspeed_config")
    offload = section(zero, "offload_optimizer").get("device")
    offload = offload or own.get("offload_optimizer_device") or "none"
    forced = file.get("zero_force_ds_cpu_optimizer", True)
    if kind is None and offload != "none" and forced and optim not in CPU_ADAMW:
        what = f"is {shown(optim)}, but the optimizer is offloaded, and there accelerate puts "
        what += "DeepSpeedCPUAdam in its place, which would be plain Adam"
        hint = f"choose one of {', '.join(CPU_ADAMW)}, or do not offload"
        yield files.at("trainer", "optim", what, hint)
    put = section(zero, "offload_param").get("device")
    if put in ("cpu", "nvme") and number(zero.get("stage")) in (0, 1, 2):
        what = f"is {shown(put)}, but at stage {zero['stage']} weights stay on the GPU"
        where = "zero_optimization.offload_param.device"
        yield files.at("deepspeed", where, what, "set the stage to 3, or this to none")


RULES = (
    texts,
    clipping,
    precision,
    processes,
    who_reads_deepspeeds_file,
    one_engine,
    whole_copies,
    replaced,
)
