"""Requests and replies between a planner and its tracing child. Plain data."""

from dataclasses import dataclass, field
from typing import Any

from autotune.estimate.variant import engine_is_traced
from autotune.process.messages import Message
from autotune.space.sharding.sharding import Sharding
from autotune.space.vllm.memory import VllmShare

POINT = "point"
"""The event of each point that a child has answered for, with its index."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch(Message):
    """The shape of one micro-batch.

    Attributes:
        lengths: tokens of each sequence, before padding.
        labelled: the share of each sequence's tokens that count in the loss.
    """

    lengths: tuple[int, ...]
    labelled: float = 1.0


@dataclass(frozen=True, kw_only=True)
class TracedTrainer(Message):
    """A candidate's trainer, to be traced without a device.

    Attributes:
        method: of training.
        config: the flat TRL configuration, as a probe gets it.
        model_path: a model folder with a config and a tokenizer.
        layers: decoder layers to trace; None: all of them.
        cuda: fields of `CudaRules`; None: the CPU as it is.
    """

    method: str
    config: dict[str, Any]
    model_path: str
    layers: int | None
    cuda: dict[str, Any] | None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class TraceRequest(TracedTrainer):
    """Trace a few optimizer steps.

    Attributes:
        steps: the micro-batch of each optimizer step.
        micro_steps: how often each step does it.
        sharding: fields of `space.sharding.Sharding`; None: one process.
        rank: which of its processes.
        deepspeed: DeepSpeed's JSON, where `sharding` says DeepSpeed.
    """

    steps: list[MicroBatch]
    micro_steps: list[int]
    sharding: dict[str, Any] | None = None
    rank: int = 0
    deepspeed: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class RolloutTraceRequest(TracedTrainer):
    """Trace two optimizer steps of a candidate that generates what it is trained on.

    Attributes:
        prompts: tokens of each prompt of a generation.
        tokens: how many are really generated; completions count as full.
        again: whether generation starts again within an optimizer step, beside gradients.
        micro_steps: of an optimizer step: 1 or 2, the others are like the second.
    """

    prompts: list[int]
    tokens: int
    again: bool
    micro_steps: int


@dataclass(frozen=True, kw_only=True)
class RolloutTraceReply(Message):
    """The result of such a trace: its events, and the work of each phase of the second step.

    `work` has `prefill`, `decode` (the last whole step), `before` (the one before it), `scoring`,
    `judging` (where completions are scored in parts: what is done for each), `update` (one
    micro-step) and `optimizer`. `windows`: of each layer how many tokens its cache keeps at most;
    0: all. `teacher_layers`: how many were traced, as chunks; 0: there is no teacher, or its layers
    are not told apart.
    """

    events: list[Any]
    layers: int
    work: dict[str, list[Any]]
    windows: list[int] = field(default_factory=list)
    teacher_layers: int = 0
    policy: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TraceReply(Message):
    """The result of a trace: its events (`records/events.py`), and the work of each step."""

    events: list[Any]
    layers: int
    chunks: list[int] = field(default_factory=list)
    """Chunks of the loss in a micro-step of each optimizer step; 0 where it is not chunked."""
    micro_work: list[Any] = field(default_factory=list)
    """The work of the last micro-step of each optimizer step."""
    first_work: list[Any] = field(default_factory=list)
    """The work of the very first micro-step, where another one follows in its step."""
    optimizer_work: list[Any] = field(default_factory=list)
    """The work of the last optimizer step."""
    policy: dict[str, int] = field(default_factory=dict)
    """Reads of values that nothing is known of, by operator: how often they were guessed."""


@dataclass(frozen=True, kw_only=True)
class Point(Message):
    """A micro-batch to be estimated with one variant of the program.

    Attributes:
        batching: fields of `training.batch_plan.Batching`.
        accumulates: whether gradients are in memory during its worst micro-batch.
        expandable_segments: how the CUDA allocator is set up.
        optim: the optimizer, where it is another than the variant's.
        vllm_bytes: what vLLM has of the device while it generates there.
        vllm_asleep_bytes: what it has while the training computes; None: the same.
    """

    batching: dict[str, Any]
    accumulates: bool
    expandable_segments: bool = False
    optim: str | None = None
    vllm_bytes: int = 0
    vllm_asleep_bytes: int | None = None

    @property
    def vllm(self) -> VllmShare:
        """vLLM's share of the device; empty where it has no bytes."""
        return VllmShare(awake_bytes=self.vllm_bytes, asleep_bytes=self.vllm_asleep_bytes)


@dataclass(frozen=True, kw_only=True)
class EstimateRequest(Message):
    """Estimate the points of one variant: one traced trainer, many micro-batches.

    Attributes:
        method: of training.
        config: the flat TRL configuration of the variant.
        model: what the cached traces depend on besides: the text of the model's config.
        layers: decoder layers of the model.
        cuda: fields of `CudaRules`; None: the CPU.
        rows: folder of the tokenized rows.
        devices: how many train together.
        hidden: the model's hidden size.
        sharding: fields of `space.sharding.Sharding`: what they divide among themselves; with
            DeepSpeed or FSDP in it the points are traced so, but for methods that generate.
        deepspeed: DeepSpeed's JSON then; batch sizes in it are those of each point.
        row_parts: how many processes share the tokens of each row: one part of it is traced.
        teacher_layers: of the model that teaches.
        all_layers: whether all layers are traced then, however many there are, for bytes alone.
        rank: the process that is traced then.
        limit_bytes: what the allocator may take; None: as much as it likes.
        other_limits: further such limits, for which the points are answered, too: those of other
            devices on which the same kernels run. Only where nothing is generated and no engine is
            traced.
        cache: folder for traces; None: keep none.
    """

    method: str
    config: dict[str, Any]
    model_path: str
    model: str
    versions: dict[str, str]
    layers: int
    cuda: dict[str, Any] | None
    rows: str
    rows_total: int
    rows_sampled: bool
    points: list[Point]
    limit_bytes: int | None
    cache: str | None
    seed: int
    devices: int = 1
    hidden: int = 0
    teacher_layers: int = 0
    sharding: dict[str, Any] | None = None
    deepspeed: dict[str, Any] | None = None
    row_parts: int = 1
    all_layers: bool = False
    rank: int = 0
    other_limits: list[int] = field(default_factory=list)

    @property
    def parsed_sharding(self) -> Sharding:
        """The division of the training among the devices."""
        return Sharding(**self.sharding or {})

    @property
    def engine(self) -> bool:
        """True if DeepSpeed or FSDP itself is to be traced."""
        return engine_is_traced(self.method, self.parsed_sharding.distributed_type)


@dataclass(frozen=True, kw_only=True)
class PointReply(Message):
    """The estimate of a point. Bytes.

    Attributes:
        oom: whether the allocator, held to the limit, could not serve it.
        retries: how often it had to give its cache back first.
        phases: peak of each phase.
        micro_peaks: by part, what is live in micro-steps where most is, and where most is that
            passes; empty: nothing was traced of them.
        sample: (tokens, tokens with padding, how often) of the sample's micro-batches.
        masked: whether the micro-batches of the sample are padded.
        worst_tokens: tokens with padding of the micro-batch that takes most; 0: see the sample.
        host_bytes: what offloading puts into the host's memory for this device.
        copied_bytes: what offloaded checkpointing copies there in a micro-step, and back.
        sigma: relative standard deviation of reserved bytes that were continued from fewer layers
            of an engine, or that depend on the order of rows.
        at_least: whether it is the reply of a smaller micro-batch, which is already too large.
        method: `trace`, or `scaled trace` where sizes or layers follow from others
            (`records/shapes.py`, `records/depths.py`).
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    parts: dict[str, int]
    operator: str
    phase: str
    oom: bool
    missing_bytes: int | None
    retries: int
    phases: dict[str, int]
    sample: list[tuple[int, int, int]]
    masked: bool
    method: str
    micro_peaks: list[dict[str, int]] = field(default_factory=list)
    worst_tokens: int = 0
    host_bytes: int = 0
    copied_bytes: int = 0
    sigma: float = 0.0
    at_least: bool = False
    rollout: dict[str, list[Any]] | None = None
    """Where completions are generated: the work of one prefill, of one mean decoding pass, of one
    scoring, update and optimizer step, each as rows of `Work` and how often; the sample is then
    one cycle (`training/rollout_plan.py`)."""
    shorter: float = 1.0
    """There: tokens with padding of such a cycle, over those with the longest prompts, traced."""


@dataclass(frozen=True, kw_only=True)
class ShapeWork(Message):
    """The work of one micro-step of the whole model at one shape: rows of `Work`, and how often.

    `rows` are those of the padded batch: sequences.
    """

    rows: int
    length: int
    masked: bool
    flat: bool
    work: list[Any]


@dataclass(frozen=True, kw_only=True)
class EstimateReply(Message):
    """The estimates of a variant's points, and the work that its speed follows from."""

    process_bytes: int
    """What a process with the training stack holds before any model."""
    points: list[PointReply] = field(default_factory=list)
    shapes: list[ShapeWork] = field(default_factory=list)
    """Empty where completions are generated: then each point has its own work."""
    optimizer_work: dict[str, list[Any]] = field(default_factory=dict)
    """Work of the step by optimizer, the variant's own under the empty name."""
    problem: str | None = None
    """Why the variant cannot be traced; then the rest is empty."""
    copied_shapes: list[ShapeWork] = field(default_factory=list)
    """Where an engine was traced, at a few shapes only: those of data parallelism, for the curve
    through them."""
    engine_problem: str | None = None
    """Why the variant's engine cannot be traced, where it is by formula for that."""
    by_formula: bool = False
    """Whether the variant's engine was not traced: the points follow from data parallelism."""
    at_limits: list[list[PointReply]] = field(default_factory=list)
    """The points at each of the other limits that were asked for."""
