"""How the search of a script is concluded: recommend, write what starts it, start that."""

import dataclasses

from autotune.process.messages import ChildFolder
from autotune.run.conclusion import searched_result, unknown_result
from autotune.run.room import has_time_to_verify, job_seconds, probing_s
from autotune.run.session import Result
from autotune.run.verdict import Verification
from autotune.script.command import HOOK, ScriptCommand
from autotune.script.files import ScriptBundle, files_of
from autotune.script.session import ScriptSession
from autotune.script.space import changes_of, environment_of
from autotune.search.job_time import Saving
from autotune.search.recommend import NothingFits, Recommendation, recommend

MAX_VERIFICATIONS = 2


def without(session: ScriptSession, first: NothingFits, reason: str) -> Result:
    """Return what a search comes to that has no stable candidate: nothing fits, or nobody knows."""
    unknown = unknown_result(session, reason)
    if unknown is not None:
        return unknown
    nothing = searched_result(session, "nothing_fits", reason)
    return dataclasses.replace(nothing, nothing_fits=first)


def saving(session: ScriptSession, chosen: Recommendation) -> Saving | None:
    """Return what the search brought against the script's own settings, where these were
    measured."""
    ranked = (chosen.chosen, *chosen.ties, *chosen.runners_up)
    default = session.space.default().key
    unchanged = next((each for each in ranked if each.candidate.key == default), None)
    job_s = job_seconds(session, chosen.chosen)
    if unchanged is None or job_s is None:
        return None
    return Saving(
        probing_s=probing_s(session.study.records()),
        job_s=job_s,
        default_s=job_s * chosen.chosen.tokens_per_s / unchanged.tokens_per_s,
        measured=True,
        default="the script's own settings",
    )


def emitted(
    session: ScriptSession, first: Recommendation
) -> tuple[Recommendation, Verification | None]:
    """Return what is recommended in the end, its files written; started too, unless told not to."""
    command = session.starter
    if not isinstance(command, ScriptCommand):
        return first, None
    write_files(session, command, first, None)
    if not session.options.verify or not has_time_to_verify(session, first):
        return first, None
    passed_over: dict[int, str] = {}
    following: Recommendation | NothingFits = first
    judged: list[tuple[Recommendation, Verification]] = []
    while isinstance(following, Recommendation) and len(judged) < MAX_VERIFICATIONS:
        bundle = write_files(session, command, following, None)
        session.listener.verifying(following)
        launched = ScriptCommand(words=("bash", str(session.run.launch)), folder=command.folder)
        folder = ChildFolder(path=session.run.verification)
        verdict = session.verify(launched, following.chosen, folder, by_flags=bundle.by_flags)
        session.listener.verified(verdict)
        judged.append((following, verdict))
        if verdict.verified or verdict.was_disturbed:
            break
        passed_over[following.chosen.number] = verdict.reason
        following = recommend(session.study.records(), session.allowed_bytes, passed_over)
    best = next((pair for pair in judged if pair[1].verified), judged[0])
    write_files(session, command, *best)
    return best


def write_files(
    session: ScriptSession,
    command: ScriptCommand,
    recommendation: Recommendation,
    verification: Verification | None,
) -> ScriptBundle:
    """Put `launch.sh` and what belongs to it into the run folder; what they say."""
    candidate = recommendation.chosen.candidate
    bundle = ScriptBundle(
        words=command.words,
        folder=str(command.folder),
        look=session.look,
        changes=changes_of(candidate, session.look),
        environment=environment_of(candidate),
        probe=recommendation.chosen.number,
        measurement=recommendation.chosen.measurement,
        reasons=recommendation.reasons,
        verification=None if verification is None else verification.plain(),
    )
    hook = (HOOK / "sitecustomize.py").read_text(encoding="utf-8")
    session.run.write_bundle(session.run.bundle, files_of(bundle, hook))
    return bundle
