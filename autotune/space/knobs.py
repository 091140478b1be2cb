"""Knobs, rules between them, and candidates. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

from autotune.job.job import KnobValue

MICRO_BATCH = "per_device_train_batch_size"
ACCUMULATION = "gradient_accumulation_steps"
GLOBAL_BATCH = "global_batch_size"
GENERATION_BATCH = "generation_batch_size"
GROUP = "num_generations"
COMPLETION = "max_completion_length"
RESPONSE = "response_length"
SAMPLING = "train_sampling_strategy"
SEGMENTS = "expandable_segments"
DTYPE = "dtype"
MODEL_KWARGS = "model_init_kwargs"
EXPERT_KERNELS = "experts_implementation"
COMPILES = "torch_compile"
ROLLOUT_CHUNK = "local_rollout_forward_batch_size"
MINI_BATCHES = "num_mini_batches"
VLLM_SHARE = "vllm_gpu_memory_utilization"
TENSOR_PARALLEL = "vllm_tensor_parallel_size"
NUM_PROCESSES = "num_processes"
USE_VLLM, VLLM_MODE, VLLM_SERVER = "use_vllm", "vllm_mode", "server"
"""Two knobs, and the value of the second with which devices of the job are a server's."""

FLAG_WORDS: Mapping[str, str] = {
    "padding_free": "padding-free",
    "use_liger_kernel": "Liger kernels",
    "activation_offloading": "activation offloading",
    SEGMENTS: "expandable segments",
    COMPILES: "torch.compile",
}
"""What a person calls a knob that is on."""
DEFAULT = "the default"
"""In a rule: the value that a knob has where nobody chooses, of those that the job lets it have."""


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One setting that may vary, as a search space file describes it.

    `values` are searched by default: a list, a mapping by device kind, or one of the words that
    `bind.py` derives from the job. `choices` None means that any value may be asked for.
    """

    name: str
    kind: Literal["speed", "recipe"]
    values: Any
    why: str
    default: KnobValue = None
    choices: tuple[KnobValue, ...] | None = None
    place: Literal["config", "environment", "batch", "launch", "model"] = "config"
    only_if: Mapping[str, Any] = field(default_factory=dict)

    def allows(self, value: Any) -> bool:
        """True if a value may be asked for; a choice that ends with `/*` allows what begins so."""
        if self.choices is None:
            return True
        begins = tuple(c[:-1] for c in self.choices if isinstance(c, str) and c.endswith("/*"))
        known = any(type(value) is type(choice) and value == choice for choice in self.choices)
        return known or (isinstance(value, str) and value.startswith(begins))


@dataclass(frozen=True, kw_only=True)
class BoundKnob:
    """A knob with the values it may take in this job, and where they come from."""

    name: str
    kind: str
    place: str
    values: tuple[KnobValue, ...]
    default: KnobValue
    why: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A combination that is never tried, and why."""

    forbid: Mapping[str, Any]
    reason: str

    def with_defaults(self, defaults: Mapping[str, KnobValue]) -> Self:
        """Return the rule of one job, with its defaults in place of the word for them."""
        forbid = {
            name: {"not": defaults[name]}
            if condition == {"not": DEFAULT} and name in defaults
            else condition
            for name, condition in self.forbid.items()
        }
        return replace(self, forbid=forbid)

    def excludes(self, context: Mapping[str, Any]) -> bool:
        """True if every condition holds; a name that `context` lacks means no."""
        return all(
            name in context and condition_holds(condition, context[name], context)
            for name, condition in self.forbid.items()
        )


def condition_holds(condition: Any, value: Any, context: Mapping[str, Any]) -> bool:
    """True if `value` meets a condition of a rule: a value, a list, `not`, `above`, `contains`."""
    if isinstance(condition, Mapping):
        ((operator, operand),) = condition.items()
        if operator == "not":
            return not _equal(operand, value)
        if operator == "contains":
            return isinstance(value, list | tuple) and operand in value
        limit = context.get(operand) if isinstance(operand, str) else operand
        return value is not None and limit is not None and value > limit
    if isinstance(condition, list):
        return any(_equal(choice, value) for choice in condition)
    return _equal(condition, value)


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One value for every knob, and the accumulation that makes the global batch exact."""

    values: Mapping[str, KnobValue]
    gradient_accumulation_steps: int

    def __getitem__(self, knob: str) -> Any:
        return self.values[knob]

    @property
    def micro_batch(self) -> int:
        """Sequences per device and micro-step."""
        value = self.values[MICRO_BATCH]
        assert isinstance(value, int)
        return value

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step on one device."""
        return self.micro_batch * self.gradient_accumulation_steps

    @property
    def knobs(self) -> dict[str, KnobValue]:
        """All values by field name, the accumulation among them."""
        return {**self.values, ACCUMULATION: self.gradient_accumulation_steps}

    @cached_property
    def key(self) -> str:
        """The same text for the same candidate, always."""
        return json.dumps(self.knobs, sort_keys=True)

    def distance(self, values: Mapping[str, KnobValue]) -> int:
        """Return the number of knobs in which the candidate differs from these values."""
        return sum(self.values.get(name) != value for name, value in values.items())

    def differences(self, candidate: "Candidate") -> dict[str, KnobValue]:
        """Return the knobs in which this candidate differs from `candidate`, with its own
        values."""
        return {
            name: value for name, value in self.knobs.items() if candidate.knobs.get(name) != value
        }


def from_knobs(knobs: Mapping[str, KnobValue]) -> Candidate:
    """Return the candidate whose `knobs` these are (the way back from a stored record)."""
    values = dict(knobs)
    accumulation = values.pop(ACCUMULATION)
    assert isinstance(accumulation, int)
    return Candidate(values=values, gradient_accumulation_steps=accumulation)


def value_label(value: KnobValue) -> str:
    """Return a value as one short word: the form Optuna stores and tables show."""
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)
