"""What training on several devices makes of the record of one, by formula. Pure.

DDP gives every device a whole copy. torch's DistributedDataParallel exchanges gradients in buckets
of its own, which live as long as the model (`gradient_as_bucket_view=False`, its default and
accelerate's): as many bytes as there are gradients. The first bucket closes at 1 MiB, the others at
25 MiB (torch/nn/parallel/distributed.py). Before, it sends the weights of the first process to all,
gathered to 250 MiB each, two at a time: of a small adapter's training that is the peak
(torch/csrc/distributed/c10d/comm.cpp). Not modelled: that buckets are rebuilt after the first step,
in the order in which gradients came.

Under ZeRO every storage keeps its place in the program and changes its size: optimizer states are
divided among the devices (stage 1 on), gradients (stage 2 on), weights (stage 3). DeepSpeed keeps
weights and gradients in the type it computes in, and beside them a float32 copy of what is trained
and moments in float32, divided too. Gradients are exchanged in buckets; stage 3 gathers weights for
use and keeps up to `stage3_max_live_parameters`, and TRL gathers all of them to generate
(`ds3_gather_for_generation`) or to give them to vLLM.

Sources: Rajbhandari et al., "ZeRO" (arXiv:1910.02054); DeepSpeed's `runtime/zero/stage_1_and_2.py`
(`setup_buckets`: one of the whole size whatever the model's, and another one where communication
overlaps) and `stage3.py` (one, and what is scattered from it flattened once more). Known error: see
`docs/estimates.md`. DeepSpeed itself is traced by `variants/sharded.py`; this is for what is not:
methods that generate, and of many engines those that are not worth a trace (`plan/engines.py`).

`sharded_point` does the same for the reply of data parallelism: the record is not at hand any more,
only what its peaks are made of and how high each phase goes. A few events stand for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.estimate.protocol import EstimateRequest, PointReply
from autotune.estimate.records.decoding import DECODE, GENERATION
from autotune.estimate.records.events import (
    ALLOCATE,
    CASTS,
    COMMUNICATION,
    DATA,
    FREE,
    GRADIENTS,
    LASTING,
    LOADING,
    MICRO_STEP,
    MOVE,
    NOWHERE,
    OPTIMIZER,
    PHASE,
    STEP,
    TEMPORARIES,
    WEIGHTS,
    Event,
    live_after,
    live_bytes,
    training_start,
)
from autotune.space.quantization import trains_wide
from autotune.space.sharding.deepspeed import MAX_LIVE_PARAMETERS, default_size
from autotune.space.sharding.sharding import BUCKET_SIZE, DEEPSPEED, FSDP, Sharding

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
BROADCAST, IN_FLIGHT = 250 << 20, 2
_FIRST_BUCKET_ID = 1 << 43
GATHERED = 2
"""How often gathered weights are in memory, by real runs of stage 3 (2 and 4 ranks, small models),
whose truth was too high: torch's profiler does not see what gloo's threads free (docs/log.md)."""
_FIRST_ID, _GATHERED_ID = 1 << 44, 1 << 45


@dataclass(frozen=True, kw_only=True)
class Zero:
    """The division of a training among devices.

    Attributes:
        stage: 1, 2 or 3.
        devices: among how many.
        bucket: gradients that are exchanged at a time.
        overlaps: whether they are while others are computed.
        half: whether it computes in 16 bits.
        wide, trained_wide: whether weights, and those that are trained, are kept in float32 without
            ZeRO.
        offloads: whether optimizer states, and weights, are kept elsewhere.
    """

    stage: int
    devices: int
    bucket: int
    half: bool
    wide: bool
    trained_wide: bool
    offloads: tuple[bool, bool] = (False, False)
    overlaps: bool = True

    @property
    def narrowed(self) -> float:
        """Bytes of a weight, over those without ZeRO."""
        return 0.5 if self.half and self.wide else 1.0

    @property
    def narrowed_gradients(self) -> float:
        """Bytes of a gradient, over those without ZeRO."""
        return 0.5 if self.half and self.trained_wide else 1.0

    @property
    def width(self) -> int:
        """Bytes of a weight or gradient."""
        return 2 if self.half else 4

    def factors(self) -> dict[str, float]:
        """Return a device's bytes over those without ZeRO, by part."""
        part = 1 / self.devices
        moments = 2.0 if self.half and not self.trained_wide else 1.0
        states, weights = (0.0 if away else 1.0 for away in self.offloads)
        return {
            WEIGHTS: weights * self.narrowed * (part if self.stage == 3 else 1.0),
            # With the optimizer elsewhere, its gradients go there bucket by bucket.
            GRADIENTS: states * self.narrowed_gradients * (part if self.stage >= 2 else 1.0),
            OPTIMIZER: states * moments * part,
            CASTS: 0.0,  # the whole model is in that type
        }


def zero_of(config: Mapping[str, Any], sharding: Sharding, devices: int, hidden: int) -> Zero:
    """Return how a configuration would be divided; FSDP2 as the stage of ZeRO that divides as
    much."""
    stage = sharding.zero_stage or (3 if sharding.fsdp_reshard_after_forward else 2)
    offloads = (sharding.offload_optimizer_device, sharding.offload_param_device)
    wide = config.get("dtype", "float32") == "float32"
    half = bool(config.get("bf16") or config.get("fp16")) or not wide
    return Zero(
        stage=stage,
        devices=devices,
        bucket=sharding.reduce_bucket_size or default_size(BUCKET_SIZE, hidden),
        half=half,
        wide=wide,
        trained_wide=trains_wide(config),
        offloads=(offloads[0] != "none", offloads[1] != "none"),
        overlaps=sharding.overlap_comm,
    )


def sharded_record(events: list[Event], zero: Zero) -> list[Event]:
    """Return the record of one device as that of one of several."""
    part_of = _lasting_parts(events)
    factors = zero.factors()
    weights, gradients = (_most_live(events, part_of, part) for part in (WEIGHTS, GRADIENTS))
    scaled = [
        (*event[:2], round(event[2] * factors.get(part_of.get(event[1], ""), 1.0)), *event[3:])
        if event[0] == ALLOCATE
        else event
        for event in events
    ]
    start = training_start(events)
    trained = zero.narrowed_gradients * gradients / zero.width
    gathered = min(zero.narrowed * weights, MAX_LIVE_PARAMETERS * zero.width)
    training = _own_steps(
        scaled[start:],
        part_of,
        computing=round(GATHERED * gathered) if zero.stage == 3 else 0,
        stepping=0 if zero.offloads[0] else round(3 * 4 * trained / zero.devices),
    )
    out = [*scaled[:start], *_engine(zero, trained), *training]
    if zero.stage == 3:
        out = list(_gathered_to_generate(out, round(zero.narrowed * weights)))
    return out


def _lasting_parts(events: list[Event]) -> dict[int, str]:
    """Return the part that each storage is counted in at last, by its id."""
    parts: dict[int, str] = {}
    for event in events:
        if event[0] == ALLOCATE:
            parts[event[1]] = event[3]
        elif event[0] == MOVE:
            parts[event[1]] = event[2]
    return parts


def _most_live(events: list[Event], part_of: Mapping[int, str], part: str) -> int:
    """Return the most bytes of a part that are live at once."""
    part_events = (e for e in events if e[0] in (ALLOCATE, FREE) and part_of.get(e[1]) == part)
    return live_bytes(part_events).peak_bytes


def _engine(zero: Zero, trained: float) -> list[Event]:
    """Return what DeepSpeed holds all the time: a float32 copy of its part of what is trained, and
    buckets.

    Args:
        trained: how many weights are.
    """
    buckets = [zero.bucket]
    if zero.stage == 3:
        buckets.append(min(zero.bucket, round(trained)))
    elif zero.overlaps:
        buckets.append(zero.bucket)
    copy = 0.0 if zero.offloads[0] else 4 * trained / zero.devices
    buffers = [(OPTIMIZER, copy), *[(COMMUNICATION, size * zero.width) for size in buckets]]
    return [
        (ALLOCATE, _FIRST_ID + n, round(size), part, "zero", NOWHERE)
        for n, (part, size) in enumerate(buffers)
    ]


def _own_steps(
    events: list[Event], part_of: Mapping[int, str], *, computing: int, stepping: int
) -> Iterator[Event]:
    """Yield the events with DeepSpeed's optimizer step in place of the trainer's: a flat float32
    gradient of its part, and two tensors of that size, which Adam makes. Elsewhere gathered weights
    are there.

    Args:
        computing: bytes beside what computes; stepping: beside the step.
    """
    dropped: set[int] = set()
    stepped, extra_id = False, None
    for number, event in enumerate(events):
        if event[0] == PHASE and (extra_id is None or stepped is not (event[1] == STEP)):
            if extra_id is not None:
                yield (FREE, extra_id, NOWHERE)
            yield event
            stepped, extra_id = event[1] == STEP, _FIRST_ID + 64 + number
            part = TEMPORARIES if stepped else COMMUNICATION
            yield (ALLOCATE, extra_id, stepping if stepped else computing, part, "zero", NOWHERE)
            continue
        if stepped and event[0] == ALLOCATE and part_of[event[1]] not in LASTING:
            dropped.add(event[1])
        if event[0] == PHASE or event[1] not in dropped:
            yield event


def _gathered_to_generate(events: list[Event], weights: int) -> Iterator[Event]:
    """Yield the events with all weights gathered while completions are generated."""
    gathered = None
    for number, event in enumerate(events):
        if event[0] == PHASE:
            inside = event[1] in (GENERATION, DECODE)
            if inside and gathered is None:
                gathered = _GATHERED_ID + number
                yield event
                yield (ALLOCATE, gathered, weights, COMMUNICATION, "gathered", NOWHERE)
                continue
            if not inside and gathered is not None:
                yield (FREE, gathered, NOWHERE)
                gathered = None
        yield event


def sharded_point(
    point: PointReply, zero: Zero, *, gradients: int, accumulates: bool
) -> PointReply:
    """Return what a point takes of each device where the training is divided.

    Args:
        point: the same of data parallelism.
        gradients: bytes of all gradients there.
        accumulates: whether they are in memory during the worst micro-batch.
    """
    use = live_bytes(sharded_record(_stand_in_events(point, gradients, accumulates), zero))
    reserved_ratio = point.peak_reserved_bytes / max(point.peak_allocated_bytes, 1)
    return replace(
        point,
        peak_allocated_bytes=use.peak_bytes,
        peak_reserved_bytes=round(reserved_ratio * use.peak_bytes),
        parts=use.parts,
        operator=use.operator,
        phase=use.phase,
        phases=use.phases,
        micro_peaks=use.micro_peaks,
        oom=False,
        missing_bytes=None,
        retries=0,
        host_bytes=0,
    )


def with_loading(point: PointReply, loaded: int, limit: int) -> PointReply:
    """Return a point whose device holds so many bytes while its models are loaded."""
    point = replace(point, phases={**point.phases, LOADING: loaded})
    if loaded <= point.peak_allocated_bytes:
        return point
    return replace(
        point,
        peak_allocated_bytes=loaded,
        peak_reserved_bytes=max(loaded, point.peak_reserved_bytes),
        parts={WEIGHTS: loaded},
        operator="",
        phase=LOADING,
        oom=point.oom or loaded > limit,
        missing_bytes=max(loaded - limit, point.missing_bytes or 0) or None,
    )


def _stand_in_events(point: PointReply, gradients: int, accumulates: bool) -> list[Event]:
    """Return the events that stand for a record: what lasts, moments of micro-steps, an optimizer's
    step.

    Gradients only become more in a micro-step that does not accumulate: at the end all are there. A
    first step may be the highest, before all states are there.
    """
    moments = (point.parts, *point.micro_peaks)
    lasting = [(part, max(m.get(part, 0) for m in moments)) for part in (WEIGHTS, OPTIMIZER)]
    events = [_allocate(n, part, size) for n, (part, size) in enumerate(lasting)]
    events += [(PHASE, DATA, 0), (PHASE, MICRO_STEP, 0)]
    for moment in point.micro_peaks:
        early = gradients if accumulates else min(gradients, moment.get(GRADIENTS, 0))
        passing = {part: n for part, n in moment.items() if part not in (*LASTING, COMMUNICATION)}
        there = {GRADIENTS: early, **passing}.items()
        first = len(events)
        events += [_allocate(first + n, *item, point.operator) for n, item in enumerate(there)]
        events += [(FREE, first + n, NOWHERE) for n in range(len(there))]
    return [*events, _allocate(len(events), GRADIENTS, gradients), (PHASE, STEP, 0)]


def _allocate(number: int, part: str, size: int, operator: str = "") -> Event:
    return (ALLOCATE, number, size, part, operator, NOWHERE)


def on_devices(events: list[Event], request: EstimateRequest) -> list[Event]:
    """Return the record of one device as that of one of those that a request is about."""
    if request.devices == 1:
        return events
    if request.parsed_sharding.distributed_type not in (DEEPSPEED, FSDP):
        return with_buckets(events)
    return sharded_record(events, zero_of_request(request))


def zero_of_request(request: EstimateRequest) -> Zero:
    """Return how a request's training is divided; on a CPU the host is the device."""
    sharding = request.parsed_sharding
    zero = zero_of(request.config, sharding, request.devices, request.hidden)
    return zero if request.cuda else replace(zero, offloads=(False, False))


def with_buckets(events: list[Event]) -> list[Event]:
    """Return the record of one device as that of one of several."""
    start = training_start(events)
    weights = [e for e in live_after(events[:start], {}).values() if e[3] == WEIGHTS]
    bucket_events = [
        (ALLOCATE, _FIRST_BUCKET_ID + n, size, COMMUNICATION, "bucket", NOWHERE)
        for n, size in enumerate(buckets(gradient_sizes(events)))
    ]
    return [*events[:start], *broadcast(e[2] for e in weights), *bucket_events, *events[start:]]


def broadcast(sizes: Iterable[int]) -> list[Event]:
    """Return how weights of these sizes are sent; one that fills its bucket alone is sent as it
    is."""
    ids = [_FIRST_BUCKET_ID - 1 - n for n in range(IN_FLIGHT)]
    events: list[Event] = []
    gathered = [sum(part) for part in in_parts(sizes, [BROADCAST]) if len(part) > 1]
    for n, size in enumerate(gathered):
        if n >= IN_FLIGHT:
            events.append((FREE, ids[n % IN_FLIGHT], NOWHERE))
        allocation = (ALLOCATE, ids[n % IN_FLIGHT], size, COMMUNICATION, "broadcast", NOWHERE)
        events.append(allocation)
    last = range(max(len(gathered) - IN_FLIGHT, 0), len(gathered))
    return events + [(FREE, ids[n % IN_FLIGHT], NOWHERE) for n in last]


def gradient_sizes(events: Iterable[Event]) -> list[int]:
    """Return the bytes of each gradient of the first optimizer step, in the order in which they
    come."""
    sizes: dict[int, int] = {}
    gradients: list[int] = []
    for event in events:
        if event[0] == ALLOCATE:
            sizes[event[1]] = int(event[2])
        elif event[0] == MOVE and event[2] == GRADIENTS:
            gradients.append(sizes.get(event[1], 0))
        elif event[0] == PHASE and event[1] == DATA and gradients:
            break
    return gradients


def buckets(sizes: Iterable[int]) -> list[int]:
    """Return the bytes of the buckets that gradients of these sizes are gathered in."""
    return [sum(part) for part in in_parts(sizes, [FIRST_BUCKET, BUCKET])]


def in_parts(sizes: Iterable[int], limits: Sequence[int]) -> list[list[int]]:
    """Return the sizes in order, a part closed once it reaches its limit; the last limit counts
    on."""
    parts: list[list[int]] = [[]]
    for size in sizes:
        if sum(parts[-1]) >= limits[min(len(parts), len(limits)) - 1]:
            parts.append([])
        parts[-1].append(size)
    return parts if parts[-1] else []
