"""The bundle of a plan's answer: marked until it was launched where it trains. Pure."""

import hashlib
import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Self

from autotune.bundle.bundle import (
    RECOMMENDATION,
    as_json,
    bundle_files,
    launched_files,
    origin_plain,
    requirements,
)
from autotune.bundle.readme import heading, how_to_launch, knobs_table, page, plain_name, step_name
from autotune.errors import in_one_line
from autotune.estimate.estimate import Estimate
from autotune.job.job import Job, KnobValue, NoData
from autotune.job.methods import METHODS
from autotune.job.yaml_file import to_yaml
from autotune.plain_data import from_plain
from autotune.plan.answer import SPEED_ERROR, training_s
from autotune.search.recommend import Ranked, Recommendation
from autotune.space.attention import ATTENTION, is_downloaded
from autotune.space.knobs import Candidate, from_knobs
from autotune.space.packages import packages_to_install
from autotune.space.trl_config import Settings
from autotune.units import format_bytes, format_seconds

MARK = "estimated, not verified"
KEY = "_autotune"
"""JSON has no comments: DeepSpeed, transformers and accelerate ignore this key."""
_START = "set -euo pipefail\n"
"""The line of our scripts after which they begin to work."""
JOB_FILE = "run/job.yaml"
"""Not beside the others: `autotune check` tells files apart by their fields."""
_JOB_HEADER = """\
# Written by autotune: the job of this bundle, read by `autotune verify`. Where model or data lie
# elsewhere on the machine that trains, correct their paths here first.
"""


def marked(files: Mapping[str, str], why: str | None = None) -> dict[str, str]:
    """Return the files of a bundle with the mark in their first lines; scripts print it as they
    start.

    Args:
        files: file name -> text.
        why: the reason why a verification failed; None: there was none yet.
    """
    mark = MARK if why is None else f"{MARK}: {in_one_line(' '.join(why.split()))}"
    return {name: _marked(name, text, mark) for name, text in files.items()}


def _marked(name: str, text: str, mark: str) -> str:
    kind = PurePath(name).suffix
    if kind == ".json":
        indent = " " * (len(text) - len(text[1:].lstrip()) - 2)
        mark_line = f"{indent}{json.dumps(KEY)}: {json.dumps(mark, ensure_ascii=False)},\n"
        return text.replace("{\n", f"{{\n{mark_line}", 1)
    if kind == ".md":
        title, _, rest = text.partition("\n")
        return f"{title}\n\n**{mark}**\n{rest}"
    comment = "".join(f"# {line}\n" for line in textwrap.wrap(mark, 98))
    if kind in (".sh", ".slurm"):
        warning = shlex.quote(f"{name}: {mark} (`autotune verify FOLDER` verifies it)")
        text = text.replace(_START, f"{_START}echo {warning} >&2\n", 1)
    first, end, rest = text.partition("\n") if text.startswith("#!") else ("", "", text)
    return f"{first}{end}{comment}{rest}"


def digests(files: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each file's text by its name, to detect later edits."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())}


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The configuration of a plan's answer, and its estimates.

    Attributes:
        device: the device it was planned for.
        candidates: the number of candidates in the plan.
        limit_bytes: the memory that a process may take there.
    """

    candidate: Candidate
    estimate: Estimate
    device: str
    candidates: int
    limit_bytes: int

    def plain(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "knobs": self.candidate.knobs,
            "estimate": self.estimate.plain() | {"fits": self.estimate.fits},
            "device": self.device,
            "candidates": self.candidates,
            "limit_bytes": self.limit_bytes,
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Return what `plain` gave as JSON data."""
        return cls(
            candidate=from_knobs(from_plain(dict[str, KnobValue], data["knobs"])),
            estimate=from_plain(Estimate, data["estimate"]),
            device=from_plain(str, data["device"]),
            candidates=from_plain(int, data["candidates"]),
            limit_bytes=from_plain(int, data["limit_bytes"]),
        )


def planned_files(
    planned: Planned,
    chosen: Settings,
    *,
    python: str,
    verification: dict[str, Any] | None = None,
) -> dict[str, str]:
    """Return file name -> text of a bundle that is estimated, not verified, each file marked so.

    Args:
        chosen: settings of its candidate.
        python: interpreter that launches.
        verification: a verification that failed; None: it was not launched yet.

    Raises:
        UserError: what is asked for makes files that contradict each other.
    """
    plain = origin_plain(chosen) | {
        "chosen": {"probe": None, "knobs": planned.candidate.knobs, "measurement": None},
        "reasons": [_answer(planned)],
        "verified": False,
        "verification": verification,
    }
    files = {
        **launched_files(chosen, python),
        "README.md": _readme(planned, chosen, verification),
    }
    return _with_job(files, plain, planned, chosen.job, verification)


def verified_files(
    planned: Planned,
    measured: Ranked,
    chosen: Settings,
    *,
    python: str,
    verification: dict[str, Any],
) -> dict[str, str]:
    """Return file name -> text of the same bundle after its launch: no mark, measured figures.
    Arguments are those of `planned_files`."""
    readings = f"{measured.readings} probe{'s' if measured.readings > 1 else ''}"
    reasons = (_answer(planned), *_held_against(planned, measured))
    files = bundle_files(
        Recommendation(chosen=measured, reasons=reasons, ties=(), runners_up=()),
        chosen,
        python=python,
        origin=f"Planned by autotune for {planned.device}; measured by {readings} on "
        f"{plain_name(chosen.facts.device.name)}.",
        verification=verification,
    )
    plain = json.loads(files.pop(RECOMMENDATION))
    return _with_job(files, plain, planned, chosen.job, None)


def _with_job(
    files: Mapping[str, str],
    plain: Mapping[str, Any],
    planned: Planned,
    job: Job,
    verification: dict[str, Any] | None,
) -> dict[str, str]:
    """Return the files with the job, and with the data that a verification needs."""
    verified = bool(plain["verified"])
    why = None if verification is None else str(verification["reason"])

    def final(texts: Mapping[str, str]) -> dict[str, str]:
        return dict(texts) if verified else marked(texts, why)

    done = final(files)
    known = {"planned": planned.plain(), "files": digests(done)}
    rest = {
        JOB_FILE: _JOB_HEADER + to_yaml(job.plain()),
        RECOMMENDATION: as_json({**plain, **known}),
    }
    return {**done, **final(rest)}


def _answer(planned: Planned) -> str:
    return f"the answer of a plan of {planned.candidates} candidates for {planned.device}"


def _held_against(planned: Planned, measured: Ranked) -> Iterator[str]:
    """Yield how far the estimates were off, in sentences."""
    estimate, peak = planned.estimate, measured.peak_memory_bytes
    yield (
        f"estimated peak {format_bytes(estimate.peak_memory_bytes)}, "
        f"{100 * (estimate.peak_memory_bytes / peak - 1):+.0f}% off what was measured"
    )
    if estimate.tokens_per_s is None:
        return
    share = estimate.tokens_per_s / measured.tokens_per_s - 1
    yield f"estimated {estimate.tokens_per_s:.0f} tokens/s, {100 * share:+.0f}% off"
    if abs(share) > SPEED_ERROR:
        yield (
            "speeds of this plan are off by more than it said: another candidate may be faster "
            "here, which `autotune run` measures"
        )


def _readme(planned: Planned, chosen: Settings, verification: dict[str, Any] | None) -> str:
    facts, estimate = chosen.facts, planned.estimate
    lines = [
        heading(facts.model.name, "planned configuration"),
        "",
        f"The answer of a plan by autotune for {planned.device}, out of {planned.candidates} "
        "candidates. It was not run: all figures are estimates. `autotune verify FOLDER`, on the "
        "machine that trains, measures and launches it there; where that goes well, the files "
        "lose their mark.",
        *how_to_launch(chosen),
        "",
        "## What to expect",
        "",
        *_expectations(planned, chosen),
        "",
        "## What it assumes",
        "",
        *_assumptions(planned, chosen),
        "",
        "## Verified",
        "",
        "Not verified." if verification is None else f"No: {verification['reason']}.",
        "",
        "## The knobs",
        "",
        *knobs_table(planned.candidate),
    ]
    notes = [f"- {note}" for note in estimate.notes]
    return page([*lines, *(["", "## Notes", "", *notes] if notes else [])])


def _expectations(planned: Planned, chosen: Settings) -> Iterator[str]:
    estimate = planned.estimate
    job_s = training_s(chosen.job, chosen.facts, planned.candidate, estimate)[1]
    if estimate.tokens_per_s is not None and estimate.step_time_s is not None:
        yield f"- {estimate.tokens_per_s:.0f} real tokens/s, +-{100 * SPEED_ERROR:.0f}%"
        yield f"- {format_seconds(estimate.step_time_s)} per {step_name(planned.candidate)}"
    yield (
        f"- peak memory {format_bytes(estimate.peak_memory_bytes)} of "
        f"{format_bytes(planned.limit_bytes)}, on the worst batch of the data; it runs out of "
        f"memory with probability {estimate.p_oom:.0%}"
    )
    if job_s is not None:
        full = ", if every completion has its full length"
        online = METHODS[chosen.job.method].online
        yield (
            f"- {format_seconds(job_s)} in all, without evaluation and saving"
            f"{full if online else ''}"
        )


def _assumptions(planned: Planned, chosen: Settings) -> Iterator[str]:
    """Yield the requirements of the machine that trains: devices, packages, paths."""
    job, facts = chosen.job, chosen.facts
    yield f"- {job.devices.total} x {planned.device}"
    packages = ", ".join(f"`{package}`" for package in requirements(chosen))
    yield f"- Python {facts.stack.python} with {packages}"
    own = packages_to_install(job, facts, planned.candidate)
    if own:
        yield f"- {', '.join(own)}, not installed where this was planned, so that it was not tried"
    if is_downloaded(chosen.config.get(ATTENTION), facts):
        yield "- the kernels of attention come from the hub, when the training first starts"
    yield f"- the model is `{chosen.config['model_name_or_path']}`"
    if not isinstance(job.dataset, NoData):
        yield f"- the data are `{job.dataset}`"
    yield from (f"- {assumption}" for assumption in job.assumed)
