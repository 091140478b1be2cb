"""How a training is spread over processes, one for each device. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from autotune.space.knobs import NUM_PROCESSES

DISTRIBUTED_TYPE = "distributed_type"
NONE, DEEPSPEED, FSDP = "NO", "DEEPSPEED", "FSDP"
DATA_PARALLEL = ("MULTI_CPU", "MULTI_GPU")
"""torch's DistributedDataParallel: every process has a whole copy."""
OPTIMIZER_OFFLOAD, PARAM_OFFLOAD = "offload_optimizer_device", "offload_param_device"
RESHARD = "fsdp_reshard_after_forward"
BUCKET_SIZE, PREFETCHED = "reduce_bucket_size", "stage3_prefetch_bucket_size"
PERSISTENCE = "stage3_param_persistence_threshold"
ZERO_FIELDS = ("overlap_comm", BUCKET_SIZE, PREFETCHED, PERSISTENCE, "pin_memory")
"""Fields of DeepSpeed's own file."""
SHARDING_KNOBS = (DISTRIBUTED_TYPE, "zero_stage", OPTIMIZER_OFFLOAD, PARAM_OFFLOAD, RESHARD)
"""Knobs that say what is divided, and where it is kept."""
CP_SIZE, SP_SIZE, SP_ATTENTION = "cp_size", "sp_size", "sp_attn_implementation"
"""Processes that share the tokens of each row: by context parallelism (FSDP2), or by Ulysses'
sequence parallelism (DeepSpeed)."""
KNOBS = (NUM_PROCESSES, *SHARDING_KNOBS, *ZERO_FIELDS, CP_SIZE, SP_SIZE)
"""Those of `search_spaces/sharding.yaml`: fields of accelerate or DeepSpeed, not of the trainer."""

Offload = Literal["none", "cpu"]


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Fields of accelerate and DeepSpeed, by accelerate's own names.

    Attributes:
        distributed_type: `NO`, `MULTI_CPU` or `MULTI_GPU` (DDP), `DEEPSPEED`, `FSDP` (version 2).
        num_processes: one for each device.
        zero_stage: of DeepSpeed: 1, 2 or 3; else 0.
        fsdp_reshard_after_forward: of FSDP: whether gathered weights are let go of after the
            forward pass.
        overlap_comm: of DeepSpeed, as the four below: whether gradients are exchanged while others
            are computed.
        reduce_bucket_size: elements of gradients that are exchanged at a time, and of updated
            weights; here and below None: what follows from the model
            (`deepspeed.py`).
        stage3_prefetch_bucket_size: elements of weights that are gathered ahead.
        stage3_param_persistence_threshold: weights of fewer elements are whole in each process.
        pin_memory: whether what is offloaded is in page-locked memory; None: where there are GPUs.
        cp_size, sp_size: of accelerate's `parallelism_config`: how many processes share a row.
        sp_attn_implementation: its kernel of attention, which has to be the model's.
    """

    distributed_type: str = NONE
    num_processes: int = 1
    zero_stage: int = 0
    offload_optimizer_device: Offload = "none"
    offload_param_device: Offload = "none"
    fsdp_reshard_after_forward: bool = True
    overlap_comm: bool = True
    reduce_bucket_size: int | None = None
    stage3_prefetch_bucket_size: int | None = None
    stage3_param_persistence_threshold: int | None = None
    pin_memory: bool | None = None
    cp_size: int = 1
    sp_size: int = 1
    sp_attn_implementation: str = "sdpa"

    @property
    def row_parts(self) -> int:
        """Number of processes that share the tokens of each row."""
        return self.cp_size * self.sp_size

    @property
    def replicas(self) -> int:
        """Number of groups of processes with rows of their own (data parallelism)."""
        return self.num_processes // self.row_parts

    @property
    def in_group(self) -> bool:
        """True if processes join a group: several, or the one for which DeepSpeed offloads."""
        return self.num_processes > 1 or self.distributed_type == DEEPSPEED

    @property
    def offloads(self) -> bool:
        """True if anything is kept off the device."""
        return {self.offload_optimizer_device, self.offload_param_device} != {"none"}

    def plain(self) -> dict[str, Any]:
        """Return the sharding as JSON data."""
        return asdict(self)


def sharding_of(values: Mapping[str, Any], devices: int) -> Sharding:
    """Return the sharding that a candidate's knobs ask for; one process shares nothing, but
    DeepSpeed may offload for it.

    Args:
        devices: of the job: one process on each, where no knob says otherwise.
    """
    names = [n for n in KNOBS if n not in ZERO_FIELDS or values.get(DISTRIBUTED_TYPE) == DEEPSPEED]
    fields = {name: values[name] for name in names if values.get(name) is not None}
    if fields.get(SP_SIZE, 1) > 1:
        fields[SP_ATTENTION] = values.get("attn_implementation") or "sdpa"
    sharding = Sharding(**{NUM_PROCESSES: devices, **fields})
    return sharding if sharding.in_group else Sharding()


def heaviest_ranks(sharding: Sharding) -> tuple[int, ...]:
    """Return processes of which one needs the most memory, or at least 99.7% of the most.

    What is left over when weights are divided goes to the first. DeepSpeed's stages 1 and 2 give
    the last one the weights whose gradients come first, so that it holds them longest (up to 9%
    more, `benchmarks/sharding_exactness`), and the first one the embedding, whose gradient's norm
    is taken in float64 (3% more in a model of 1.2B without a head, `benchmarks/virtual_gpu`).
    """
    if sharding.zero_stage in (1, 2) and sharding.num_processes > 1:
        return 0, sharding.num_processes - 1
    return (0,)


def engine_name(sharding: Sharding) -> str:
    """Return what spreads a training: `DDP`, `FSDP2`, `ZeRO-2, optimizer on cpu`, `FSDP2, cp_size
    2`, or `a plain copy`."""
    sizes = {CP_SIZE: sharding.cp_size, SP_SIZE: sharding.sp_size}
    shared = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    return ", ".join([_engine_name(sharding), *shared])


def _engine_name(sharding: Sharding) -> str:
    if sharding.distributed_type == DEEPSPEED:
        optimizer, weights = sharding.offload_optimizer_device, sharding.offload_param_device
        return zero_name(sharding.zero_stage, optimizer, weights)
    if sharding.distributed_type == FSDP:
        return fsdp_name(sharding.fsdp_reshard_after_forward)
    return "DDP" if sharding.in_group else "a plain copy"


def zero_name(stage: int, optimizer: str, weights: str) -> str:
    """Return the name of a DeepSpeed sharding, by its stage and where optimizer states and weights
    are."""
    offloads = [("optimizer", optimizer), ("weights", weights)]
    places = [f"{what} on {device}" for what, device in offloads if device != "none"]
    return ", ".join([f"ZeRO-{stage}", *places])


def fsdp_name(reshards: bool) -> str:
    """Return the name of an FSDP sharding."""
    return "FSDP2" if reshards else "FSDP2, not resharded"


def on_cpus(sharding: Sharding) -> dict[str, Any]:
    """Return fields of the trainer with which several processes on CPUs work together.

    `use_cpu` is right for DDP alone: with it accelerate silently makes DDP of DeepSpeed and of
    FSDP too. Without it accelerate finds no backend by itself and has to be told gloo.
    """
    if sharding.distributed_type == NONE:
        return {"use_cpu": True}
    return {"use_cpu": sharding.distributed_type in DATA_PARALLEL, "ddp_backend": "gloo"}


def fsdp_fields(sharding: Sharding) -> dict[str, Any]:
    """Return the fields of accelerate's `fsdp_config`: version 2, a unit for each layer; the
    trainer's own checkpointing stays in charge."""
    return {
        "fsdp_activation_checkpointing": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": sharding.offload_param_device == "cpu",
        "fsdp_reshard_after_forward": sharding.fsdp_reshard_after_forward,
        "fsdp_state_dict_type": "FULL_STATE_DICT",
        "fsdp_version": 2,
    }


def fsdp_environment(sharding: Sharding, **environment: Any) -> dict[str, str]:
    """Return the variables that `accelerate launch` makes of these fields.

    Args:
        environment: fields in place of these.
    """
    fields = {**fsdp_fields(sharding), **environment}
    texts = {name.upper(): _text(value) for name, value in fields.items()}
    return {"ACCELERATE_USE_FSDP": "true", **texts}


def parallelism_fields(sharding: Sharding) -> dict[str, int | str]:
    """Return the fields of accelerate's `parallelism_config`; none where each process has whole
    rows."""
    if sharding.row_parts == 1:
        return {}
    fields: dict[str, int | str] = {"dp_shard_size": sharding.replicas, CP_SIZE: sharding.cp_size}
    if sharding.sp_size > 1:
        fields |= {SP_SIZE: sharding.sp_size, SP_ATTENTION: sharding.sp_attn_implementation}
    return {f"parallelism_config_{name}": value for name, value in fields.items()}


def parallelism_environment(sharding: Sharding) -> dict[str, str]:
    """Return the variables that `accelerate launch` makes of these fields."""
    fields = parallelism_fields(sharding)
    texts = {name.upper(): _text(value) for name, value in fields.items()}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **texts} if fields else {}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
