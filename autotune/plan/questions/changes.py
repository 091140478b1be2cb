"""The single changes of a job that could make it fit, when nothing fits, and the ways out that
lists of them are. Pure.

The changes are tried by estimates (`ways.py`) or by real probes (`run/conclusion.py`); an untried
change is never called a way out. Of changes of one field the smallest comes first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.facts.stack import fused_head
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.choices import is_safe
from autotune.probe.protocol import Measurement
from autotune.space.checkpointing import CHECKPOINTING, OFFLOAD
from autotune.space.job_shape import JobShape
from autotune.space.knobs import (
    ACCUMULATION,
    COMPLETION,
    GLOBAL_BATCH,
    GROUP,
    MICRO_BATCH,
    NUM_PROCESSES,
    RESPONSE,
    Candidate,
)
from autotune.space.sharding.sharding import (
    DEEPSPEED,
    DISTRIBUTED_TYPE,
    OPTIMIZER_OFFLOAD,
    PARAM_OFFLOAD,
)
from autotune.space.vllm.colocated import SLEEP, USE

CLOSED_FORM = "closed form"
"""The method of an estimate without a trace."""
MOST_DEVICES = 8
"""The most devices that a machine is given."""
_STAGE = "zero_stage"
_ZERO_2 = {DISTRIBUTED_TYPE: DEEPSPEED, _STAGE: 2, OPTIMIZER_OFFLOAD: "cpu"}
_OFFLOADED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("the optimizer", _ZERO_2),
    ("optimizer and weights", {**_ZERO_2, _STAGE: 3, PARAM_OFFLOAD: "cpu"}),
)
"""Parts that ZeRO can keep off a single device, with the knobs that ask for it."""


_EFFECTS = {
    "dtype": "small updates of the weights are rounded away",
    "lora": "adapters are trained, not the weights",
    "qlora": "adapters are trained, on a base that is rounded to 4 bits",
    "optim": "the optimizer's steps are less exact",
    "max_length": "longer rows are cut or left out",
    GLOBAL_BATCH: "an update sees fewer answers",
    GROUP: "an answer is compared with fewer others",
    COMPLETION: "longer answers are cut",
    RESPONSE: "longer answers are cut",
}
"""Effects on the learning of a change of a field, or of the tuning that it changes to."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of a job: its field, its text, whether it changes the learning (`recipe`) or not
    (`speed`), and the job that it makes."""

    field: str
    text: str
    kind: str
    job: Job

    @property
    def effect(self) -> str:
        """The effect of a change of the recipe on the learning."""
        if self.field == "dtype" and self.job.tuning != "full":
            return "the base, which is not trained, is rounded to 16 bits"
        return _EFFECTS[self.job.tuning if self.field == "tuning" else self.field]


def changed_fields(before: Job, after: Job) -> dict[str, Any]:
    """Return the fields of a job file that differ, with their new values; for `devices` its parts;
    None: the field is left out."""
    was, now = before.model_dump(), after.model_dump()
    fields = {name: value for name, value in now.items() if value != was[name]}
    if "devices" in fields:
        parts = fields["devices"].items()
        fields["devices"] = {part: v for part, v in parts if v != was["devices"][part]}
    return fields


@dataclass(frozen=True, kw_only=True)
class TriedChange:
    """A change and its probe."""

    text: str
    kind: str
    fits: bool
    measurement: Measurement


def single_changes(job: Job, nearest: Candidate) -> Iterator[Change]:
    """Yield changes that lower memory, those that leave the learning as it is first."""
    for knob, value in _leaner_speed_knobs(job, nearest):
        # The accumulation follows from the micro-batch: it cannot stay pinned beside another one.
        replaced = {MICRO_BATCH, ACCUMULATION} if knob == MICRO_BATCH else {knob}
        fixed = {k: v for k, v in job.fixed.items() if k not in replaced}
        yield Change(
            field=knob,
            text=f"`{knob}: {_word(value)}` in place of the pinned `{_word(nearest.knobs[knob])}`",
            kind="speed",
            job=job.model_copy(update={"fixed": {**fixed, knob: value}}),
        )
    yield from _divided_more(job)
    if nearest.values.get("dtype") == "float32":
        yield _recipe(
            job, "dtype", "bfloat16", "weights in bfloat16 (`recipe: {dtype: [bfloat16]}`)"
        )
    if job.tuning == "full":
        lora = job.model_copy(update={"tuning": "lora"})
        yield Change(field="tuning", text="`tuning: lora`", kind="recipe", job=lora)
    yield from _less_vllm(job, nearest)
    if job.tuning != "qlora" and not nearest.values.get(USE):
        qlora = job.model_copy(update={"tuning": "qlora"})
        text = "`tuning: qlora` (the base in 4 bits)"
        yield Change(field="tuning", text=text, kind="recipe", job=qlora)
    yield from _lighter_optimizers(job, nearest)
    yield from _shorter_completions(job, nearest)
    yield from _fewer_completions(job, nearest)
    length = nearest.values.get("max_length", job.max_length)
    for part in (2, 4):
        shorter = length // part if isinstance(length, int) else None
        if shorter and shorter >= 16 and job.batch_sequences(shorter) is not None:
            recipe = {k: v for k, v in job.recipe.items() if k != "max_length"}
            yield Change(
                field="max_length",
                text=f"`max_length: {shorter}`",
                kind="recipe",
                job=job.model_copy(update={"max_length": shorter, "recipe": recipe}),
            )


def _lighter_optimizers(job: Job, nearest: Candidate) -> Iterator[Change]:
    """Yield lighter optimizers where many weights are trained: Adam keeps two moments for each."""
    if job.tuning != "full" and not METHODS[job.method].value_model:
        return
    optimizers = {
        "adamw_8bit": "moments in 8 bits (`recipe: {optim: [adamw_8bit]}`)",
        "adafactor": "an optimizer with factored moments (`recipe: {optim: [adafactor]}`)",
    }
    names = list(optimizers)
    now = nearest.values.get("optim")
    for optim in names[names.index(now) + 1 if now in names else 0 :]:
        yield _recipe(job, "optim", optim, optimizers[optim])


def _shorter_completions(job: Job, nearest: Candidate) -> Iterator[Change]:
    """Yield completions of half and of a quarter of the length."""
    knob = METHODS[job.method].completion
    length = nearest.values.get(knob)
    for part in (2, 4):
        if isinstance(length, int) and length // part >= 16:
            yield _recipe(job, knob, length // part, f"`{knob}: {length // part}`")


def _fewer_completions(job: Job, nearest: Candidate) -> Iterator[Change]:
    """Yield half as many completions that are kept at once: those of an update, or of a prompt."""
    batch, group = job.global_batch_size, nearest.values.get(GROUP)
    halves = isinstance(batch, int) and batch % (2 * max(JobShape.of(job).process_counts)) == 0
    if METHODS[job.method].value_model and isinstance(batch, int) and halves:
        fewer = job.with_batch(batch // 2)
        text = f"`{GLOBAL_BATCH}: {batch // 2}`"
        yield Change(field=GLOBAL_BATCH, text=text, kind="recipe", job=fewer)
    if isinstance(group, int) and group >= 4 and group % 2 == 0:
        yield _recipe(job, GROUP, group // 2, f"`{GROUP}: {group // 2}`")


def offloading(job: Job, device_kind: str) -> Iterator[Change]:
    """Yield DeepSpeed for the single process of a GPU: the optimizer on the host, then the weights,
    too.

    A job of several devices has both among its candidates, and on a CPU the host's memory is the
    device's.
    """
    if job.devices.total > 1 or device_kind != "cuda" or METHODS[job.method].value_model:
        return
    requested = [pins.items() <= job.fixed.items() for _, pins in _OFFLOADED]
    for number, (what, pins) in enumerate(_OFFLOADED):
        if any(requested[number:]):
            continue
        pinned = ", ".join(f"{name}: {value}" for name, value in pins.items())
        recipe = {name: values for name, values in job.recipe.items() if name not in pins}
        update = {"fixed": {**job.fixed, **pins}, "recipe": recipe}
        yield Change(
            field=OPTIMIZER_OFFLOAD,
            text=f"{what} in the host's memory (`fixed: {{{pinned}}}`)",
            kind="speed",
            job=job.model_copy(update=update),
        )


def more_devices(job: Job) -> Iterator[Change]:
    """Yield larger numbers of devices that keep the batch exact. Where completions are generated,
    each device then keeps fewer of them, and only the next number is tried. Elsewhere ZeRO-3
    divides weights, gradients and the optimizer among them."""
    batch, now = job.global_batch_size, job.devices.count
    if not isinstance(batch, int) or NUM_PROCESSES in job.fixed or job.devices.nodes > 1:
        return
    counts = [n for n in range(now + 1, MOST_DEVICES + 1) if batch % n == 0]
    online = METHODS[job.method].online
    for count in counts[:1] if online else counts:
        devices = job.devices.model_copy(update={"count": count})
        update: dict[str, Any] = {"devices": devices}
        how = "a whole copy on each"
        if not online:
            how = "weights, gradients and optimizer divided among them by ZeRO-3"
        yield Change(
            field="devices",
            text=f"{count} GPUs in place of {now}, {how} (`devices: {{count: {count}}}`)",
            kind="speed",
            job=job.model_copy(update=update),
        )


def _divided_more(job: Job) -> Iterator[Change]:
    """Yield ZeRO-3 where pins make several devices each keep what it would divide."""
    kind, stage = job.fixed.get(DISTRIBUTED_TYPE), job.fixed.get(_STAGE)
    pinned = kind if kind == "MULTI_GPU" else stage if stage in (1, 2) else None
    if pinned is None or job.devices.total == 1 or METHODS[job.method].value_model:
        return
    name = DISTRIBUTED_TYPE if kind == "MULTI_GPU" else _STAGE
    fixed = {**job.fixed, DISTRIBUTED_TYPE: DEEPSPEED, _STAGE: 3}
    yield Change(
        field=_STAGE,
        text=f"ZeRO-3 in place of the pinned `{name}: {pinned}` "
        f"(`fixed: {{{DISTRIBUTED_TYPE}: {DEEPSPEED}, {_STAGE}: 3}}`)",
        kind="speed",
        job=job.model_copy(update={"fixed": fixed}),
    )


def _less_vllm(job: Job, nearest: Candidate) -> Iterator[Change]:
    """Yield vLLM asleep while the training computes, or no vLLM at all."""
    if nearest.values.get(SLEEP) is False:
        text = f"`{SLEEP}: true` (vLLM gives its memory back while the training computes)"
        yield _pinned(job, SLEEP, True, text)
    if nearest.values.get(USE):
        fixed = {name: value for name, value in job.fixed.items() if "vllm" not in name}
        changed_job = job.model_copy(update={"fixed": fixed})
        yield Change(
            field=USE, text=f"transformers' generation (no `{USE}`)", kind="speed", job=changed_job
        )


def _pinned(job: Job, knob: str, value: Any, text: str) -> Change:
    update = {"fixed": {**job.fixed, knob: value}}
    return Change(field=knob, text=text, kind="speed", job=job.model_copy(update=update))


def _leaner_speed_knobs(job: Job, nearest: Candidate) -> Iterator[tuple[str, Any]]:
    """Yield pinned speed knobs with the value that takes less memory."""
    leaner: dict[str, Any] = {CHECKPOINTING: True, MICRO_BATCH: 1}
    if not fused_head():
        leaner["loss_type"] = "chunked_nll"
    for knob, value in leaner.items():
        pinned = knob in job.fixed or (knob == MICRO_BATCH and ACCUMULATION in job.fixed)
        other_loss = knob == "loss_type" and nearest.knobs.get(knob) != "nll"
        leaner_already = nearest.knobs.get(knob) in (value, OFFLOAD)
        if pinned and not leaner_already and not other_loss:
            yield knob, value


def _recipe(job: Job, knob: str, value: Any, text: str) -> Change:
    fixed = {k: v for k, v in job.fixed.items() if k != knob}
    update = {"fixed": fixed, "recipe": {**job.recipe, knob: [value]}}
    return Change(field=knob, text=text, kind="recipe", job=job.model_copy(update=update))


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A list of changes after which the job fits.

    Attributes:
        candidate: the fastest that is safe then, of those that were estimated.
        fields: of the job's file, as they are after the changes (`changed_fields`).
        packages: what it needs that is not on this machine.
    """

    changes: tuple[Change, ...]
    candidate: Candidate
    estimate: Estimate
    fields: Mapping[str, Any]
    packages: tuple[str, ...] = ()

    @property
    def learns_the_same(self) -> bool:
        """True if no change touches the learning."""
        return all(change.kind == "speed" for change in self.changes)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The ways out.

    Attributes:
        fits: whether the job fits as it is; it may still not be safe.
        nearest: its leanest candidate.
        ways: the cheapest first (`price`).
        tried: lists of changes that were estimated.
        ruled_out: lists whose weights, gradients and moments alone are more than the limit.
    """

    fits: bool
    nearest: Candidate
    estimate: Estimate
    limit_bytes: int
    device: str
    ways: tuple[Way, ...]
    tried: int
    ruled_out: int = 0

    @property
    def safe(self) -> bool:
        """True if the job hardly ever runs out of memory as it is: there is nothing to change."""
        return self.fits and is_safe(self.estimate)


def price(way: Way) -> tuple[int, bool, bool, float]:
    """Return the sort key of a way: few changes first; of as many those on the devices that are
    there, then those that learn the same, then the fastest."""
    more = any(change.field == "devices" for change in way.changes)
    return len(way.changes), more, not way.learns_the_same, -(way.estimate.tokens_per_s or 0.0)


def is_checked(estimate: Estimate) -> bool:
    """True if a candidate is safe by a trace."""
    return is_safe(estimate) and estimate.method != CLOSED_FORM
