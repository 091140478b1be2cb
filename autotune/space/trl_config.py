"""A candidate as the flat configuration that `trl METHOD --config` reads, and its environment.

Pure. This is the one mapping from knobs to fields: the probe's child parses its result with TRL's
own parser, and the bundle holds it as YAML. Every field that matters is explicit; none is `auto`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.facts import Facts
from autotune.facts.data import DataFacts
from autotune.facts.device_kinds import rules_of
from autotune.facts.devices import DeviceFacts
from autotune.facts.stack import canonical_name, field_name
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.space.checkpointing import checkpointing_fields
from autotune.space.knobs import (
    COMPILES,
    EXPERT_KERNELS,
    GLOBAL_BATCH,
    GROUP,
    MODEL_KWARGS,
    Candidate,
)
from autotune.space.learning_rate import scaling
from autotune.space.quantization import quantization
from autotune.space.sharding.deepspeed import deepspeed_of
from autotune.space.sharding.sharding import DEEPSPEED, KNOBS, Sharding, on_cpus, sharding_of
from autotune.space.vllm.colocated import vllm_fields, vllm_share
from autotune.space.vllm.memory import VllmShare
from autotune.space.vllm.server import Split, left_to_the_server, split_of

# What TRL and transformers do unless told otherwise, made explicit; what differs by method is in
# `methods.py`. The job's `training` overrides.
DEFAULTS: dict[str, Any] = {
    "num_train_epochs": 3.0,
    "lr_scheduler_type": "linear",
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "seed": 42,
    "logging_steps": 10,
    "save_strategy": "steps",
    "save_steps": 500,
    "eval_strategy": "no",
    "report_to": "none",
}
LORA_DEFAULTS: dict[str, Any] = {"lora_alpha": 32, "lora_dropout": 0.05}
ALL_LINEAR, EXPERTS = "all-linear", "experts"
"""Words of `lora_target_modules` and `lora_target_parameters`."""
TARGET_PARAMETERS = "lora_target_parameters"
GROUPED = "grouped_mm"
"""How transformers computes experts unless it is told otherwise."""
NOT_IN_THE_CONFIG = {
    *("expandable_segments", GLOBAL_BATCH, EXPERT_KERNELS, TARGET_PARAMETERS),
    *KNOBS,
}
"""Knobs of the environment or the launch, and the batch, which follows from micro-batches."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A candidate as the stack trains it. Made once, and passed on.

    Attributes:
        config: the flat configuration that `trl METHOD --config` reads.
        environment: variables of the training processes.
        sharding: how the training is spread over devices.
    """

    job: Job
    facts: Facts
    candidate: Candidate
    config: dict[str, Any]
    environment: dict[str, str]
    sharding: Sharding

    @property
    def processes(self) -> int:
        """Number of processes that train together."""
        return self.sharding.num_processes

    @property
    def teacher_bytes(self) -> int:
        """Bytes of the weights of a model that teaches; 0: none does."""
        if self.facts.model.teacher is None:
            return 0
        wide = self.config["teacher_model_init_kwargs"]["dtype"] == "float32"
        return self.facts.model.teacher.parameters * (4 if wide else 2)

    @property
    def deepspeed(self) -> dict[str, Any] | None:
        """DeepSpeed's configuration; None where DeepSpeed does not train the candidate."""
        return deepspeed_of(self.sharding, self.config, self.facts)

    @property
    def vllm(self) -> VllmShare | None:
        """vLLM's share of each device; None: it has none."""
        return vllm_share(self.config, self.facts.device.total_bytes)

    @property
    def split(self) -> Split | None:
        """The GPUs that train and those of a vLLM server; None: no server takes some of them."""
        return split_of(self.job, self.facts, self.candidate.values, self.processes)


class SettingsOfJob:
    """The settings of a job's candidates, each worked out once."""

    def __init__(self, job: Job, facts: Facts) -> None:
        self._job, self._facts = job, facts
        self._known: dict[tuple[str, str], Settings] = {}

    def __call__(self, candidate: Candidate, output_dir: str = "out") -> Settings:
        """Return the settings with which the stack trains this candidate."""
        key = (candidate.key, output_dir)
        if key not in self._known:
            self._known[key] = settings(self._job, self._facts, candidate, output_dir)
        return self._known[key]


def settings(job: Job, facts: Facts, candidate: Candidate, output_dir: str = "out") -> Settings:
    """Return the settings with which the stack trains this candidate."""
    fields = frozenset(facts.stack.training_fields)
    sharding = sharding_of(candidate.values, job.devices.total)
    config: dict[str, Any] = {
        **DEFAULTS,
        **METHODS[job.method].defaults,
        "model_name_or_path": facts.model.path,
        "dataset_name": facts.data.source or None,
        "dataset_train_split": job.dataset_train_split,
        "dataset_test_split": job.dataset_test_split,
        "output_dir": output_dir,
        **(on_cpus(sharding) if facts.device.kind == "cpu" else {"use_cpu": False}),
        **({} if METHODS[job.method].online else {"max_length": job.max_length}),
        **_second_model(job, facts),
        **_precision(job, facts),
        **{canonical_name(n): v for n, v in job.training.items() if v is not None},
        **_knob_fields(candidate),
        **_model_kwargs(job, candidate),
    }
    if facts.model.teacher is not None:  # not trained, it is held as its checkpoint has it
        kind = _untrained_dtype(resolve_precision(job, facts.device)[0], facts.model.teacher.dtype)
        given = job.training.get("teacher_model_init_kwargs") or {}
        config["teacher_model_init_kwargs"] = {"dtype": kind[0], **given}
    rate = scaling(job, candidate)
    if rate is not None and rate.applied:
        config["learning_rate"] = rate.proposed
    if launched_config_name(job) is not None:
        config["dataset_config"] = launched_config_name(job)
    # An evaluation must not need more than a micro-step does.
    config.setdefault("per_device_eval_batch_size", eval_batch(job, candidate))
    if job.tuning != "full":
        config = _with_adapters(config, job, candidate, facts)
    config |= quantization(job, config, sharding)
    config |= vllm_fields(job, config, facts)
    if (parts := sharding.row_parts) > 1:
        # Each process gets one of so many equal parts of a row; of context parallelism two.
        needed = 2 * parts if sharding.cp_size > 1 else parts
        given = config.get("pad_to_multiple_of")
        config["pad_to_multiple_of"] = math.lcm(given if isinstance(given, int) else 1, needed)
    if config.get("padding_free"):
        # TRL cannot truncate without padding; the rules let only rows through that need no cut.
        config["max_length"] = None
    config |= checkpointing_fields(config)
    config = {field_name(name, fields): value for name, value in config.items()}
    return Settings(
        job=job,
        facts=facts,
        candidate=candidate,
        config=config,
        environment={
            **environment(candidate, facts, sharding),
            **cudnn_environment(job.method, config, facts),
        },
        sharding=sharding,
    )


def _with_adapters(
    config: dict[str, Any], job: Job, candidate: Candidate, facts: Facts
) -> dict[str, Any]:
    """Return the configuration with the fields of LoRA."""
    adapters = {**LORA_DEFAULTS, **METHODS[job.method].lora_defaults}
    config = {**adapters, **config, "use_peft": True}
    config["lora_target_modules"] = _target_modules(candidate, facts)
    if parameters := _target_parameters(candidate, facts):
        config["lora_target_parameters"] = parameters
    everything = facts.model.active_parameters and config["lora_target_modules"] == [ALL_LINEAR]
    if parameters or everything:
        # peft adapts the experts of most mixtures as parameters, and refuses dropout there.
        config["lora_dropout"] = job.training.get("lora_dropout", 0.0)
    return config


def launched_config_name(job: Job) -> str | None:
    """Return the data's configuration that a launch names; a copy with renamed columns has
    none."""
    return None if job.columns else job.dataset_config


def _second_model(job: Job, facts: Facts) -> dict[str, Any]:
    """Return what rewards or teaches by the names that the scripts of the online trainers have for
    it."""
    method, teacher = METHODS[job.method], facts.model.teacher
    fields: dict[str, Any] = {"reward_funcs": list(job.reward_funcs) or None}
    if method.second_model:
        fields[method.second_model] = teacher.path if teacher else job.second_model
    return {name: value for name, value in fields.items() if value is not None}


def eval_batch(job: Job, candidate: Candidate) -> int:
    """Return rows of an evaluation: a micro-batch, and where there are groups whole ones."""
    group = job.training.get("num_generations_eval") or candidate.values.get(GROUP, 1)
    assert isinstance(group, int)
    return max(candidate.micro_batch // group, 1) * group


def _knob_fields(candidate: Candidate) -> dict[str, Any]:
    left_out = NOT_IN_THE_CONFIG | left_to_the_server(candidate.values)
    return {n: v for n, v in candidate.knobs.items() if n not in left_out}


def _precision(job: Job, facts: Facts) -> dict[str, bool]:
    precision, _ = resolve_precision(job, facts.device)
    return {"bf16": precision == "bf16", "fp16": precision == "fp16"}


def _target_modules(candidate: Candidate, facts: Facts) -> list[str]:
    value: Any = candidate.values.get("lora_target_modules", ALL_LINEAR)
    if value == "attention":
        return list(facts.model.attention_modules)
    return [value] if isinstance(value, str) else list(value)


def _target_parameters(candidate: Candidate, facts: Facts) -> list[str]:
    value: Any = candidate.values.get(TARGET_PARAMETERS)
    if value == EXPERTS:
        return list(facts.model.expert_parameters)
    return [value] if isinstance(value, str) else list(value or ())


def _model_kwargs(job: Job, candidate: Candidate) -> dict[str, Any]:
    """Return the field of what only `from_pretrained` takes; none where it is the default."""
    given: Any = job.training.get(MODEL_KWARGS) or {}
    experts = candidate.values.get(EXPERT_KERNELS, GROUPED)
    return {MODEL_KWARGS: {**given, EXPERT_KERNELS: experts}} if experts != GROUPED else {}


def environment(candidate: Candidate, facts: Facts, sharding: Sharding) -> dict[str, str]:
    """Environment variables of the training processes."""
    variables = device_environment(facts.device, sharding.num_processes)
    if facts.device.kind == "cpu" and sharding.distributed_type == DEEPSPEED:
        # Without `use_cpu` a GPU that is here would be taken.
        variables |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    if candidate.values.get(COMPILES):
        variables["ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"] = "true"
    if candidate.values.get("expandable_segments"):
        variables["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return variables


def device_environment(device: DeviceFacts, count: int | None = None) -> dict[str, str]:
    """Environment variables that show a process the job's devices: the first `count`."""
    if device.kind != "cuda":
        return {}
    devices = (device.index, *device.peers)[:count]
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)),
    }


def threads(facts: Facts, processes: int = 1) -> int:
    """Return the threads of each training process: its part of the cores where it computes on
    them, else a few."""
    cores = max(facts.device.cores // processes, 1)
    return cores if facts.device.kind == "cpu" else min(cores, 4)


def without_none(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are set; `max_length` stays, because None is a choice there."""
    return {n: v for n, v in config.items() if v is not None or n == "max_length"}


def resolve_precision(job: Job, device: DeviceFacts) -> tuple[str, str]:
    """Return (`fp32` | `bf16` | `fp16`, reason)."""
    if job.precision != "auto":
        return job.precision, "the job says so"
    if device.kind == "cpu":
        return "fp32", "on the CPU, bf16 changes the numerics and is rarely faster"
    if device.maker != "NVIDIA":
        return "bf16", "the GPU computes in bf16, as all of other makers that are known here do"
    if device.capability is not None and device.capability >= (8, 0):
        return "bf16", "the GPU computes in bf16 (compute capability 8.0 or newer)"
    return "fp16", "the GPU is older than bf16 (compute capability below 8.0)"


def resolve_dtype(job: Job, facts: Facts) -> tuple[str, str]:
    """Return (the type in which weights are held unless the job says it, reason)."""
    precision, _ = resolve_precision(job, facts.device)
    stored = facts.model.dtype
    if job.tuning == "full":
        return "float32", "all weights are trained: small updates are rounded away in 16 bits"
    if METHODS[job.method].value_model:
        return "float32", "a value model is trained whole"
    if job.tuning == "lora" and job.training.get("lora_modules_to_save"):
        return "float32", "modules are trained whole, and PEFT holds them as the base"
    if job.tuning == "lora" and METHODS[job.method].classifier and precision == "fp16":
        return "float32", "the classifier's head is held as the base, and fp16 cannot be unscaled"
    if facts.model.dequantized_from and precision != "fp32":
        packed = facts.model.dequantized_from.upper()
        return _HALVES[precision], f"as which its weights in {packed} are unpacked"
    return _untrained_dtype(precision, stored)


def _untrained_dtype(precision: str, stored: str | None) -> tuple[str, str]:
    """Return (the type of weights that stay as they are, reason).

    Args:
        stored: their type in the checkpoint.
    """
    if precision == "fp32":
        return "float32", "without mixed precision the type of the weights is that of the products"
    if stored not in _HALVES.values():
        return "float32", "the checkpoint is in float32, or says no type"
    if stored != _HALVES[precision]:
        return _HALVES[precision], f"in which the device computes (its checkpoint is in {stored})"
    return stored, "as its checkpoint has it"


_HALVES = {"bf16": "bfloat16", "fp16": "float16"}
CUDNN_LAST = "TORCH_CUDNN_SDPA_DEPRIORITIZED"
"""PyTorch reads it once, when SDPA is first called."""
USUAL_TORCH = "2.13"
"""What is assumed where the version is not known."""


def cudnn_environment(method: str, config: Mapping[str, Any], facts: Facts) -> dict[str, str]:
    """Return the variable that leaves cuDNN's attention out, where PyTorch would take it for
    batches whose shapes differ; else none.

    cuDNN builds a plan for every shape it has not seen (pytorch/pytorch#155958): 0.44 and 0.55 s
    for forward and backward on a B200 (modelscope/FunASR#3704), 0.12 to 0.14 s for both on an H100,
    where without it no shape takes longer the first time
    (benchmarks/recorded/gpu-attention-h100-2026-11-26). The first launch on an H200 ran at 51% of
    its probe's speed on repeated shapes: 0.3 s more for each micro-batch. Without cuDNN, launches
    on an H100 are as fast as their probes. Known error: only the lengths of rows decide whether
    shapes differ, not how many shapes that makes (`pad_to_multiple_of`, many rows of full length),
    nor how often a long training meets them again: with a mask the other kernels reach a third of
    cuDNN's rate.
    """
    uses_sdpa = config.get("attn_implementation", "sdpa") == "sdpa"
    if not uses_sdpa or not cudnn_is_first(facts) or not _shapes_differ(method, config, facts.data):
        return {}
    return {CUDNN_LAST: "1"}


def cudnn_is_first(facts: Facts) -> bool:
    """True if PyTorch prefers cuDNN's attention on this device."""
    device = facts.device
    if device.kind != "cuda" or device.capability is None:
        return False
    torch = facts.stack.versions.get("torch") or USUAL_TORCH
    return rules_of(device.capability, torch).cudnn_sdpa_first


def _shapes_differ(method: str, config: Mapping[str, Any], data: DataFacts) -> bool:
    """True if rows are of different lengths, so that micro-batches are of different shapes."""
    if METHODS[method].online:  # completions are as long as they come
        return True
    if config.get("packing") and config.get("packing_strategy") == "wrapped":
        return False
    most = config.get("max_length") or data.longest
    return min(data.quantiles.get("p1", 0), most) < min(data.longest, most)


def has_reference(job: Job, config: Mapping[str, Any]) -> bool:
    """True if a training keeps a reference model of its own."""
    if METHODS[job.method].value_model:
        return job.tuning == "full" or bool(config.get("copy_reference"))
    if METHODS[job.method].teacher:  # whose `beta` is no distance to a reference
        return False
    if METHODS[job.method].online:
        return bool(config.get("beta")) and job.tuning == "full"
    precomputed = config.get("precompute_ref_log_probs")
    return bool(METHODS[job.method].reference) and job.tuning == "full" and not precomputed
