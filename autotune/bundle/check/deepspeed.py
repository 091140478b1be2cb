"""Problems of DeepSpeed's file, by itself and beside the trainer's. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.bundle.check.files import AUTO, LaunchFiles, number, section, shown, value_at
from autotune.bundle.check.types import DEEPSPEEDS_OWN_AUTO, FILLED, SECTIONS
from autotune.bundle.mark import KEY
from autotune.errors import Problem, nearest
from autotune.job.fields import MOST_DEVICES
from autotune.space.sharding.deepspeed import CPU_ADAMW

_SAME = (
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
    ("optimizer.params.lr", "learning_rate"),
    ("optimizer.params.eps", "adam_epsilon"),
    ("optimizer.params.weight_decay", "weight_decay"),
    ("scheduler.params.warmup_max_lr", "learning_rate"),
)
"""A number of DeepSpeed's, and the trainer's of the same meaning."""
_SCHEDULES = {
    "WarmupLR": ("constant_with_warmup",),
    "WarmupDecayLR": ("linear",),
    "WarmupCosineLR": ("cosine",),
}
_GROUPS = "zero_hpz_partition_size"


def same_numbers(files: LaunchFiles) -> Iterator[Problem]:
    """Yield numbers that differ between the two files."""
    file = files.deepspeed or {}
    for theirs, ours in _SAME:
        value, wanted = value_at(file, theirs), files.trains(ours)
        if value in (None, AUTO) or wanted is None:
            continue
        given = number(value)
        if given is None or given != number(wanted):
            yield files.at_deepspeed(
                theirs,
                f"is {shown(value)}, but the trainer has {ours}: {shown(wanted)}",
                f"make them equal, or leave it to the trainer (`{AUTO}`)",
            )
    yield from _betas(files, file)
    clips = number(files.trains("max_grad_norm")) or 0.0
    by_itself = files.method is not None and "max_grad_norm" in files.method.refusals
    if files.deepspeed is not None and "gradient_clipping" not in file and clips and not by_itself:
        yield files.at_deepspeed(
            "gradient_clipping",
            f"is missing, so nothing is clipped, but the trainer has max_grad_norm: {clips:g} "
            "(with DeepSpeed the trainer leaves clipping to it)",
            f"write `gradient_clipping: {clips:g}`, or set the trainer's `max_grad_norm: 0`",
        )


def _betas(files: LaunchFiles, file: Mapping[str, Any]) -> Iterator[Problem]:
    value = value_at(file, "optimizer.params.betas")
    wanted = [files.trains("adam_beta1"), files.trains("adam_beta2")]
    if value not in (None, AUTO) and value != wanted:
        yield files.at_deepspeed(
            "optimizer.params.betas",
            f"is {shown(value)}, but the trainer has adam_beta1, adam_beta2: {shown(wanted)}",
            f"make them equal, or leave them to the trainer (`{AUTO}`)",
        )


def left_out(files: LaunchFiles) -> Iterator[Problem]:
    """Yield required numbers that are missing: DeepSpeed fails without the first, and accelerate
    takes 1 for the second (`DeepSpeedPlugin`), whatever the trainer accumulates."""
    file = files.deepspeed
    if file is None or number(file.get("train_batch_size")) is not None:
        return
    micro, accumulated = _SAME[0], _SAME[1]
    if micro[0] not in file:
        yield files.at_deepspeed(
            micro[0], "is missing, and DeepSpeed needs it", f"write `{AUTO}`, or {micro[1]}"
        )
    steps = number(files.trains(accumulated[1]))
    if accumulated[0] not in file and steps is not None and steps != 1:
        yield files.at_deepspeed(
            accumulated[0],
            f"is missing, which means 1, but the trainer has {accumulated[1]}: {steps:g}",
            f"write `{AUTO}`, or {steps:g}",
        )


def precisions(files: LaunchFiles) -> Iterator[Problem]:
    """Yield both of bf16 and fp16, and one that is not the trainer's."""
    file = files.deepspeed or {}
    enabled = {kind: _enabled(file, kind) for kind in ("bf16", "fp16")}
    if enabled["bf16"] is True and enabled["fp16"] is True:
        yield files.at_deepspeed("fp16.enabled", "is `true`, and so is bf16.enabled", "keep one")
        return
    for kind, value in enabled.items():
        if value is not None and value != bool(files.trains(kind)):
            trains = shown(files.trains(kind))
            if kind == "bf16" and "bf16" not in files.trainer:
                trains += " (TRL's default, unless fp16 is on)"
            missing = "enabled" not in section(file, kind)
            yield files.at_deepspeed(
                f"{kind}.enabled",
                f"is {'missing, which means `false`' if missing else shown(value)}, "
                f"but the trainer has {kind}: {trains}",
                f"make them equal, or leave it to the trainer (`{AUTO}`)",
            )


def _enabled(file: Mapping[str, Any], kind: str) -> bool | None:
    """Return whether a precision is on; None: its section is missing, or leaves it open."""
    if not isinstance(file.get(kind), Mapping):
        return None
    value = section(file, kind).get("enabled", False)
    return bool(value) if isinstance(value, bool) or value in (0, 1) else None


def whole_batch(files: LaunchFiles) -> Iterator[Problem]:
    """Yield a `train_batch_size` that is not the product of its factors."""
    value = number((files.deepspeed or {}).get("train_batch_size"))
    parts = [number(files.trains("per_device_train_batch_size"))]
    parts += [number(files.trains("gradient_accumulation_steps"))]
    if value is None or None in parts or not files.counted:
        return
    micro, accumulation = (int(part or 0) for part in parts)
    product = micro * accumulation * files.processes
    if value != product:
        yield files.at_deepspeed(
            "train_batch_size",
            f"is {value:g}, but {micro} rows x {accumulation} accumulated x {files.processes} "
            f"processes ({files.accelerate_file}) are {product}",
            "leave it out: DeepSpeed derives it",
        )


def optimizers(files: LaunchFiles) -> Iterator[Problem]:
    """Yield optimizers and schedules that replace the trainer's."""
    file = files.deepspeed or {}
    optim = str(files.trains("optim"))
    kind = value_at(file, "optimizer.type")
    if kind is not None and not (
        str(kind).lower() in ("adam", "adamw") and optim.startswith("adamw_torch")
    ):
        yield files.at_deepspeed(
            "optimizer.type",
            f"is {shown(kind)}, which runs in place of the trainer's optim: {shown(optim)}",
            "take this section out, or say the same in both",
        )
    schedule, wanted = value_at(file, "scheduler.type"), str(files.trains("lr_scheduler_type"))
    if schedule is not None and wanted not in _SCHEDULES.get(str(schedule), ()):
        yield files.at_deepspeed(
            "scheduler.type",
            f"is {shown(schedule)}, which runs in place of the trainer's lr_scheduler_type: "
            f"{shown(wanted)}",
            "take this section out: the trainer's schedule works with DeepSpeed",
        )
    offloaded = section(files.zero, "offload_optimizer").get("device", "none") != "none"
    forced = file.get("zero_force_ds_cpu_optimizer", True)
    if kind is None and offloaded and forced and optim not in CPU_ADAMW:
        yield files.at_trainer(
            "optim",
            f"is {shown(optim)}, but the optimizer is offloaded, and there accelerate puts "
            "DeepSpeedCPUAdam in its place, which would be plain Adam",
            f"choose one of {', '.join(CPU_ADAMW)}, or do not offload",
        )


def stages(files: LaunchFiles) -> Iterator[Problem]:
    """Yield a stage that does not exist (`runtime/zero/config.py`: 0 to 3)."""
    stage = files.zero.get("stage")
    if stage in (None, AUTO) or number(stage) in (0, 1, 2, 3):
        return
    what, hint = (
        f"is {shown(stage)}, which is not a stage of ZeRO",
        "choose from `0`, `1`, `2`, `3`",
    )
    if files.deepspeed is None:
        yield files.at_accelerate("deepspeed_config.zero_stage", what, hint)
    else:
        yield files.at_deepspeed("zero_optimization.stage", what, hint)


def offloads(files: LaunchFiles) -> Iterator[Problem]:
    """Yield offloading at stages that cannot do it."""
    for name, what in (("offload_optimizer", "optimizer states"), ("offload_param", "weights")):
        offload = section(files.zero, name)
        device = offload.get("device", "none")
        if device in ("none", None, AUTO):
            continue
        if device not in ("cpu", "nvme"):
            hint = "choose from `none`, `cpu`, `nvme`"
            what = f"is {shown(device)}, not a place to offload to"
            yield files.at_offload(f"{name}.device", what, hint)
            continue
        least = 3 if name == "offload_param" or device == "nvme" else 1
        if files.stage < least:
            on_disk = " on disk" if device == "nvme" else ""
            instead = "they stay on the GPU"
            if name == "offload_optimizer" and files.stage > 0:
                instead = "they are kept in the host's memory"
            yield files.at_offload(
                f"{name}.device",
                f"is {shown(device)}, but {what}{on_disk} want stage {least}, and "
                f"{files.stage_text}: {instead}",
                f"set the stage to {least}, or this to none",
            )
        if device == "nvme" and offload.get("nvme_path") in (None, AUTO) and files.deepspeed:
            yield files.at_offload(
                f"{name}.nvme_path", "is not there", "name a folder on an NVMe disk"
            )


def weights_again(files: LaunchFiles) -> Iterator[Problem]:
    """Yield wrong sizes of the groups that hold a second copy of all weights (hpZ)."""
    size = number(files.zero.get(_GROUPS))
    if size is None or size <= 1 or not files.counted:
        return
    where, count = f"zero_optimization.{_GROUPS}", files.processes
    if files.stage != 3:
        yield files.at_deepspeed(
            where,
            f"is {size:g}, but {files.stage_text}: no weights are divided, so that it does nothing",
            "set the stage to 3, or this to 1",
        )
    if size >= count or count % size:
        what = "hold what stage 3 does, twice" if size >= count else "are refused by DeepSpeed"
        valid = ", ".join(str(n) for n in range(1, min(count, MOST_DEVICES)) if count % n == 0)
        yield files.at_deepspeed(
            where,
            f"is {size:g}, but {files.accelerate_file} starts {count} processes, and such groups "
            f"{what}",
            f"choose one of {valid}" if valid else "take it out",
        )
    device = section(files.zero, "offload_param").get("device", "none")
    if device not in ("none", None, AUTO):
        yield files.at_deepspeed(
            where,
            f"is {size:g}, but weights are offloaded (offload_param.device: {device}), and the "
            "second copy of them would be, too",
            "set one of the two to none, this to 1",
        )


def autos(files: LaunchFiles) -> Iterator[Problem]:
    """Yield `auto` where nothing fills it in."""
    for where, value in _leaves(files.deepspeed or {}):
        if value == AUTO and where not in FILLED | DEEPSPEEDS_OWN_AUTO:
            yield files.at_deepspeed(
                where, f"is `{AUTO}`, which nothing fills in there", "write the value"
            )


def unknown_names(files: LaunchFiles) -> Iterator[Problem]:
    """Yield names that DeepSpeed does not know: it ignores them at the top level, and fails
    below."""
    file = files.deepspeed or {}
    declared = {where: frozenset(fields) for where, fields in files.fields.deepspeed.items()}
    for where, known in {**SECTIONS, **declared}.items():
        inside = file if not where else value_at(file, where)
        if not isinstance(inside, Mapping):
            continue
        for name in sorted(set(inside) - known - {KEY}, key=str):
            yield files.at_deepspeed(
                f"{where}.{name}" if where else name,
                "DeepSpeed has no such field (0.19)",
                nearest(str(name), known) or "take it out",
            )


def _leaves(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        here = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        else:
            yield here, value


CHECKS = (
    same_numbers,
    left_out,
    precisions,
    whole_batch,
    optimizers,
    stages,
    offloads,
    weights_again,
    autos,
    unknown_names,
)
