"""The candidates that need no more probe, because of earlier ones: rules with their reasons. Pure.

Each rule is a function (candidate, record) -> reason or None: whether the probe of `record` makes
one of `candidate` pointless. They hold whatever the estimates say, but for the last, which asks
them, too.

A higher stage of ZeRO divides more and exchanges more, and what is offloaded has to come back.
Where a probe fitted that divides less, with all else the same, one that divides more is pointless -
unless it is expected to be as fast: dividing the optimizer's step can save more time than the
exchange takes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from autotune.estimate.variant import SAME_STATE
from autotune.search.record import Record, counts_as_probe, excess_bytes
from autotune.space.checkpointing import CHECKPOINTING, EVERY, SELECTIVE, memory_rank
from autotune.space.job_file.problems import as_yaml
from autotune.space.job_shape import server_devices
from autotune.space.knobs import (
    ACCUMULATION,
    COMPLETION,
    MICRO_BATCH,
    RESPONSE,
    SAMPLING,
    Candidate,
)
from autotune.space.sharding.sharding import (
    DATA_PARALLEL,
    DEEPSPEED,
    FSDP,
    NONE,
    SHARDING_KNOBS,
    Sharding,
    engine_name,
    sharding_of,
)
from autotune.space.vllm.server import left_to_the_server

LEANER: Mapping[str, Callable[[Any], float]] = {
    MICRO_BATCH: float,
    "max_length": lambda value: float("inf") if value is None else float(value),
    "lora_r": float,
    COMPLETION: float,
    RESPONSE: float,
    CHECKPOINTING: lambda value: float(memory_rank(value)),
    "activation_offloading": lambda value: float(not value),
    "vllm_enable_sleep_mode": lambda value: float(not value),
    "loss_type": lambda value: {"chunked_nll": 0.0, "nll": 1.0}.get(value, float("nan")),
    "precompute_ref_log_probs": lambda value: float(not value),
}
"""Knobs whose smaller figure never takes more memory, all else equal. Any other knob has to be the
same: its effect on memory depends on the rest."""
LITTLE = (SAMPLING, "dataloader_num_workers")
"""Knobs that a micro-batch twice as large outweighs: the worst rows are the same whatever the order
(of 136 pairs of a recorded CPU grid, random order took 15% less to 6% more), and workers are on the
host."""
FUSED, PLAIN = SAME_STATE
"""Optimizers: on GPUs the plain one makes more beside them. On CPUs it took 4% less to 8% more
(88 pairs of a recorded grid), which twice the micro-batch outweighs, too."""
SAVES_MEMORY_ONLY = {
    CHECKPOINTING: "checkpointing recomputes activations",
    "activation_offloading": "offloading moves activations to the host and back",
    "vllm_enable_sleep_mode": "vLLM has to wake up for each generation",
}
"""Knobs that only add work where memory suffices without them."""
Rule = Callable[[Candidate, Record, int | None], str | None]


def takes_no_less_than_one_that_ran_out(
    candidate: Candidate, record: Record, allowed_bytes: int | None
) -> str | None:
    """Return why a candidate runs out of memory: it takes no less in any knob than one that did.

    One step of accumulation is leaner than several, because no gradients are held during its
    backward pass; so it is only ruled out by one that had a single step too.
    """
    measurement = record.measurement
    assert measurement is not None
    if (excess_bytes(measurement, allowed_bytes) or 0) <= 0:
        return None
    larger = record.candidate
    single_step = candidate.gradient_accumulation_steps == 1
    if single_step and larger.gradient_accumulation_steps > 1:
        return None
    doubled = candidate.micro_batch >= 2 * larger.micro_batch
    names = [n for n in candidate.values if not (doubled and _is_little(n, candidate, larger))]
    if not all(_no_less(name, candidate, larger) for name in names):
        return None
    word = "ran out of memory" if measurement.outcome == "oom" else "took more than is allowed"
    return f"needs at least as much memory as probe {record.number}, which {word}"


def keeps_no_less_on_the_host(
    candidate: Candidate, record: Record, allowed_bytes: int | None
) -> str | None:
    """Return why a candidate runs out of the host's memory: it is one that did, with a micro-batch
    as large or larger, so it offloads no less. Other knobs may move memory to the host or off
    it."""
    measurement = record.measurement
    assert measurement is not None
    if measurement.outcome != "host_oom" or candidate.micro_batch < record.candidate.micro_batch:
        return None
    if set(candidate.differences(record.candidate)) - {MICRO_BATCH, ACCUMULATION}:
        return None
    return f"keeps at least as much on the host as probe {record.number}, which used up its memory"


def _is_little(name: str, candidate: Candidate, larger: Candidate) -> bool:
    """True if a larger micro-batch outweighs the memory that another value of a knob may save."""
    if name == "optim":
        return (candidate[name], larger.values.get(name)) == (PLAIN, FUSED)
    return name in LITTLE


def _no_less(name: str, candidate: Candidate, larger: Candidate) -> bool:
    value, larger_value = candidate.values.get(name), larger.values.get(name)
    if value == larger_value:
        return True
    if name not in LEANER or name not in larger.values:
        return False
    return LEANER[name](value) >= LEANER[name](larger_value)


def saves_memory_that_is_there(
    candidate: Candidate, record: Record, allowed_bytes: int | None
) -> str | None:
    """Return why a candidate is slower than a probed one: it saves memory at the cost of work, and
    the same one fits without.

    Known exceptions: 3 of 88 pairs of a recorded CPU grid were 1 to 3% faster with checkpointing
    (large micro-batches; the readings have 5% of noise), none of them among the fastest.
    """
    measurement = record.measurement
    assert measurement is not None
    if not any(candidate.values.get(name) for name in SAVES_MEMORY_ONLY):
        return None
    if measurement.outcome != "ok" or (excess_bytes(measurement, allowed_bytes) or 0) > 0:
        return None
    changed_knobs = candidate.differences(record.candidate)
    probed_values = record.candidate.values
    if not changed_knobs or any(
        name not in SAVES_MEMORY_ONLY
        or name not in probed_values
        or LEANER[name](value) >= LEANER[name](probed_values[name])
        for name, value in changed_knobs.items()
    ):
        return None
    levels = {candidate.values.get(CHECKPOINTING), probed_values.get(CHECKPOINTING)}
    if SELECTIVE in levels and levels & EVERY.keys():  # which is faster depends on the length
        return None
    reason = ", and ".join(SAVES_MEMORY_ONLY[name] for name in sorted(changed_knobs))
    without = "with less of it" if any(map(probed_values.get, changed_knobs)) else "without it"
    return f"probe {record.number} fits {without}, and {reason}"


def needs_what_is_not_installed(
    candidate: Candidate, record: Record, allowed_bytes: int | None
) -> str | None:
    """Return why a candidate cannot run: the package of its optimizer is missing, whatever the
    other knobs."""
    measurement = record.measurement
    assert measurement is not None
    missing = (measurement.failure or {}).get("type") in ("ImportError", "ModuleNotFoundError")
    optim = candidate.values.get("optim")
    if measurement.outcome != "unsupported" or not missing:
        return None
    if optim is None or optim != record.candidate.values.get("optim") or "torch" in str(optim):
        return None
    return f"probe {record.number} found that `optim: {optim}` is not installed"


def has_what_was_refused(
    candidate: Candidate, record: Record, allowed_bytes: int | None
) -> str | None:
    """Return why a candidate is refused: it has the values of the knobs that a refusal was due
    to."""
    measurement = record.measurement
    assert measurement is not None
    names = (measurement.failure or {}).get("knobs")
    if measurement.outcome != "unsupported" or not names:
        return None
    refused = record.candidate.values
    if any(candidate.values.get(name) != refused.get(name) for name in names):
        return None
    texts = ", ".join(f"`{name}: {as_yaml(refused[name])}`" for name in names if name in refused)
    if not texts:
        return None
    return f"probe {record.number} found that this stack cannot do {texts}"


def only_its_server_is_another(
    candidate: Candidate, record: Record, allowed_bytes: int | None
) -> str | None:
    """Return why a probe would only repeat another: probes run the training alone, which a server
    of another size does not change."""
    knobs, probed_knobs = candidate.knobs, record.candidate.knobs
    if not server_devices(knobs) or knobs.keys() != probed_knobs.keys():
        return None
    changed_names = candidate.differences(record.candidate).keys()
    if changed_names and changed_names <= left_to_the_server(knobs):
        return f"probe {record.number} trained the same, beside a server of another size"
    return None


def divides_more_than_it_must(
    candidate: Candidate,
    record: Record,
    allowed_bytes: int | None,
    speeds: Mapping[str, float],
) -> str | None:
    """Return why the probe of `record` makes one of `candidate` pointless; None: it does not.

    Args:
        speeds: expected tokens per second of candidates, by their keys.
    """
    measurement, probed_candidate = record.measurement, record.candidate
    assert measurement is not None
    if measurement.outcome != "ok" or (excess_bytes(measurement, allowed_bytes) or 0) > 0:
        return None
    changed_names = (
        candidate.differences(probed_candidate).keys()
        | probed_candidate.differences(candidate).keys()
    )
    if not changed_names or not changed_names <= set(SHARDING_KNOBS):
        return None
    if not saves_more(_sharding(candidate.values), _sharding(probed_candidate.values)):
        return None
    speed, probed_speed = speeds.get(candidate.key), speeds.get(probed_candidate.key)
    if speed is None or probed_speed is None or speed >= probed_speed:
        return None
    name = engine_name(_sharding(probed_candidate.values))
    return (
        f"probe {record.number} fits with {name}; more sharding or offloading is estimated slower"
    )


def saves_more(first: Sharding, second: Sharding) -> bool:
    """True if `first` divides and offloads all that `second` does, and more. ZeRO and FSDP are
    different programs: each is compared with its own kind and with plain copies."""
    kinds = {first.distributed_type, second.distributed_type} - {*DATA_PARALLEL, NONE}
    if len(kinds) != 1 or not kinds <= {DEEPSPEED, FSDP}:
        return False
    steps = list(zip(_steps(first), _steps(second), strict=True))
    return all(a >= b for a, b in steps) and any(a > b for a, b in steps)


def _steps(sharding: Sharding) -> tuple[int, int, int]:
    """Return how much is divided, and how far away the optimizer and the weights are kept."""
    stage = sharding.zero_stage
    if sharding.distributed_type == FSDP:
        stage = 3 if sharding.fsdp_reshard_after_forward else 2
    places = (sharding.offload_optimizer_device, sharding.offload_param_device)
    return stage, _FARTHER.index(places[0]), _FARTHER.index(places[1])


def _sharding(values: Mapping[str, Any]) -> Sharding:
    return sharding_of(values, 2)


_FARTHER = ("none", "cpu")
RULES: tuple[Rule, ...] = (
    takes_no_less_than_one_that_ran_out,
    keeps_no_less_on_the_host,
    saves_memory_that_is_there,
    needs_what_is_not_installed,
    has_what_was_refused,
    only_its_server_is_another,
)


def dominated(
    candidates: Sequence[Candidate],
    records: Iterable[Record],
    allowed_bytes: int | None,
    speeds: Mapping[str, float] | None = None,
) -> dict[str, str]:
    """Return the keys of candidates that need no probe, each with the first reason.

    Args:
        records: all probes; those that say nothing are passed over.
        allowed_bytes: peak memory a recommended candidate may have.
        speeds: expected tokens per second, by the candidates' keys, where they are known.
    """
    records = list(records)
    telling = [
        r
        for r in records
        if r.measurement is not None and r.measurement.outcome in _TELLING_OUTCOMES
    ]
    probed_keys = {r.candidate.key for r in records if counts_as_probe(r)}
    reasons: dict[str, str] = {}
    for candidate in candidates:
        if candidate.key in probed_keys:
            continue
        reasons_against = chain(
            (rule(candidate, record, allowed_bytes) for record in telling for rule in RULES),
            (
                divides_more_than_it_must(candidate, record, allowed_bytes, speeds or {})
                for record in telling
            ),
        )
        reason_against = next((reason for reason in reasons_against if reason is not None), None)
        if reason_against is not None:
            reasons[candidate.key] = reason_against
    return reasons


_TELLING_OUTCOMES = ("ok", "oom", "host_oom", "unsupported")
