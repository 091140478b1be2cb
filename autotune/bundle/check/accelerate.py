"""Contradictions between accelerate's file, DeepSpeed's and the trainer's. Pure."""

from collections.abc import Iterator
from typing import Any

from autotune.bundle.check.files import AUTO, LaunchFiles, number, section, shown
from autotune.errors import Problem, nearest
from autotune.space.knobs import GENERATION_BATCH, GROUP
from autotune.space.sharding.sharding import DEEPSPEED, FSDP, NONE

REFUSED_BESIDE_A_FILE = (
    *("gradient_accumulation_steps", "gradient_clipping", "zero_stage"),
    *("offload_optimizer_device", "offload_param_device", "offload_optimizer_nvme_path"),
    *("offload_param_nvme_path", "zero3_save_16bit_model"),
)
"""Fields that accelerate allows only in DeepSpeed's file, where there is one
(`DeepSpeedPlugin`)."""
_SAME = (
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
)


def names(files: LaunchFiles) -> Iterator[Problem]:
    """Yield fields that accelerate does not know: it would refuse the file."""
    fields = files.fields.accelerate
    for name in sorted(set(files.accelerate) - set(fields), key=str) if fields else ():
        hint = nearest(str(name), fields) or "take it out"
        yield files.at_accelerate(str(name), "accelerate has no such field", hint)


def processes(files: LaunchFiles) -> Iterator[Problem]:
    """Yield wrong numbers of processes and machines."""
    count = number(files.accelerate.get("num_processes"))
    machines = number(files.accelerate.get("num_machines")) or 1
    missing = "distributed_type" not in files.accelerate
    if files.kind == NONE and not missing and count is not None and count > 1:
        yield files.at_accelerate(
            "distributed_type",
            f"is `{NONE}`, so accelerate starts one process, not num_processes: {count:g}",
            "set it to MULTI_GPU, DEEPSPEED or FSDP, or num_processes: 1",
        )
    if missing:
        yield files.at_accelerate(
            "distributed_type",
            "is missing, and accelerate refuses a file without it",
            f"write `{NONE}`, quoted",
        )
    if "num_processes" not in files.accelerate and files.kind != NONE:
        yield files.at_accelerate(
            "num_processes",
            "is missing, and no command gives it: accelerate refuses that",
            "write how many processes are to train, on all machines together",
        )
    if count is not None and machines >= 1 and count % machines:
        yield files.at_accelerate(
            "num_processes",
            f"is {count:g}, which {machines:g} machines (num_machines) cannot share evenly",
        )
    rank = number(files.accelerate.get("machine_rank")) or 0
    if rank >= machines:
        yield files.at_accelerate(
            "machine_rank",
            f"is {rank:g}, but with num_machines: {machines:g} the last one is {machines - 1:g}",
        )


def deepspeeds_section(files: LaunchFiles) -> Iterator[Problem]:
    """Yield contradictions between accelerate's section of DeepSpeed and DeepSpeed's own file."""
    own = section(files.accelerate, "deepspeed_config")
    named = own.get("deepspeed_config_file")
    if named is not None:
        beside = [name for name in REFUSED_BESIDE_A_FILE if own.get(name) is not None]
        for name in beside:
            yield files.at_accelerate(
                f"deepspeed_config.{name}",
                f"accelerate refuses it beside deepspeed_config_file: {named}",
                f"take it out here, and set it in {files.deepspeed_file}",
            )
        if files.kind == DEEPSPEED and files.accelerate.get("mixed_precision") is not None:
            yield files.at_accelerate(
                "mixed_precision",
                f"accelerate refuses it beside deepspeed_config_file: {named}",
                f"take it out here; {files.deepspeed_file} and the trainer say it",
            )
    for theirs, ours in _SAME if named is None and files.kind == DEEPSPEED else ():
        value, wanted = own.get(theirs), files.trains(ours)
        if value not in (None, AUTO) and number(value) != number(wanted):
            yield files.at_accelerate(
                f"deepspeed_config.{theirs}",
                f"is {shown(value)}, but the trainer has {ours}: {shown(wanted)}",
                "take it out: the trainer's is taken then",
            )
    empty = files.deepspeed is not None and files.deepspeed.get("zero_optimization") == {}
    if own.get("zero3_init_flag") is True and (files.zero or empty) and files.stage != 3:
        yield files.at_accelerate(
            "deepspeed_config.zero3_init_flag",
            f"is `true`, but {files.stage_text}",
            "set it to false, or the stage to 3",
        )
    if files.deepspeed is not None and "zero_optimization" not in files.deepspeed:
        yield files.at_deepspeed(
            "zero_optimization",
            "is missing, and accelerate refuses a file without it",
            "say its `stage`",
        )


def who_reads_deepspeeds_file(files: LaunchFiles) -> Iterator[Problem]:
    """Yield files of DeepSpeed that are not read, named twice, or missing."""
    own = section(files.accelerate, "deepspeed_config")
    named, trainers = own.get("deepspeed_config_file"), files.trainer.get("deepspeed")
    if files.alone and not trainers:
        yield files.at_trainer(
            "deepspeed",
            f"is missing: without it {files.deepspeed_file} is never read",
            f"set it to {files.deepspeed_file}, or start with `--deepspeed {files.deepspeed_file}`",
        )
        return
    if named is not None and trainers:
        yield files.at_trainer(
            "deepspeed",
            f"is {shown(trainers)}, and {files.accelerate_file} names one, too: {named}",
            "take this line out",
        )
    wanted = named or (trainers if isinstance(trainers, str) else None)
    if files.by_deepspeed and wanted is not None and files.deepspeed is None:
        where = files.at_accelerate if named else files.at_trainer
        field = "deepspeed_config.deepspeed_config_file" if named else "deepspeed"
        yield where(field, f"is {shown(wanted)}, and there is no such file", "copy it there")
    if files.deepspeed is not None and not files.by_deepspeed:
        yield files.at_accelerate(
            "distributed_type",
            f"is {shown(files.kind)}, so {files.deepspeed_file} is never read",
            f"set it to {DEEPSPEED}, or take that file away",
        )
    elif files.deepspeed is not None and not wanted and not trainers:
        yield files.at_accelerate(
            "deepspeed_config.deepspeed_config_file",
            f"is missing: without it {files.deepspeed_file} is never read",
            f"set it to {files.deepspeed_file}",
        )


def one_engine(files: LaunchFiles) -> Iterator[Problem]:
    """Yield two engines at once, and an engine on devices where it cannot run."""
    if files.by_deepspeed and (files.by_fsdp or section(files.accelerate, "fsdp_config")):
        which = files.at_trainer if files.trainer.get("fsdp") else files.at_accelerate
        field = "fsdp" if files.trainer.get("fsdp") else "fsdp_config"
        yield which(field, "FSDP is asked for, and DeepSpeed, too", "keep one of them")
    engine = "DeepSpeed" if files.by_deepspeed else "FSDP" if files.by_fsdp else None
    if engine is None:
        return
    for settings, where in (
        (files.trainer, files.at_trainer),
        (files.accelerate, files.at_accelerate),
    ):
        if settings.get("use_cpu") is True:
            yield where(
                "use_cpu",
                f"is `true`, which silently makes plain DDP of {engine}: nothing is sharded",
                "set it to false (for CPUs: the trainer's ddp_backend: gloo)"
                if files.by_deepspeed
                else "set it to false: accelerate does FSDP on GPUs alone",
            )
    if files.by_fsdp and files.trainer.get("ddp_backend") == "gloo":
        yield files.at_trainer(
            "ddp_backend",
            "is `gloo`, that of CPUs, but accelerate does FSDP on GPUs alone: without an error "
            "each process would train a whole model of its own",
            "on CPUs shard with DeepSpeed, or not at all",
        )


def precision(files: LaunchFiles) -> Iterator[Problem]:
    """Yield a mixed precision of accelerate that is not the trainer's."""
    mixed = files.accelerate.get("mixed_precision")
    if mixed is False:
        yield files.at_accelerate(
            "mixed_precision",
            "is `false`: YAML reads an unquoted `no` as false",
            "write 'no', quoted",
        )
        return
    if mixed is None or mixed == "fp8" or files.by_deepspeed:
        return
    trains = next((kind for kind in ("fp16", "bf16") if files.trains(kind)), "no")
    if mixed != trains:
        default = "" if {"bf16", "fp16"} & set(files.trainer) else " (TRL's default)"
        yield files.at_accelerate(
            "mixed_precision",
            f"is {shown(mixed)}, but the trainer computes in {shown(trains)}{default}",
            "set `bf16` and `fp16` of the trainer, and this, to the same",
        )


def checkpoints(files: LaunchFiles) -> Iterator[Problem]:
    """Yield activations that are checkpointed twice, and ways of saving that are refused."""
    own = section(files.accelerate, "fsdp_config")
    if files.kind != FSDP:
        return
    fsdp = {str(name).removeprefix("fsdp_"): value for name, value in own.items()}
    by_trainer = files.trains("gradient_checkpointing") is True
    stated = {"gradient_checkpointing", "activation_checkpointing"} & set(files.trainer)
    default = "" if stated else ", TRL's default"
    own_loop = files.method is not None and bool(files.method.own_script)
    if fsdp.get("activation_checkpointing") is True and by_trainer and not own_loop:
        yield files.at_accelerate(
            "fsdp_config.fsdp_activation_checkpointing",
            "is `true`, but the trainer checkpoints, too (gradient_checkpointing: `true`"
            f"{default}), and refuses both",
            "set one of them to false",
        )
    version = number(fsdp.get("version")) or 1
    reshard: Any = fsdp.get("reshard_after_forward")
    if version == 2 and reshard is not None and str(reshard).lower() not in ("true", "false"):
        yield files.at_accelerate(
            "fsdp_config.fsdp_reshard_after_forward",
            f"is {shown(reshard)}, but version 2 takes true or false",
            "true is what FULL_SHARD was",
        )
    sharded = "SHARDED" in str(fsdp.get("state_dict_type", "")).upper()
    if sharded and files.trainer.get("save_only_model") is True:
        yield files.at_trainer(
            "save_only_model",
            f"is `true`, which the trainer refuses beside {files.accelerate_file}: "
            f"fsdp_config.fsdp_state_dict_type: {fsdp['state_dict_type']}",
            "save a FULL_STATE_DICT",
        )


def batch_finder(files: LaunchFiles) -> Iterator[Problem]:
    """Yield `auto_find_batch_size`, which transformers refuses for ZeRO-3."""
    if files.trainer.get("auto_find_batch_size") is True and files.stage == 3:
        yield files.at_trainer(
            "auto_find_batch_size",
            "is `true`, which the trainer refuses with ZeRO-3",
            "set it to false",
        )


def groups(files: LaunchFiles) -> Iterator[Problem]:
    """Yield batches that do not hold whole groups: all processes together make the completions of
    one prompt."""
    method = files.method
    if not files.counted or GROUP not in (files.trainer if method is None else method.knobs):
        return
    sizes = {
        name: max(int(number(files.trains(name)) or default), 1 if name == GROUP else 0)
        for name, default in ((GROUP, 8), (GENERATION_BATCH, 0))
    }
    micro = int(number(files.trains("per_device_train_batch_size")) or 1)
    accumulated = int(number(files.trains("gradient_accumulation_steps")) or 1)
    step = micro * files.processes
    batch = sizes[GENERATION_BATCH] or step * accumulated
    who = f"{micro} rows x {files.processes} processes ({files.accelerate_file})"
    if batch % step:
        yield files.at_trainer(
            GENERATION_BATCH, f"is {batch}, which is not a multiple of {who}", "make it one"
        )
    if batch % sizes[GROUP]:
        made = f"is {sizes[GROUP]}, which does not divide the {batch} completions made together"
        hint = f"make {GENERATION_BATCH} a multiple of it: by default it is {who} x accumulation"
        yield files.at_trainer(GROUP, made, hint)


OF_THE_FILE = (names, processes)
"""Checks of accelerate's file by itself."""
CHECKS = (
    *OF_THE_FILE,
    deepspeeds_section,
    who_reads_deepspeeds_file,
    one_engine,
    precision,
    checkpoints,
    batch_finder,
    groups,
)
