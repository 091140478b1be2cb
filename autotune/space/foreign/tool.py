"""A tool whose configurations are read, and what its tables share. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import Problem
from autotune.facts.known_models import known_model
from autotune.space.foreign.fields import Rule, leave, to
from autotune.space.foreign.reading import Reading
from autotune.space.knobs import ACCUMULATION, MICRO_BATCH

ALL_LINEAR = "all-linear"
SHARDING = "how devices share the training is searched"
REMOTE_CODE = (
    "it would run code that comes with the model; `--set trust_remote_code=true` says that you "
    "want that"
)
EVALUATION = "what it evaluates on is not carried: a job has `dataset_test_split` of its data"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool, and how its configuration is read.

    Attributes:
        name: as its users write it.
        marks: fields of which its files have at least two.
        rules: its fields.
        method: the training method that a configuration says; None: it does not say it.
        read: gives the fields that no table can (what is trained, on what data) their places.
        micro, accumulation: its names for the micro-batch and the number of them.
        rows, steps: their defaults.
        defaults: what it does where a file says nothing and TRL would do something else, by our
            names; those of adapters apply where one is trained.
        as_is: speed knobs as the tool has them, which TRL has otherwise.
        takes_trainer_fields: whether a field that no rule names may be one of the trainer's.
        dumps_defaults: whether its files list all fields, those that nobody set among them.
        reads_by_omegaconf: whether a key that its file has twice ends its training.
        hidden: prefixes of fields that no job has, and why.
        says_method: the field that names the method, where there is one.
        flat: a file's fields as the table names them.
    """

    name: str
    marks: frozenset[str]
    rules: Mapping[str, Rule]
    method: Callable[[Mapping[str, Any]], str | None]
    read: Callable[[Reading], None]
    micro: str = MICRO_BATCH
    accumulation: str = ACCUMULATION
    rows: int = 8
    steps: int = 1
    defaults: Mapping[str, Any] = field(default_factory=dict)
    as_is: Mapping[str, Any] = field(default_factory=dict)
    takes_trainer_fields: bool = True
    dumps_defaults: bool = False
    reads_by_omegaconf: bool = False
    hidden: Mapping[str, str] = field(default_factory=dict)
    says_method: str = ""
    flat: Callable[[Mapping[str, Any]], dict[str, Any]] = dict

    def rule(self, name: str) -> Rule | None:
        """Return what a field is; None: the table says nothing of it."""
        reason = next((why for start, why in self.hidden.items() if name.startswith(start)), None)
        return self.rules.get(name) or (None if reason is None else leave(reason))


TRAINER_RULES: Mapping[str, Rule] = {
    "max_seq_length": to("max_length"),
    "max_seq_len": to("max_length"),
    "evaluation_strategy": to("eval_strategy"),
    "torch_dtype": to("dtype"),
    "no_cuda": to("devices.kind", {True: "cpu", False: "auto"}),
    "use_cpu": to("devices.kind", {True: "cpu", False: "auto"}),
    # Since transformers 5 a number below 1 is a share of all steps.
    "warmup_ratio": to("warmup_steps"),
    "group_by_length": to("train_sampling_strategy", {True: "group_by_length", False: "random"}),
    "use_liger": to("use_liger_kernel"),
    "overwrite_output_dir": leave("transformers has dropped it"),
    "do_train": leave("a job always trains"),
    "do_eval": leave(EVALUATION),
    "do_predict": leave("a job trains only"),
    "trust_remote_code": leave(REMOTE_CODE),
    "resume_from_checkpoint": leave("a job starts from the model"),
    "auto_find_batch_size": leave("the batch size is searched"),
    "local_rank": leave("the launcher says it"),
    "logging_dir": leave("transformers has dropped it"),
}
"""Fields of transformers' trainer under names of other versions, and those that no job has."""


def read_model(reading: Reading, field_name: str) -> None:
    """Read the model; a folder that is not here by its last name, if that is well known."""
    given = reading.given(field_name)
    if not isinstance(given, str):
        return
    known = known_model(given.rstrip("/").rpartition("/")[2])
    known = known or known_model(given.rstrip("/").rpartition("/")[2].removeprefix("Meta-"))
    folder = given.startswith(("/", ".", "~")) or reading.tool == "torchtune"
    if folder and not reading.exists(given) and known is not None:
        reading.carry(
            field_name, "model", known.hub_id, detail=f"model: {known.hub_id}, by its name"
        )
        reading.assumed.append(f"model: {known.hub_id} (`{given}` is not here)")
    else:
        reading.carry(field_name, "model", given)


def read_precision(reading: Reading, *, default: str) -> None:
    """Mixed precision, of the switches `bf16` and `fp16`.

    Args:
        default: what the tool does where neither is given.
    """
    given = {name: reading.given(name) for name in ("bf16", "fp16")}
    on = next((name for name in given if is_mixed(reading, name)), None)
    if on is None and all(value is None for value in given.values()):
        if default != "auto":
            reading.assume("precision", default, f"default of {reading.tool}")
        return
    for name in given:
        reading.carry(name, "precision", on or "fp32")


def is_mixed(reading: Reading, name: str) -> bool:
    """True if a switch of mixed precision is on, which Axolotl sets to `auto` or `full`, too."""
    return reading.is_on(name) or str(reading.given(name)).lower() in ("auto", "full")


def set_lengths(reading: Reading, why: str) -> None:
    """Plan from lengths: every row as long as rows may be."""
    longest = reading.job.get("max_length")
    longest = longest if isinstance(longest, int) and longest > 0 else 1024
    reading.write("dataset", {"lengths": {"max": longest}})
    reading.assumed.append(
        f"dataset: every row has {longest} tokens ({why}; `dataset: my-data` or "
        "`dataset: {lengths: {max: ..., p50: ...}}` says better)"
    )


def refuse(reading: Reading, field_name: str, what: str, hint: str | None = None) -> None:
    """Say that a field asks for a training that cannot be tuned."""
    reading.problems.append(Problem(where=field_name, what=what, hint=hint))


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def names_of(value: Any) -> Any:
    """Module names as a list: tools take `q_proj,v_proj`, too."""
    if isinstance(value, str):
        names = [name.strip() for name in value.split(",") if name.strip()]
        return ALL_LINEAR if names in (["all"], [ALL_LINEAR]) else names
    return ALL_LINEAR if value in (["all"], [ALL_LINEAR]) else value
