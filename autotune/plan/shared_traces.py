"""One trace for every way to spread a training: that of data parallelism, from which the estimates
of DeepSpeed's stages and of FSDP2 follow by formula. Pure.

A space of several devices multiplies its ways through the program by a dozen engines. What an
engine changes is known roughly without tracing it (`estimate/formula/devices.py`); that is enough
to see which of them are worth a trace of their own (`engines.py`).
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.estimate.formula.devices import sharded_point, zero_of_request
from autotune.estimate.protocol import EstimateReply, EstimateRequest, Point
from autotune.plan.exchange import is_wide, trained_parameters
from autotune.plan.variants import Member, VariantTask
from autotune.space.sharding.sharding import Sharding

_OWN = ("points", "sharding", "deepspeed", "config")
"""What differs between tasks of one base; of the configuration, only the variant counts."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """What is traced for several tasks.

    Attributes:
        task: the trace, with the candidates of all of them.
        members: index of each of them, and for each of its points that of the same point here.
    """

    task: VariantTask
    members: Mapping[int, tuple[int, ...]]


def bases(tasks: Sequence[VariantTask]) -> list[Base]:
    """Return the fewest traces from which every task can be answered, if only by formula."""
    groups: dict[str, list[int]] = {}
    for number, task in enumerate(tasks):
        groups.setdefault(_key(task), []).append(number)
    return [_base(tasks, numbers) for numbers in groups.values()]


def _key(task: VariantTask) -> str:
    """Return the same text for tasks that differ in their engine and their points only."""
    plain = task.request.plain()
    identity = {name: value for name, value in plain.items() if name not in _OWN}
    return json.dumps([identity, task.traced.key], sort_keys=True)


def _base(tasks: Sequence[VariantTask], numbers: Sequence[int]) -> Base:
    points: list[Point] = []
    members: dict[int, tuple[int, ...]] = {}
    among: list[Member] = []
    for number in numbers:
        task_points = tasks[number].request.points
        points += [point for point in task_points if point not in points]
        members[number] = tuple(points.index(point) for point in task_points)
        among += [
            dataclasses.replace(member, place=members[number][member.place])
            for member in tasks[number].members
        ]
    first = next((tasks[n] for n in numbers if not tasks[n].engine), None)
    request = first.request if first is not None else _without_engine(tasks[numbers[0]].request)
    task = VariantTask(
        request=dataclasses.replace(request, points=points),
        traced=tasks[numbers[0]].traced,
        members=tuple(among),
    )
    return Base(task=task, members=members)


def _without_engine(request: EstimateRequest) -> EstimateRequest:
    """Return the same training with a whole copy on each device."""
    kind = "MULTI_CPU" if request.cuda is None else "MULTI_GPU"
    copies = Sharding()
    if request.devices > 1:
        copies = Sharding(distributed_type=kind, num_processes=request.devices)
    return dataclasses.replace(request, sharding=copies.plain(), deepspeed=None)


def shared_out(
    base: Base, reply: EstimateReply, tasks: Sequence[VariantTask]
) -> Iterator[tuple[int, EstimateReply]]:
    """(index of a task, its reply) for all members of a base: an engine's by formula."""
    for number, places in base.members.items():
        task = tasks[number]
        if reply.problem is not None:
            yield number, dataclasses.replace(reply, by_formula=task.engine)
            continue
        task_reply = dataclasses.replace(reply, points=[reply.points[place] for place in places])
        yield number, _by_formula(task_reply, task) if task.engine else task_reply


def _by_formula(reply: EstimateReply, task: VariantTask) -> EstimateReply:
    request, settings = task.request, task.members[0].settings
    zero = zero_of_request(request)
    width = 4 if is_wide(request.config) else 2
    gradients = width * trained_parameters(settings.job, settings.facts, request.config)
    points = [
        sharded_point(answer, zero, gradients=gradients, accumulates=point.accumulates)
        for point, answer in zip(request.points, reply.points, strict=True)
    ]
    return dataclasses.replace(reply, points=points, by_formula=True)
