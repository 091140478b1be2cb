"""Model FLOPs utilisation (MFU): what share of its devices' peak a training computes, and what
published and recorded runs reached (utilisation.csv).

The usual definition, of PaLM (arXiv:2204.02311, appendix B): a token's forward and backward pass
over the peak in 16 bits, without what checkpointing computes again.
"""

import csv
import functools
from dataclasses import dataclass
from importlib import resources

from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind, known_kind
from autotune.facts.model import ModelFacts
from autotune.job.job import Job
from autotune.job.methods import METHODS

PEAK_DTYPES = ("bfloat16", "float16")
"""Formats of the peak, the first that a device has."""
LEAST_TOKENS = 2048
"""Tokens of a micro-step from which on a run is in the table: fewer do not fill a device."""
SMALL_PARAMETERS = 10**9
"""Parameters below which a model counts as small: its kernels are too short to fill a large GPU."""
_TABLE = "utilisation.csv"


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The dense peak of a kind of device, in floating-point operations per second."""

    kind: DeviceKind
    dtype: str
    flops_per_s: float


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The MFU of runs on one GPU of a kind.

    Attributes:
        size, tuning: as `size_of` and `tuned` name them.
        low, middle, high: the least, the median and the most.
    """

    kind: str
    capability: tuple[int, int]
    size: str
    tuning: str
    runs: int
    low: float
    middle: float
    high: float


def flops_per_token(
    parameters: int, layers: int, hidden_size: int, length: float, *, frozen: bool
) -> float:
    """Return the operations that a token needs: `6 N + 12 L H T` of PaLM, N the parameters that
    take part, L layers of width H, T the length of its row (attention to all of it).

    Of frozen weights no gradients are computed: `4 N`; the adapters beside them are not counted.
    """
    return (4 if frozen else 6) * parameters + 12 * layers * hidden_size * length


def counted_parameters(model: ModelFacts) -> int:
    """Return the parameters that a token passes."""
    return model.active_parameters or model.parameters


def job_flops_per_token(job: Job, facts: Facts) -> float | None:
    """Return the operations of a token of a job's rows; None: not of a method that generates or
    holds a reference beside the model, nor where the model's shape is not known."""
    method, model = METHODS[job.method], facts.model
    if method.online or method.reference or not (model.layers and model.hidden_size):
        return None
    length = facts.data.mean_length / method.sequences
    length = min(length, job.max_length or length)
    return flops_per_token(
        counted_parameters(model),
        model.layers,
        model.hidden_size,
        length,
        frozen=job.tuning != "full",
    )


def peak_of(facts: Facts) -> Peak | None:
    """Return the peak of a device; None: it is not a GPU, or its peak is not known."""
    device = facts.device
    kind = known_kind(device.name, device.total_bytes) if device.kind == "cuda" else None
    if kind is None:
        return None
    rates = ((dtype, kind.matrix_flops_per_s.get(dtype)) for dtype in PEAK_DTYPES)
    return next(
        (Peak(kind=kind, dtype=dtype, flops_per_s=rate) for dtype, rate in rates if rate), None
    )


def mfu_of(job: Job, facts: Facts, tokens_per_s: float | None) -> float | None:
    """Return the MFU of a speed of all devices of a job together; None: not known."""
    flops, peak = job_flops_per_token(job, facts), peak_of(facts)
    if tokens_per_s is None or flops is None or peak is None:
        return None
    return tokens_per_s * flops / (peak.flops_per_s * job.devices.total)


@functools.cache
def reached() -> tuple[Reached, ...]:
    """Return the table."""
    text = resources.files("autotune").joinpath("facts", _TABLE).read_text(encoding="utf-8")
    return tuple(map(_row, csv.DictReader(text.splitlines())))


def reached_on(kind: DeviceKind, job: Job, model: ModelFacts) -> Reached | None:
    """Return what runs of a job's tuning reached on the nearest kind: of the same capability, or of
    the same major one; those of its model's size where there are any. None: nothing is recorded."""
    size, capability = size_of(counted_parameters(model)), kind.capability
    if capability is None:
        return None
    near = [
        row
        for row in reached()
        if row.tuning == tuned(job.tuning) and row.capability[0] == capability[0]
    ]

    def distance(row: Reached) -> tuple[bool, bool, bool, int]:
        return row.size != size, row.kind != kind.name, row.capability != capability, -row.runs

    return min(near, key=distance, default=None)


def size_of(parameters: int) -> str:
    """Return the size of a model, of the two that the table has."""
    return "below 1B" if parameters < SMALL_PARAMETERS else "1B and more"


def tuned(tuning: str) -> str:
    """Return a job's tuning, of the two that the table has."""
    return "full" if tuning == "full" else "adapters"


def _row(row: dict[str, str]) -> Reached:
    major, minor = map(int, row["capability"].split("."))
    return Reached(
        kind=row["kind"],
        capability=(major, minor),
        size=row["size"],
        tuning=row["tuning"],
        runs=int(row["runs"]),
        low=float(row["low"]),
        middle=float(row["middle"]),
        high=float(row["high"]),
    )
