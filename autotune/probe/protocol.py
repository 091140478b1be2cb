"""The messages between parent and child of a probe or a survey, and the stored measurement."""

import reprlib
from dataclasses import dataclass, field
from typing import Any

from autotune.plain_data import is_storable
from autotune.process.messages import Message
from autotune.space.vllm.memory import VllmShare
from autotune.training.spec import Part, TrainerSpec

OUTCOMES = (
    "ok",
    "oom",
    "host_oom",
    "timeout",
    "crash",
    "unstable",
    "unsupported",
    "busy",
    "stopped",
    "interrupted",
)
"""The outcomes of a probe. `oom`: the device's memory ran out, `host_oom`: the host's. `stopped`:
it could not win any more. `interrupted`: the run was ended."""


@dataclass(frozen=True, kw_only=True)
class ProbeRequest(TrainerSpec):
    """Train a candidate for a few steps and measure.

    Attributes:
        rows: folder of the tokenized rows.
        to_beat_tokens_per_s: the fastest so far: a candidate that comes near is measured longer.
        vllm_bytes: what vLLM will have of the device while it generates; it is not run.
        vllm_asleep_bytes: what it will have while the training computes; None: the same.
        peers: NVML's numbers of the GPUs of the other ranks.
        host_limit_bytes: what all processes may take of the host's memory; None: any amount.
        part: which of the ranks are on this machine; all, unless there are several.
    """

    environment: dict[str, str]
    device_index: int
    memory_limit_bytes: int | None
    threads: int
    rows: str
    rows_total: int
    rows_sampled: bool
    global_batch: int
    seed: int
    to_beat_tokens_per_s: float | None = None
    vllm_bytes: int = 0
    vllm_asleep_bytes: int | None = None
    peers: list[int] = field(default_factory=list)
    host_limit_bytes: int | None = None
    part: Part = Part()

    @property
    def local_ranks(self) -> range:
        """The ranks that are on this machine."""
        each = self.parsed_sharding.num_processes // self.part.nodes
        return range(self.part.node * each, (self.part.node + 1) * each)

    @property
    def process_limit_bytes(self) -> int | None:
        """The limit of the training process itself, beside vLLM."""
        return None if (limit := self.memory_limit_bytes) is None else self.vllm.left_of(limit)

    @property
    def vllm(self) -> VllmShare:
        """The memory that vLLM will have; nothing where it has no bytes."""
        return VllmShare(awake_bytes=self.vllm_bytes, asleep_bytes=self.vllm_asleep_bytes)


@dataclass(frozen=True, kw_only=True)
class SurveyRequest(Message):
    """Look at the model and the data, and tokenize the rows."""

    method: str
    model: str
    weights: str
    dataset: str | None
    dataset_config: str | None
    train_split: str
    test_split: str
    lengths: dict[str, int | None] | None
    training: dict[str, Any]
    seed: int
    run_folder: str
    reward_funcs: list[str] = field(default_factory=list)
    second_model: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that show it the devices of the job."""
    columns: dict[str, str] = field(default_factory=dict)
    """TRL's names of columns -> the data's."""
    planned: bool = False
    """True if nothing is going to be trained: a built-in shape may take the place of a model that
    the hub does not give, and nothing will be launched on the data."""


@dataclass(frozen=True, kw_only=True)
class Failure(Message):
    """The failure of a child that could not go on.

    Attributes:
        knobs: that it is due to, whatever the others are; empty where that is not known.
    """

    type: str
    message: str
    traceback: str
    stage: str
    knobs: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Measurement(Message):
    """The stored record of one probe, good or bad. A missing figure is None, and `reason` tells
    why.

    Times are seconds, sizes bytes. `micro_step_time_s` is the mean micro-step over the data's
    lengths (`micro_step_fixed_s + micro_step_per_token_s * tokens with padding`),
    `optimizer_step_time_s` everything between the last micro-step and the end of the
    step, `data_wait_s` the wait for a micro-batch; so that for any accumulation count `n`
    `step_time_s = n * (micro_step_time_s + data_wait_s) + optimizer_step_time_s`.
    Where the policy generates what it is trained on, `step_time_s` is `generation_s`, `scoring_s`
    (references, rewards), `update_s` (forward and backward) and `optimizer_step_time_s` of one
    optimizer step; the peaks beside them are of the process on a CPU, of the allocator on a GPU;
    `resident_bytes` is what it holds when a generation begins. Where vLLM will generate on the
    device, `vllm_bytes` of `peak_memory_bytes` are what it will have of it, which is not measured;
    the probe generated with transformers, whose own peak does not count, in `generation_parts`
    where all at once did not fit.
    `relative_uncertainty` is the half-width of a 95% interval around `tokens_per_s`, relative.
    `processor_wait_share` is the part of the timed steps in which its threads waited for a core:
    where it is high, others were using the machine, and the times are too long.
    """

    outcome: str
    reason: str
    tokens_per_s: float | None = None
    step_time_s: float | None = None
    micro_step_time_s: float | None = None
    micro_step_fixed_s: float | None = None
    micro_step_per_token_s: float | None = None
    optimizer_step_time_s: float | None = None
    data_wait_s: float | None = None
    generation_s: float | None = None
    scoring_s: float | None = None
    update_s: float | None = None
    generation_peak_bytes: int | None = None
    scoring_peak_bytes: int | None = None
    update_peak_bytes: int | None = None
    resident_bytes: int | None = None
    vllm_bytes: int | None = None
    generation_parts: int | None = None
    completions_per_s: float | None = None
    tokens_per_step: float | None = None
    tokens_per_epoch: float | None = None
    before_training_s_per_token: float | None = None
    """Seconds of work before the training, for each real token of the data (the reference of DPO,
    where it is computed beforehand); `tokens_per_s` has it spread over the whole training."""
    relative_uncertainty: float | None = None
    padding_share: float | None = None
    processor_wait_share: float | None = None
    peak_memory_bytes: int | None = None
    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    missing_bytes: int | None = None
    host_peak_bytes: int | None = None
    """The peak of all processes together on the host (`process/host_memory.py`); None: not
    measured, as on a CPU with one process, where the host is the device."""
    host_loading_peak_bytes: int | None = None
    """The same until the first step began."""
    host_limit_bytes: int | None = None
    allocator_retries: int | None = None
    micro_steps_measured: int = 0
    last_loss: float | None = None
    gradient_norm: float | None = None
    inferred: bool = False
    """True where the outcome was concluded from outside, not reported by the child."""
    seconds: float = 0.0
    wall_s: float | None = None
    """Its part of the run's own time, where several ran at once; None: all of `seconds`."""
    node: str | None = None
    """The machine that it ran on, where the run had several to choose from."""
    stages_s: dict[str, float] = field(default_factory=dict)
    failure: dict[str, Any] | None = None
    processes: list[dict[str, Any]] = field(default_factory=list)
    engine: str | None = None
    """The engine that really spread the training over several ranks; None: one process."""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """The figures of each rank; the other fields are those of the worst."""
    failed_rank: int | None = None
    """The rank that failed first."""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"`{self.outcome}` is not one of the outcomes {', '.join(OUTCOMES)}")
        for name, value in vars(self).items():
            if not is_storable(value):
                raise ValueError(f"`{name}` cannot be {reprlib.repr(value)}")
