"""What every candidate of a space is expected to take, before anything runs on the device.

survey -> bind the space -> variants -> traces in children -> estimates
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind
from autotune.facts.host import host_limit
from autotune.job.job import Job
from autotune.plan.answer import Answer, answer_of, in_bfloat16
from autotune.plan.cache import PlanCache
from autotune.plan.ceilings import WORTH_MEASURING, ceilings_of
from autotune.plan.children import Servers
from autotune.plan.choices import Choice, choices, order
from autotune.plan.device import device_facts, placed, planned_limit
from autotune.plan.engines import PROMISING, Effort
from autotune.plan.estimator import Estimator
from autotune.plan.narrowing import narrowed
from autotune.plan.progress import Progress
from autotune.plan.questions.ways import Advice, Advisor
from autotune.plan.variants import VariantTask
from autotune.probe.survey import survey
from autotune.process.run_folder import RunFolder
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate
from autotune.space.quantization import not_installed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A space with what is expected of each of its candidates.

    Attributes:
        limit_bytes: what a process may take on the device.
        host_limit_bytes: what all processes may take of the host; None: nothing is known of that.
        devices: how many train together, on `nodes` machines.
        seconds: wall time of making the plan.
        cached: whether all of it was remembered.
        by_formula: how many of the candidates are spread by an engine that was not traced for them.
        choices: the candidates as a person tells them apart, the best first.
        answer: what to use; None: nothing fits.
        advice: where nothing fits, the shortest changes that make the job fit.
        assumed: what the job leaves open and was assumed, as sentences.
        not_installed: what the job needs to be run that is not here, as a sentence; None: nothing.
    """

    facts: Facts
    space: SearchSpace
    estimates: Mapping[str, Estimate]
    limit_bytes: int
    devices: int
    seconds: float
    cached: bool
    not_installed: str | None = None
    nodes: int = 1
    host_limit_bytes: int | None = None
    by_formula: int = 0
    choices: tuple[Choice, ...] = ()
    answer: Answer | None = None
    advice: Advice | None = None
    assumed: tuple[str, ...] = ()

    def ranked(self) -> list[tuple[Candidate, Estimate]]:
        """The safe candidates first, then those that fit; the fastest first where speed is known,
        else the leanest."""
        pairs = ((candidate, self.estimates[candidate.key]) for candidate in self.space.candidates)
        return sorted(pairs, key=lambda pair: order(pair[1]))


def plan(
    job: Job,
    definition: SpaceDefinition,
    scratch: Path,
    *,
    device: str | None = None,
    only_default: bool = False,
    whole_space: bool = False,
    effort: Effort = PROMISING,
    progress: Progress | None = None,
) -> Plan:
    """Estimate every candidate of a job, on this machine's device or on one of a named kind.

    Args:
        scratch: a folder for the files of the survey and the traces.
        device: a kind of GPU (`h200`, `memory=24GiB`), `cpu`, or None: what the job says.
        only_default: the default candidate alone, pinned knobs as pinned.
        whole_space: whether values that no estimate prefers are planned, too (`narrowing.py`).
        effort: for which candidates DeepSpeed and FSDP are traced, where there are many.

    Raises:
        UserError: the job or the kind of device cannot be.
        MachineError: the training stack cannot be run here.
    """
    (job, kind), began, cache = placed(job, device), time.monotonic(), PlanCache.of_user()
    place = None if kind is None else f"{kind!r}, {only_default=}, {whole_space=}, {effort!r}"
    key = cache.key(job, definition, place)
    stored = None if key is None else cache.read(key)
    run = RunFolder(path=scratch)
    with Servers(scratch) as servers:
        facts = stored[0] if stored else device_facts(survey(job, run, servers.first), kind)
        space = bind(definition if whole_space else narrowed(definition, job, facts), job, facts)
        space = _only_default(space) if only_default else space
        estimator = _estimator(job, facts, space, run, servers, kind, effort, progress)
        replies = _Replies(estimator, None if stored is None else stored[1])
        tasks = estimator.tasks(space.candidates)
        estimates = estimator.combined(tasks, replies.of(tasks))
        folded = _choices(space, estimates, job)
        answer = None if only_default else _answer(folded, estimator, replies)
        stuck = answer is None and not only_default
        advice = Advisor(estimator, kind).shortest(estimates, space) if stuck else None
    if not stored and key and not any(map(_failed, replies.given)):
        cache.write(key, facts, replies.given)
    return Plan(
        facts=facts,
        space=space,
        choices=tuple(folded),
        answer=answer,
        advice=advice,
        assumed=tuple(job.assumed),
        estimates=estimates,
        limit_bytes=estimator.limit,
        devices=job.devices.total,
        nodes=job.devices.nodes,
        seconds=round(time.monotonic() - began, 3),
        cached=stored is not None,
        not_installed=not_installed(job, facts),
        host_limit_bytes=host_limit(job, facts.device.kind, facts.host),
        by_formula=_by_formula(tasks, replies.given),
    )


def _only_default(space: SearchSpace) -> SearchSpace:
    return dataclasses.replace(space, candidates=(space.default(),))


class _Replies:
    """Replies to tasks: those that are remembered, in their order; else new ones.

    Attributes:
        given: all replies so far.
    """

    def __init__(self, estimator: Estimator, remembered: Sequence[EstimateReply] | None) -> None:
        self._estimator, self._remembered = estimator, remembered
        self.given: list[EstimateReply] = []

    def of(self, tasks: Sequence[VariantTask]) -> list[EstimateReply]:
        """The replies to these tasks."""
        if self._remembered is None:
            replies = self._estimator.replies(tasks)
        else:
            begin = len(self.given)
            replies = list(self._remembered[begin : begin + len(tasks)])
        self.given += replies
        return replies


def _answer(folded: Sequence[Choice], estimator: Estimator, replies: _Replies) -> Answer | None:
    """What to use; where weights are in float32 because nobody chose, with what bfloat16 takes."""
    answer = answer_of(folded, estimator.job, estimator.facts)
    other = None if answer is None else in_bfloat16(estimator.job, answer.choice.candidate)
    if answer is None or other is None:
        return answer
    tasks = estimator.tasks([other])
    estimate = estimator.combined(tasks, replies.of(tasks))[other.key]
    return dataclasses.replace(answer, alternative=estimate)


def _estimator(
    job: Job,
    facts: Facts,
    space: SearchSpace,
    run: RunFolder,
    servers: Servers,
    kind: DeviceKind | None,
    effort: Effort,
    progress: Progress | None,
) -> Estimator:
    """What estimates candidates; with speeds where they are tabled, or worth to be measured."""
    cache, progress = PlanCache.of_user(), progress or Progress()
    ceilings = ceilings_of(
        facts,
        kind,
        cache,
        servers,
        run.path / "ceilings",
        progress,
        worth_measuring=len(space.candidates) >= WORTH_MEASURING,
    )
    return Estimator(
        job=job,
        facts=facts,
        limit=planned_limit(job, facts),
        servers=servers,
        folder=run.path / "traces",
        rows=run.rows,
        ceilings=ceilings,
        effort=effort,
        cache=cache,
        progress=progress,
    )


def _choices(space: SearchSpace, estimates: Mapping[str, Estimate], job: Job) -> list[Choice]:
    pairs = [(candidate, estimates[candidate.key]) for candidate in space.candidates]
    return choices(space, pairs, job.devices.total)


def _failed(reply: EstimateReply) -> bool:
    return bool(reply.problem or reply.engine_problem)


def _by_formula(tasks: Sequence[VariantTask], replies: Sequence[EstimateReply]) -> int:
    pairs = zip(tasks, replies, strict=False)
    return sum(len(task.members) for task, reply in pairs if reply.by_formula)
