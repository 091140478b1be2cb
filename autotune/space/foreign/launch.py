"""What launches a training: accelerate's YAML, DeepSpeed's JSON, and flags of launchers. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.space.foreign.fields import CARRIED, LEFT, SEARCHED, UNKNOWN, Fate, FateKind
from autotune.space.foreign.tool import SHARDING
from autotune.space.sharding.sharding import (
    BUCKET_SIZE,
    DEEPSPEED,
    DISTRIBUTED_TYPE,
    FSDP,
    NONE,
    OPTIMIZER_OFFLOAD,
    PARAM_OFFLOAD,
    PERSISTENCE,
    PREFETCHED,
    RESHARD,
)

CONFIG = "deepspeed_config_file"
KNOBS = {
    "zero_stage": "zero_stage",
    "zero_optimization.stage": "zero_stage",
    "offload_optimizer_device": OPTIMIZER_OFFLOAD,
    "offload_param_device": PARAM_OFFLOAD,
    "zero_optimization.offload_optimizer.device": OPTIMIZER_OFFLOAD,
    "zero_optimization.offload_param.device": PARAM_OFFLOAD,
    "zero_optimization.cpu_offload": OPTIMIZER_OFFLOAD,
    "fsdp_reshard_after_forward": RESHARD,
    "fsdp_sharding_strategy": RESHARD,
    "zero_optimization.overlap_comm": "overlap_comm",
    f"zero_optimization.{BUCKET_SIZE}": BUCKET_SIZE,
    f"zero_optimization.{PREFETCHED}": PREFETCHED,
    f"zero_optimization.{PERSISTENCE}": PERSISTENCE,
}
"""Fields of accelerate and DeepSpeed that are knobs, without the section of accelerate's file."""
_COUNTS = ("num_processes", "num_machines")
_BATCH = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
_TRAINERS = {"gradient_clipping": "max_grad_norm", "optimizer.params.lr": "learning_rate"}
WHERE = "it says where and how processes start; a bundle has its own"
PARALLEL = {
    **dict.fromkeys(
        ("parallelism_config_tp_size", "tp_size", "autotp_size", "megatron_lm_tp_degree"), "tensor"
    ),
    "parallelism_config_cp_size": "context",
    **dict.fromkeys(("parallelism_config_sp_size", "sequence_parallel_size"), "sequence"),
    "megatron_lm_pp_degree": "pipeline",
}
"""Fields of accelerate and DeepSpeed that let several devices work on the same rows."""
_RESHARDS = ("true", "full_shard", "hybrid_shard", "1", "4")
"""FSDP 1's strategies, by name or number, after which weights are divided again."""
CHECKPOINTING = "gradient_checkpointing"
_NOT_BUILT = ("MEGATRON_LM", "XLA", "TP")
"""Kinds of accelerate's that share a training as no job does."""
Read = Callable[[str], Mapping[str, Any] | None]
"""Return what a file holds that another one names; None: it is not here."""
_NAMED = re.compile(r"(?:z|zero|stage)[_-]?([0-3])(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The processes of a launch, and their sharding.

    Attributes:
        count: processes, as the launcher says it; None: nothing says it.
        per_machine: whether `count` is of each machine, and not of all.
        visible: devices of a machine that its processes may see, where nothing else says more.
        nodes: machines; None: nothing says it.
        parallel: devices that work on the same rows, by what they divide instead.
        pins: knobs of sharding as the files have them.
        batch: DeepSpeed's own numbers of rows, by its names.
        trainer: fields of the trainer that only these files have.
        precision: mixed precision; empty: nothing says it.
        unread: files that share the training, and are not here.
        guessed: what is taken of the name of such a file.
        not_built: ways to share the training that no job has.
        assumed: what is left open, as sentences.
        fates: what became of each field.
    """

    count: int | None = None
    per_machine: bool = False
    visible: int | None = None
    nodes: int | None = None
    parallel: Mapping[str, int] = field(default_factory=dict)
    pins: Mapping[str, Any] = field(default_factory=dict)
    batch: Mapping[str, int] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    precision: str = ""
    cpu: bool = False
    unread: tuple[str, ...] = ()
    guessed: str = ""
    not_built: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    fates: tuple[Fate, ...] = ()

    @property
    def machines(self) -> int:
        """Number of machines; 1 where nothing says it."""
        return self.nodes or 1

    @property
    def processes(self) -> int | None:
        """Processes of all machines; None: nothing says it."""
        if self.count is not None:
            return self.count * self.machines if self.per_machine else self.count
        return None if self.visible is None else self.visible * self.machines

    def joined(self, other: "Launch") -> "Launch":
        """Both; what the other says goes first."""
        counted = other if other.count is not None else self
        return Launch(
            count=counted.count,
            per_machine=counted.per_machine,
            visible=self.visible if other.visible is None else other.visible,
            nodes=self.nodes if other.nodes is None else other.nodes,
            parallel={**self.parallel, **other.parallel},
            pins={**self.pins, **other.pins},
            batch={**self.batch, **other.batch},
            trainer={**self.trainer, **other.trainer},
            precision=other.precision or self.precision,
            cpu=self.cpu or other.cpu,
            unread=(*self.unread, *other.unread),
            guessed=other.guessed or self.guessed,
            not_built=(*self.not_built, *other.not_built),
            assumed=(*self.assumed, *other.assumed),
            fates=(*self.fates, *other.fates),
        )


def of_accelerate(data: Mapping[str, Any], read: Read) -> Launch:
    """Return what accelerate's file says."""
    launch = Launch()
    for name, value in leaves(data):
        found = of_file(value, read) if name.endswith(f".{CONFIG}") else None
        launch = launch.joined(found or accelerate_field(name, value))
    kind = str(data.get("distributed_type"))
    several = (launch.count or 1) > 1 or launch.machines > 1
    # YAML reads NO without quotes as false. `mpirun_config` starts as many as are said.
    if kind in (NONE, "False") and several and not data.get("mpirun_config"):
        fates = (_alone(fate) if fate.field in _COUNTS else fate for fate in launch.fates)
        launch = replace(launch, count=None, nodes=None, fates=tuple(fates))
    if kind == DEEPSPEED and "zero_stage" not in launch.pins:
        section = data.get("deepspeed_config")
        if isinstance(section, Mapping) and CONFIG not in section:
            launch = replace(launch, pins={**launch.pins, "zero_stage": 2})
    return launch


def _alone(fate: Fate) -> Fate:
    """Return a number of processes or machines that accelerate passes over."""
    return replace(fate, kind=LEFT, detail="accelerate starts one process: `distributed_type: NO`")


def accelerate_field(name: str, value: Any) -> Launch:
    """Return what one field of accelerate's file says (`fsdp_config.fsdp_version`)."""
    last = name.rpartition(".")[2]
    if last == "num_processes" and is_count(value):
        return Launch(count=int(value), fates=(fate_of(name, value, CARRIED, "devices"),))
    if last == "num_machines" and is_count(value):
        detail = "devices.nodes"
        return Launch(nodes=int(value), fates=(fate_of(name, value, CARRIED, detail),))
    if last in PARALLEL and is_count(value):
        return _parallel(name, last, value)
    if last == "mixed_precision":
        words = {"bf16": "bf16", "fp16": "fp16", "no": "fp32", "false": "fp32"}
        known = words.get(str(value).lower(), "")
        kind: FateKind = CARRIED if known else LEFT
        return Launch(precision=known, fates=(fate_of(name, value, kind, "precision"),))
    if last == "use_cpu":
        cpu = value is True
        detail = "devices.kind"
        return Launch(cpu=cpu, fates=(fate_of(name, value, CARRIED, detail),))
    if last == DISTRIBUTED_TYPE and str(value).upper() in _NOT_BUILT:
        fate = fate_of(name, value, LEFT, "it is not built")
        return Launch(not_built=(f"{name}: {value}",), fates=(fate,))
    if last == DISTRIBUTED_TYPE:
        pins = {DISTRIBUTED_TYPE: str(value).upper()}
        return Launch(pins=pins, fates=(fate_of(name, value, SEARCHED, SHARDING),))
    if last == "fsdp_activation_checkpointing" and str(value).lower() == "true":
        fate = fate_of(name, value, CARRIED, CHECKPOINTING)
        return Launch(trainer={CHECKPOINTING: True}, fates=(fate,))
    if last in ("fsdp_offload_params", "fsdp_cpu_offload"):
        off = str(value).lower() != "true"
        detail = "off" if off else "FSDP's offloading is not built: it takes less memory of a GPU"
        return Launch(fates=(fate_of(name, value, LEFT, detail),))
    if last in KNOBS:
        return _knob(name, last, value)
    if last == "gradient_accumulation_steps" and is_count(value):
        return Launch(
            batch={last: int(value)}, fates=(fate_of(name, value, SEARCHED, "the batch"),)
        )
    inside = name.startswith(("deepspeed_config.", "fsdp_config.", "parallelism_config."))
    return Launch(fates=(fate_of(name, value, LEFT, "a bundle has its own" if inside else WHERE),))


def of_deepspeed(data: Mapping[str, Any]) -> Launch:
    """Return what DeepSpeed's file says."""
    launch = Launch(pins={DISTRIBUTED_TYPE: DEEPSPEED})
    for name, value in leaves(data):
        launch = launch.joined(_deepspeed_field(name, value))
    return launch


def _deepspeed_field(name: str, value: Any) -> Launch:
    if value == "auto":
        return Launch(fates=(fate_of(name, value, CARRIED, "as the trainer's file says"),))
    if name in _BATCH:
        if is_count(value):
            fate = fate_of(name, value, SEARCHED, "the batch")
            return Launch(batch={name: int(value)}, fates=(fate,))
        return Launch(fates=(fate_of(name, value, LEFT, "it is not a whole number above 0"),))
    if name in ("bf16.enabled", "fp16.enabled"):
        precision = name[:4] if value is True else ""
        return Launch(precision=precision, fates=(fate_of(name, value, CARRIED, "precision"),))
    if name in KNOBS:
        return _knob(name, name, value)
    last = name.rpartition(".")[2]
    if last in PARALLEL and is_count(value):
        return _parallel(name, last, value)
    if name in _TRAINERS and isinstance(value, int | float) and not isinstance(value, bool):
        ours = _TRAINERS[name]
        fate = fate_of(name, value, CARRIED, f"training.{ours}, unless the trainer's file says it")
        return Launch(trainer={ours: value}, fates=(fate,))
    if name.startswith(("zero_optimization.", "bf16.", "fp16.", "communication_data_type")):
        return Launch(fates=(fate_of(name, value, LEFT, "a bundle's DeepSpeed file has its own"),))
    if name.startswith(("optimizer.", "scheduler.")):
        return Launch(fates=(fate_of(name, value, LEFT, "the trainer has its own"),))
    if name.startswith(
        ("steps_per_print", "wall_clock", "zero_allow", "zero_force", "tensorboard")
    ):
        return Launch(fates=(fate_of(name, value, LEFT, "it changes nothing of the training"),))
    return Launch(fates=(fate_of(name, value, UNKNOWN, "nothing is known of it"),))


def _parallel(name: str, key: str, value: Any) -> Launch:
    detail = "a job spreads rows only; the global batch counts what is left"
    return Launch(parallel={PARALLEL[key]: int(value)}, fates=(fate_of(name, value, LEFT, detail),))


def _knob(name: str, key: str, value: Any) -> Launch:
    knob = KNOBS[key]
    if knob == RESHARD:
        value = reshards(value)
    if name.endswith("cpu_offload"):
        value = "cpu" if value is True else "none"
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value.lower())
        value = int(value) if isinstance(value, str) and value.isdecimal() else value
    if value is None:
        value = "none"
    pins = {knob: value}
    return Launch(pins=pins, fates=(fate_of(name, value, SEARCHED, SHARDING),))


def of_trainer(deepspeed: Any, fsdp: Any, fsdp_config: Any, *, read: Read) -> Launch:
    """Return what fields of a trainer's own file say: a DeepSpeed file by name or whole, or
    FSDP."""
    if deepspeed:
        return of_file(deepspeed, read)
    config = read(fsdp_config) if isinstance(fsdp_config, str) else fsdp_config
    config = config if isinstance(config, Mapping) else {}
    if not fsdp and not config.get("reshard_after_forward"):
        return Launch()
    words = " ".join(map(str, fsdp)) if isinstance(fsdp, list) else str(fsdp)
    reshard = config.get("reshard_after_forward", "shard_grad_op" not in words)
    offload = "offload" in words.split() or config.get("offload_params") in (True, "true")
    found = Launch(pins={DISTRIBUTED_TYPE: FSDP, RESHARD: reshards(reshard)})
    return found.joined(accelerate_field("fsdp_offload_params", True)) if offload else found


def of_file(given: Any, read: Read) -> Launch:
    """Return what a DeepSpeed file says, whole or by its name: a file that is here is read, of any
    other only the name is known, if that says anything."""
    data = given if isinstance(given, Mapping) else read(str(given))
    if data is not None:
        return of_part("DeepSpeed", of_deepspeed(data))
    pins = of_named(given)
    if pins:
        return Launch(pins=pins, guessed=str(given))
    fate = fate_of(f"DeepSpeed: {given}", given, LEFT, f"it is not here: give `{given}`, too")
    return Launch(unread=(str(given),), fates=(fate,))


def of_part(part: str, found: Launch) -> Launch:
    """Return what a file says, its fields under the name of whose it is."""
    fates = (replace(fate, field=f"{part}: {fate.field}") for fate in found.fates)
    return replace(found, fates=tuple(fates))


def reshards(value: Any) -> bool:
    """True if FSDP divides weights again after they were used forward."""
    return str(value).lower() in _RESHARDS


def of_named(name: Any) -> dict[str, Any]:
    """Return what the name of a DeepSpeed file says of it (`ds_z3_offload_config.json`)."""
    text = str(name).rpartition("/")[2]
    stage = _NAMED.search(text)
    if stage is None or not int(stage[1]):
        return {}
    pins: dict[str, Any] = {DISTRIBUTED_TYPE: DEEPSPEED, "zero_stage": int(stage[1])}
    if "offload" in text.lower():
        pins[OPTIMIZER_OFFLOAD] = "cpu"
        pins |= {PARAM_OFFLOAD: "cpu"} if stage[1] == "3" else {}
    return pins


def leaves(data: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """Return its fields, the parts of a nested name joined by dots."""
    found: list[tuple[str, Any]] = []
    for name, value in data.items():
        full = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping) and value:
            found += leaves(value, full)
        else:
            found.append((full, value))
    return found


def fate_of(name: str, value: Any, kind: FateKind, detail: str) -> Fate:
    """Return what became of a field."""
    return Fate(field=name, value=value, kind=kind, detail=detail)


def is_count(value: Any) -> bool:
    """True if a value is a whole number above 0, or such a word."""
    if isinstance(value, bool):
        return False
    text = str(value)
    return text.isdecimal() and len(text) < 8 and int(text) > 0
