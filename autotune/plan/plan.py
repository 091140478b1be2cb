"""The memory and speed that are expected of every candidate of a space, before anything runs on the
device.

survey -> bind the space -> variants -> traces in children -> estimates
"""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.estimate.estimate import Estimate
from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind
from autotune.facts.host import host_limit
from autotune.job.job import Job, NoData
from autotune.plan.answer import Answer, OtherDtype, answer_of, in_other_dtype
from autotune.plan.cache import PlanCache
from autotune.plan.children import trace_server
from autotune.plan.choices import Choice, order
from autotune.plan.device import placed, planned_facts, planned_limit
from autotune.plan.draft import Draft
from autotune.plan.estimator import Estimator
from autotune.plan.first_estimate import show_first
from autotune.plan.narrowing import narrowed, planned_space, without_flash
from autotune.plan.progress import Progress
from autotune.plan.questions.changes import Advice
from autotune.plan.questions.ways import FASTEST, MOST_WAYS, Advisor
from autotune.plan.trace_choice import BY_FORMULA, PROMISING, Effort
from autotune.process.run_folder import RunFolder
from autotune.space.bind import SearchSpace, bind
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import DTYPE, Candidate
from autotune.space.packages import packages_to_install
from autotune.space.quantization import not_installed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A space with the estimates of its candidates.

    Attributes:
        limit_bytes: what a process may take on the device.
        host_limit_bytes: what all processes may take of the host; None: nothing is known of that.
        devices: how many train together, on `nodes` machines.
        seconds: wall time of making the plan.
        cached: whether all of it was remembered.
        unfinished: how many candidates had no estimate when the user stopped it; None: never.
        by_formula: how many of the candidates are spread by an engine that was not traced for them.
        choices: the candidates as a person tells them apart, the best first.
        answer: what to use; None: nothing fits.
        packages: what its first choice needs that is not on this machine.
        advice: where nothing is safe, the shortest changes that make the job so.
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
    unfinished: int | None = None
    choices: tuple[Choice, ...] = ()
    answer: Answer | None = None
    packages: tuple[str, ...] = ()
    advice: Advice | None = None
    assumed: tuple[str, ...] = ()

    @property
    def stopped(self) -> bool:
        """True if the user stopped it: it holds the estimates up to then."""
        return self.unfinished is not None

    def ranked(self) -> list[tuple[Candidate, Estimate]]:
        """Return the safe candidates first, then those that fit, in the order of choices."""
        pairs = ((candidate, self.estimates[candidate.key]) for candidate in self.space.candidates)
        return sorted(pairs, key=lambda pair: order(pair[0], pair[1], self.devices))


def plan(
    job: Job,
    definition: SpaceDefinition,
    scratch: Path,
    *,
    device: str | None = None,
    assume: bool = True,
    only_default: bool = False,
    whole_space: bool = False,
    effort: Effort = PROMISING,
    ways: int = MOST_WAYS,
    progress: Progress | None = None,
) -> Plan:
    """Estimate every candidate of a job, on this machine's device or on one of a named kind.

    Args:
        scratch: a folder for the files of the survey and the traces.
        device: a kind of GPU (`h200`, `memory=24GiB`), `cpu`, or None: what the job says.
        assume: whether every package is taken to be there, where the device is elsewhere.
        only_default: the default candidate alone, pinned knobs as pinned.
        whole_space: whether values that no estimate prefers are planned, too (`narrowing.py`).
        effort: for which candidates DeepSpeed and FSDP are traced, where there are many.
        ways: where nothing is safe, so many lists of changes are looked for; 0: none.

    Raises:
        UserError: the job or the kind of device cannot be.
        MachineError: the training stack cannot be run here.
    """
    began, cache, run = time.monotonic(), PlanCache.of_user(), RunFolder(path=scratch)
    job, kind = placed(job, device)
    place = f"{kind!r}, {assume=}, {only_default=}, {whole_space=}, {effort!r}, {ways=}"
    key = cache.key(job, definition, None if kind is None else place)
    stored = None if key is None else cache.read(key)
    show_first(job, definition, kind, None if stored or only_default else progress, assume=assume)
    with trace_server(scratch, elsewhere=kind is not None) as server:
        facts = stored[0] if stored else planned_facts(job, run, server, kind, assume=assume)
        space = _space(job, definition, facts, whole=whole_space, only_default=only_default)
        estimator = Estimator(
            job=job,
            facts=facts,
            limit=planned_limit(job, facts),
            server=server,
            folder=run.path / "traces",
            rows=run.rows,
            effort=effort,
            progress=progress or Progress(),
            remembered=iter(stored[1]) if stored else None,
        ).with_ceilings(kind, len(space.candidates))
        draft = Draft(space, estimator).trace(whole=whole_space)
        advisor = _advisor(estimator, kind, ways)
        answer, advice = (None, None) if only_default else _concluded(draft, estimator, advisor)
    if not stored and key and not draft.stopped:
        cache.write(key, facts, estimator.kept)
    plan = _plan_of(draft, estimator, answer, advice)
    return dataclasses.replace(
        plan,
        seconds=round(time.monotonic() - began, 3),
        cached=stored is not None,
        assumed=(*([kind.assumed] if kind and kind.assumed else []), *plan.assumed),
    )


def _plan_of(
    draft: Draft, estimator: Estimator, answer: Answer | None, advice: Advice | None
) -> Plan:
    """Return what is known of a space, without the time that it took."""
    job, facts, choices = estimator.job, estimator.facts, draft.choices
    return Plan(
        facts=facts,
        space=draft.space,
        choices=choices,
        answer=answer,
        packages=tuple(packages_to_install(job, facts, choices[0].candidate)),
        advice=advice,
        assumed=(*job.assumed, *_assumed_rows(job)),
        estimates=draft.estimates,
        limit_bytes=estimator.limit,
        devices=job.devices.total,
        nodes=job.devices.nodes,
        seconds=0.0,
        cached=False,
        not_installed=not_installed(job, facts),
        host_limit_bytes=host_limit(job.devices.host_memory, facts.device.kind, facts.host),
        by_formula=draft.by_formula,
        unfinished=draft.left_out if draft.stopped else None,
    )


def _space(
    job: Job, definition: SpaceDefinition, facts: Facts, *, whole: bool, only_default: bool
) -> SearchSpace:
    """Return the space to plan: the whole space, the part that an estimate may prefer, or the
    default alone."""
    if not (whole or only_default):
        return planned_space(definition, job, facts)
    space = bind(definition if whole else narrowed(definition, job, facts), job, facts)
    return dataclasses.replace(space, candidates=(space.default(),)) if only_default else space


def _advisor(estimator: Estimator, kind: DeviceKind | None, ways: int) -> Advisor | None:
    if not ways:
        return None
    effort = FASTEST if ways > MOST_WAYS else BY_FORMULA
    return Advisor(estimator, kind, most=ways, effort=effort)


def _concluded(
    draft: Draft, estimator: Estimator, advisor: Advisor | None
) -> tuple[Answer | None, Advice | None]:
    """Return the answer, and where nothing is safe, the changes that would make the job so. Add the
    candidate that the answer is compared with to the draft, unless the user stopped that."""
    job, facts, choices = estimator.job, estimator.facts, draft.choices
    first = choices[0]
    if draft.stopped:
        return answer_of(choices, job, facts), None
    if not first.estimate.fits:
        if advisor is None:
            return None, None
        estimator.progress.nothing_fits(estimator.limit)
        return None, advisor.advice(draft.space, draft.estimates)
    plain = without_flash(first.candidate, draft.space)
    other = in_other_dtype(job, first.candidate)
    groups = [(estimator, [one]) for one in (plain, other) if one is not None]
    estimates = {k: e for group in estimator.estimates_together(groups) for k, e in group.items()}
    if plain is not None:
        draft.add(plain, estimates[plain.key])
    answer = answer_of(draft.choices, job, facts)
    if answer is None or answer.choice.safe:
        return answer and _with_alternative(answer, estimator, estimates), None
    advice = advisor.advice(draft.space, draft.estimates) if advisor else None
    return _with_alternative(answer, estimator, estimates), advice


def _with_alternative(
    answer: Answer, estimator: Estimator, estimates: Mapping[str, Estimate]
) -> Answer:
    """Return the answer; where nobody chose the type of the weights, with the estimate in another.

    Args:
        estimates: those that are there already, by key.
    """
    other = in_other_dtype(estimator.job, answer.choice.candidate)
    if other is None:
        return answer
    estimate = estimates.get(other.key) or estimator.estimates([other])[other.key]
    alternative = OtherDtype(dtype=str(other[DTYPE]), estimate=estimate)
    return dataclasses.replace(answer, alternative=alternative)


def _assumed_rows(job: Job) -> tuple[str, ...]:
    """Return the sentence about the rows of an epoch, where the job does not state them."""
    if not isinstance(job.dataset, NoData) or "rows" in job.dataset.lengths.model_fields_set:
        return ()
    rows = job.dataset.lengths.rows
    return (f"an epoch has {rows:,} rows (`dataset: {{lengths: {{rows: ...}}}}`)",)
