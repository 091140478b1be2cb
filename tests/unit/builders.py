"""Values for unit tests: a job, facts, candidates and records that no machine had to make."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.estimate.residual import Residual
from autotune.facts import Facts
from autotune.facts.data import DataFacts
from autotune.facts.devices import DeviceFacts
from autotune.facts.model import ModelFacts
from autotune.facts.stack import OPTIONAL, StackFacts, training_fields
from autotune.job.job import Job
from autotune.probe.protocol import Measurement, ProbeRequest
from autotune.search.record import Record
from autotune.search.sampler.params import guided_sampler
from autotune.search.sampler.sampler import EstimateGuidedSampler
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import SpaceDefinition, load_definition
from autotune.space.knobs import Candidate

GIB = 2**30


def make_job(**changes: Any) -> Job:
    """A job on data that is known by its lengths."""
    fields = {"model": "some/model", "dataset": {"lengths": {"max": 1024}}}
    return Job.model_validate({**fields, **changes})


def make_facts(
    kind: str = "cpu",
    *,
    longest: int = 1000,
    rows: int = 5000,
    sampled: bool = False,
    installed: bool = False,
    capability: tuple[int, int] = (9, 0),
    fields: frozenset[str] | None = None,
) -> Facts:
    """Facts of a small model on one device; `installed`: the optional kernels are there."""
    return Facts(
        model=ModelFacts(
            name="some/model",
            path="/models/some",
            weights="random",
            architecture="Qwen2ForCausalLM",
            model_type="qwen2",
            parameters=1000,
            hidden_size=8,
            layers=2,
            vocab_size=100,
            max_positions=2048,
            attention_modules=("k_proj", "q_proj"),
        ),
        data=DataFacts(
            source="/data/some",
            form="text",
            rows=rows,
            rows_measured=rows // 2 if sampled else rows,
            test_rows=0,
            mean_length=300.0,
            quantiles={"p1": 20, "p50": 250},
            longest=longest,
        ),
        device=DeviceFacts(
            kind=kind,
            index=1,
            name="some device",
            total_bytes=80 * GIB,
            free_bytes=70 * GIB,
            cores=8,
            capability=capability if kind == "cuda" else None,
        ),
        stack=StackFacts(
            python="3.11.0",
            versions={},
            absent=() if installed else tuple(OPTIONAL),
            training_fields=tuple(sorted(fields if fields is not None else training_fields())),
        ),
    )


def shipped() -> SpaceDefinition:
    """The search space of SFT."""
    return load_definition("sft")


def make_space(job: Job, facts: Facts | None = None) -> SearchSpace:
    """The shipped space, bound."""
    return bind(shipped(), job, facts or make_facts())


def make_sampler(
    space: SearchSpace,
    estimates: Mapping[str, Estimate] | None = None,
    allowed_bytes: int | None = None,
) -> EstimateGuidedSampler:
    """The sampler of a run; without estimates it takes the default first, then by knobs."""
    return guided_sampler(space, estimates or {}, Residual(), allowed_bytes=allowed_bytes)


def make_candidate(micro_batch: int = 4, accumulation: int = 4, **values: Any) -> Candidate:
    """A candidate with a value for the usual knobs."""
    knobs: dict[str, Any] = {
        "per_device_train_batch_size": micro_batch,
        "gradient_checkpointing": False,
        "loss_type": "chunked_nll",
        "padding_free": False,
        "max_length": 1024,
        "dtype": "float32",
    }
    return Candidate(values={**knobs, **values}, gradient_accumulation_steps=accumulation)


def ok(tokens_per_s: float, peak: int = GIB, noise: float | None = 0.0) -> Measurement:
    """A good measurement."""
    return Measurement(
        outcome="ok",
        reason="measured",
        tokens_per_s=tokens_per_s,
        peak_memory_bytes=peak,
        relative_uncertainty=noise,
    )


def make_probe_request(**fields: Any) -> ProbeRequest:
    """A request to probe SFT in one process on the CPU, with no limit."""
    usual: dict[str, Any] = {
        **{"method": "sft", "config": {}, "environment": {}, "model_path": ""},
        **{"device_kind": "cpu", "device_index": 0, "memory_limit_bytes": None, "threads": 1},
        **{"rows": "", "rows_total": 1, "rows_sampled": False, "global_batch": 2, "seed": 0},
    }
    return ProbeRequest(**{**usual, **fields})


def bad(outcome: str, **fields: Any) -> Measurement:
    """Another outcome."""
    return Measurement(outcome=outcome, reason=f"it was {outcome}", **fields)


def make_record(number: int, measurement: Measurement | None, **values: Any) -> Record:
    """A probe; without `values` its candidate differs from the others by its number."""
    candidate = make_candidate(**values) if values else make_candidate(max_length=100 + number)
    return Record(number=number, candidate=candidate, measurement=measurement)


def make_estimate(reserved: int, tokens_per_s: float | None = None) -> Estimate:
    """An estimate by a trace, of a process that takes what its allocator reserves."""
    return Estimate(
        peak_allocated_bytes=reserved,
        peak_reserved_bytes=reserved,
        peak_memory_bytes=reserved,
        parts={"weights": reserved},
        peak_operator="aten::mm",
        peak_phase="micro-step",
        allocator_retries=0,
        method="trace",
        notes=(),
        sigma_bytes=0,
        p_oom=0.0,
        fits=True,
        missing_bytes=None,
        tokens_per_s=tokens_per_s,
    )


def with_data(facts: Facts, **changes: Any) -> Facts:
    """The facts with other data."""
    return replace(facts, data=replace(facts.data, **changes))
