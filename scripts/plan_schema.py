"""What `autotune plan --json` prints, as types: `docs/plan.schema.json` is made from them, and of
several devices `docs/machines.schema.json`."""

from dataclasses import fields
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from autotune.report.machines import MachineRow

Knobs = dict[str, bool | int | float | str | list[str] | None]
"""Values of knobs by name, those of the batch among them."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class DeviceJson(_Strict):
    """The device that is planned for."""

    kind: str
    """`cuda` or `cpu`."""
    maker: str | None
    name: str
    count: int
    """How many train together, in all."""
    nodes: int
    """On how many machines."""
    total_bytes: int
    limit_bytes: int
    """What a process may take of it."""
    host_limit_bytes: int | None
    """What all processes may take of the host; null: not known."""
    capability: tuple[int, int] | None


class ModelJson(_Strict):
    """The model to train."""

    name: str
    parameters: int


class TimePartsJson(_Strict):
    """Seconds of an optimizer step by what they are spent on."""

    matmul_s: float
    attention_s: float
    memory_s: float
    """What memory's bandwidth bounds."""
    overhead_s: float
    """What it takes to dispatch."""
    overlapped: bool
    """Whether dispatching goes on beside the rest."""
    exchange_s: float
    """With other devices and the host."""
    transfer_s: float
    """Of activations or moments that are moved to the host and back."""


class EstimateJson(_Strict):
    """The memory and time that a candidate is expected to take. A process counts, with all that it
    holds."""

    peak_memory_bytes: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    parts: dict[str, int]
    """Bytes at the peak by part; they add up to `peak_memory_bytes`."""
    peak_operator: str
    peak_phase: str
    allocator_retries: int
    sigma_bytes: int
    """Standard deviation of `peak_memory_bytes`."""
    continued_sigma: float
    p_oom: float
    """Probability that it runs out of the device's memory."""
    at_most: bool
    """Whether the peak is an upper bound."""
    at_least: bool
    """Whether it is that of a smaller micro-batch, which does not fit: this one was not traced."""
    missing_bytes: int | None
    """How far beyond the limit; null: it fits."""
    step_time_s: float | None
    tokens_per_s: float | None
    """Of all devices together; null: the device's rates are not known."""
    time_parts: TimePartsJson | None
    left_out: list[str]
    """Costs that are not in the speed."""
    method: str
    """`trace`, `scaled trace`, `adjusted trace`, `closed form` or `lower bound`."""
    notes: list[str]
    offloaded_bytes: int
    host_bytes: int | None
    peak_while_loading_bytes: int | None
    """What a process takes on the device while its models are loaded; null: not known."""
    host_peak_while_loading_bytes: int | None
    """What all processes take of the host then; null: the device is the host."""
    host_missing_bytes: int | None
    p_host_oom: float | None
    server: dict[str, Any] | None
    """What a vLLM server needs on devices of its own."""


class ChoiceJson(_Strict):
    """A configuration beside the answer."""

    knobs: Knobs
    tokens_per_s: float | None
    peak_memory_bytes: int
    p_oom: float


class OtherDtypeJson(_Strict):
    """A configuration with weights in another type: float32 beside a base in 16 bits, or bfloat16
    where all weights are trained."""

    dtype: str
    estimate: EstimateJson


class AnswerJson(_Strict):
    """The configuration to use."""

    text: str
    """The answer as a sentence."""
    knobs: Knobs
    tokens_per_s: float | None
    mfu: float | None
    """Model FLOPs utilisation: the share of the dense peak in 16 bits, of all devices; null: not
    known."""
    speed_error: float | None
    """How far the speed may be off, as a share; null: nothing is known of that."""
    left_out: list[str]
    peak_memory_bytes: int
    limit_bytes: int
    p_oom: float
    safe: bool
    """Whether it runs out of memory with at most 5%."""
    epoch_s: float | None
    job_s: float | None
    """Of the whole job, without evaluation and saving."""
    next_best: ChoiceJson | None
    limited_by: ChoiceJson | None
    """What would be faster, and is not safe."""
    other_dtype: OtherDtypeJson | None
    """The same with weights in another type, where nobody chose it."""
    assumed: list[str]
    packages: list[str]
    """What has to be installed for it."""


class CandidateJson(_Strict):
    """A candidate of the space."""

    knobs: Knobs
    estimate: EstimateJson
    fits: bool


class ChoiceRowJson(_Strict):
    """A choice that a person tells apart: the best of the candidates that are folded into it."""

    batch: str
    """Micro-batch x accumulation."""
    processes: int
    sharding: str
    """How the training is spread over them."""
    words: list[str]
    """What else differs from the stack's defaults."""
    knobs: Knobs
    tokens_per_s: float | None
    mfu: float | None
    peak_memory_bytes: int
    at_least: bool
    parts: dict[str, int]
    p_oom: float
    fits: bool
    safe: bool
    folded: int
    """How many candidates there are of it."""


class ChangeJson(_Strict):
    """A change of the job."""

    text: str
    kind: str


class WayJson(_Strict):
    """A list of changes after which the job fits."""

    changes: list[ChangeJson]
    fields: dict[str, Any]
    """Of the job's file, as they are after the changes; null: left out."""
    knobs: Knobs
    estimate: EstimateJson
    packages: list[str]


class LeanestJson(_Strict):
    """The candidate that needs least memory."""

    knobs: Knobs
    estimate: EstimateJson


class AdviceJson(_Strict):
    """Changes that make the job fit; `autotune advise --json` prints the same."""

    schema_: int = Field(alias="schema")
    device: str
    limit_bytes: int
    fits: bool
    safe: bool
    """Whether the job hardly ever runs out of memory as it is."""
    leanest: LeanestJson
    tried: int
    ruled_out: int
    ways: list[WayJson]


class NotEstimatedJson(_Strict):
    """Candidates that no trace can be made of here."""

    reason: str
    count: int


class OtherTuningJson(_Strict):
    """The plan by the other tuning, where flags leave the tuning open."""

    tuning: str
    text: str
    answer: AnswerJson | None


class TableJson(_Strict):
    """The table that the command prints, of choices or of machines."""

    heads: list[str]
    rows: list[list[str]]
    """The best first; none of a single candidate, or where nothing fits."""
    shared: str
    """What all rows have, as a line; empty: nothing."""
    notes: list[str]
    """What signs in the rows mean."""


class PlanJson(_Strict):
    """The output of `autotune plan --json`. Sizes are bytes, times seconds."""

    schema_: int = Field(alias="schema")
    """Of this format; another number, another format."""
    device: DeviceJson
    model: ModelJson
    answer: AnswerJson | None
    """Null: nothing fits."""
    advice: AdviceJson | None
    """Where nothing is safe: what would make it so."""
    lines: list[str]
    """What is said of the answer, or of what would make the job fit."""
    table: TableJson
    choices: list[ChoiceRowJson]
    """The best first."""
    candidates: list[CandidateJson]
    """Safe ones first, the fastest of them first."""
    counts: dict[str, int]
    packages: list[str]
    not_estimated: list[NotEstimatedJson]
    not_installed: str | None
    notes: list[str]
    cached: bool
    stopped: bool
    """Whether the user stopped it: it holds what was known by then."""
    unfinished: int
    """Candidates without an estimate then."""
    seconds: float
    other_tuning: OtherTuningJson | None
    """Where flags leave it open: adapters in place of all weights, or the other way round."""
    bundle: str | None
    """Where `--emit` wrote the files."""


_COLUMNS: dict[str, Any] = {one.name: (one.type, ...) for one in fields(MachineRow)}
MachineJson: Any = create_model(
    "MachineJson",
    __base__=_Strict,
    __doc__="The best configuration on a machine; `best`: no other is both faster and cheaper.",
    **{**_COLUMNS, "money": (float | None, ...), "best": (bool, ...)},
)


class ComparisonJson(_Strict):
    """A job on several machines, by one tuning."""

    schema_: int = Field(alias="schema")
    lines: list[str]
    """What to rent or use, and what else there is."""
    machines: list[MachineJson]
    """In the order in which they were named."""
    table: TableJson


class MachinesJson(ComparisonJson):
    """The output of `autotune plan --device h100,l40s --json`. Sizes are bytes, times seconds."""

    assumed: list[str]
    other_tuning: ComparisonJson | None
    """Where flags leave it open."""
