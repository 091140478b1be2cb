"""What training on several devices makes of the record of one. Pure.

DDP gives every device a whole copy (ZeRO: `zero.py`). torch's DistributedDataParallel exchanges
gradients in buckets of its own, which live as long as the model (`gradient_as_bucket_view=False`,
its default and accelerate's): as many bytes as there are gradients. The first bucket closes at
1 MiB, the others at 25 MiB (torch/nn/parallel/distributed.py). Before, it sends the weights of the
first process to all, gathered to 250 MiB each, two at a time: of a small adapter's training that is
the peak (torch/csrc/distributed/c10d/comm.cpp). Not modelled: that buckets are rebuilt after the
first step, in the order in which gradients came.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autotune.estimate.formula.zero import Zero, sharded_record, zero_of
from autotune.estimate.protocol import EstimateRequest
from autotune.estimate.records.events import (
    ALLOCATE,
    COMMUNICATION,
    DATA,
    FREE,
    GRADIENTS,
    MOVE,
    NOWHERE,
    PHASE,
    WEIGHTS,
    Event,
    live_after,
    training_start,
)
from autotune.space.sharding.sharding import DEEPSPEED, FSDP

FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
BROADCAST, IN_FLIGHT = 250 << 20, 2
_FIRST_ID = 1 << 43


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
        (ALLOCATE, _FIRST_ID + n, size, COMMUNICATION, "bucket", NOWHERE)
        for n, size in enumerate(buckets(gradient_sizes(events)))
    ]
    return [*events[:start], *broadcast(e[2] for e in weights), *bucket_events, *events[start:]]


def broadcast(sizes: Iterable[int]) -> list[Event]:
    """Return how weights of these sizes are sent; one that fills its bucket alone is sent as it
    is."""
    ids = [_FIRST_ID - 1 - n for n in range(IN_FLIGHT)]
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
