"""The outcome of a probe, by name.

Its child names an exception, which it sees. A kill, a hang or silence its parent names, by how the
process ended and the memory it held; never by the text of a log.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.errors import user_error
from autotune.probe.protocol import Measurement, ProbeRequest
from autotune.process.host_memory import HostUse
from autotune.process.limits import Ending, signal_name
from autotune.process.memory_errors import is_of_the_host, is_out_of_memory
from autotune.training.spec import Unsupported
from autotune.units import format_bytes

_DEATHS_BY_MEMORY = {"SIGKILL", "SIGABRT", "SIGSEGV", "SIGBUS"}
NEAR_LIMIT = 0.85
"""A child that dies or hangs holding this share of its limit is taken to have run out of memory."""
WAITED = "processor_wait_share"
"""The field of events and of measurements."""
QUIET = 0.1
"""The share of waiting for a core above which a probe shows the machine's load. Of 494 probes on
two idle cores half waited for 1% or less, one in twenty for more than 8%."""
INTERRUPTED = "the run was interrupted"
"""The reason to stop a probe that says nothing of its candidate."""
QUIET_VARIABLE = "AUTOTUNE_QUIET"
"""The variable that sets another share, for machines that are never quiet."""


# -- by its child


def beyond_limit(peak_bytes: int | None, limit_bytes: int | None) -> int:
    """Return bytes by which a probe that ended well took more than it was given; 0 where it did
    not.

    What enforces the limit does not see all that the peak counts: `RLIMIT_DATA` no pages of
    library code, the CUDA allocator nothing of what libraries take for themselves.
    """
    if peak_bytes is None or limit_bytes is None:
        return 0
    return max(peak_bytes - limit_bytes, 0)


def outcome_and_remark(beyond_bytes: int, retries: int) -> tuple[str, str]:
    """Return the outcome of a training that came to its end, and a remark for its reason.

    An allocator that had to give its cache back to find memory will be at its limit again in the
    long run: it is slow there, and what it finds depends on how its memory is cut up.
    """
    if beyond_bytes:
        return "oom", f", and ended {format_bytes(beyond_bytes)} above its memory limit"
    if retries:
        times = "once" if retries == 1 else f"{retries} times"
        return "unstable", f"; the allocator had to empty its cache {times} to find memory"
    return "ok", ""


def outcome_of(error: BaseException, stage: str, device_kind: str) -> str:
    """Return the outcome an exception stands for. On a CPU the host's memory is the device's.

    A package that is not installed is `unsupported` at any stage (optimizers are imported when
    training begins). So is a refusal while the trainer is put together, which is the stack's own
    word that it cannot do this; the same exception types during training are crashes.
    """
    if is_out_of_memory(error):
        return "host_oom" if device_kind == "cuda" and is_of_the_host(error) else "oom"
    if type(error).__name__ == "NotFinite":
        return "unstable"
    refusals = (ValueError, NotImplementedError, TypeError)
    if isinstance(error, Unsupported | ImportError) or (
        stage in {"plan", "build"} and isinstance(error, refusals)
    ):
        return "unsupported"
    return "crash"


# -- by its parent


def name_outcome(
    ending: Ending, reply: Any | None, request: ProbeRequest, *, kernel_killed: bool = False
) -> Measurement:
    """Return the measurement of a probe that ended as `ending` says and left `reply`."""
    if ending.why == "host":
        return _beyond_host(ending.host, request)
    if ending.why == "stopped":
        return stopped_measurement(ending.stop_reason or "it cannot win", ending.events)
    if ending.why == "wall":
        return Measurement(
            outcome="timeout",
            reason=f"still running after {ending.seconds:.0f} s",
            processor_wait_share=_last_share(ending.events),
        )
    if ending.why == "stall":
        return _stalled(ending, request)
    if ending.why == "lost":
        return _lost(ending, request, kernel_killed)
    if isinstance(reply, dict):
        return measurement_of_reply(reply)
    return _silent(ending, request, kernel_killed)


def measurement_of_reply(reply: dict[str, Any]) -> Measurement:
    """Return the measurement that a child's reply is; a crash where it makes no sense."""
    try:
        measurement = Measurement.from_plain(reply)
    except (TypeError, ValueError) as error:
        return Measurement(outcome="crash", reason=f"the worker wrote an invalid reply: {error}")
    figures = (measurement.tokens_per_s, measurement.peak_memory_bytes)
    if measurement.outcome == "ok" and None in figures:
        return Measurement(outcome="crash", reason="the worker's reply says ok, but has no figures")
    return measurement


def disturbed(measurement: Measurement) -> Measurement:
    """Return a probe whose threads waited for cores that others took, as `busy`: it has no rank,
    and is tried again later. Its memory figures stay."""
    share = measurement.processor_wait_share
    if measurement.outcome not in ("ok", "timeout") or share is None or is_quiet(share):
        return measurement
    return dataclasses.replace(measurement, outcome="busy", reason=busy_text(share))


def is_quiet(share: float | None) -> bool:
    """True if threads that waited for a core for this share of the time were hardly disturbed.

    Raises:
        UserError: the variable holds something else than a share.
    """
    text = os.environ.get(QUIET_VARIABLE, str(QUIET))
    try:
        return (share or 0.0) <= float(text)
    except ValueError:
        what = f"`{text}` is not a share of time"
        raise user_error(what, where=QUIET_VARIABLE, hint="such as 0.3") from None


def busy_text(share: float) -> str:
    """Return the words for a machine on which threads waited for a core for this share of the
    time."""
    return f"the machine was busy {share:.0%} of the time"


def _last_share(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the last share of waiting that a child reported before it was ended."""
    shares = [event[WAITED] for event in events if event.get(WAITED) is not None]
    return shares[-1] if shares else None


def stopped_measurement(reason: str, events: Sequence[Mapping[str, Any]]) -> Measurement:
    """Return the measurement of a probe that was ended on purpose, by what it reported so far."""
    if reason == INTERRUPTED:
        return Measurement(outcome="interrupted", reason=INTERRUPTED)
    estimates = [event for event in events if event.get("event") == "estimate"]
    return Measurement(
        processor_wait_share=_last_share(events),
        outcome="stopped",
        reason=reason,
        tokens_per_s=estimates[-1].get("tokens_per_s") if estimates else None,
        relative_uncertainty=estimates[-1].get("relative_uncertainty") if estimates else None,
    )


def _beyond_host(use: HostUse, request: ProbeRequest) -> Measurement:
    count = request.parsed_sharding.num_processes
    subject = f"{count} processes" if count > 1 else "the process"
    peak, limit = format_bytes(use.peak_bytes or 0), format_bytes(use.limit_bytes or 0)
    return Measurement(
        outcome="host_oom",
        reason=f"{subject} took {peak} of the host's memory while {use.when}; the limit is {limit}",
        memory_limit_bytes=request.memory_limit_bytes,
        missing_bytes=use.missing_bytes,
    )


def _stalled(ending: Ending, request: ProbeRequest) -> Measurement:
    resident, limit = ending.rss_at_stop_bytes, request.process_limit_bytes
    if request.device_kind == "cpu" and resident and limit and resident >= NEAR_LIMIT * limit:
        return Measurement(
            outcome="oom",
            reason=f"hung while holding {format_bytes(resident)} of {format_bytes(limit)}",
            memory_limit_bytes=request.memory_limit_bytes,
            inferred=True,
        )
    return Measurement(
        outcome="timeout", reason="hung: no progress and no processor time", inferred=True
    )


def _lost(ending: Ending, request: ProbeRequest, kernel_killed: bool) -> Measurement:
    """Return the measurement of a child whose server is gone."""
    if ending.stop_reason is not None:
        return Measurement(outcome="crash", reason=ending.stop_reason, inferred=True)
    if kernel_killed:
        return Measurement(
            outcome="host_oom" if request.device_kind == "cuda" else "oom",
            reason="the kernel, which ran out of memory, ended the process that starts probes",
            memory_limit_bytes=request.memory_limit_bytes,
            inferred=True,
        )
    reason = "another process ended the process that starts probes"
    return Measurement(outcome="interrupted", reason=reason, inferred=True)


TRIED_AGAIN = "; tried again, as at first "
"""Text between the reasons of a second try and of the first."""


def is_by_another(measurement: Measurement) -> bool:
    """True if another process ended the probe, which says nothing of its candidate."""
    return measurement.outcome == "interrupted" and measurement.inferred


def of_both(first: Measurement, second: Measurement) -> Measurement:
    """Return the measurement of a probe that was tried again because another process ended it: a
    crash where that ended the second one, too."""
    named, reason = second.outcome, f"{second.reason}{TRIED_AGAIN}{first.reason}"
    if is_by_another(second):
        named, reason = "crash", f"{second.reason}, twice: something ends it each time"
    seconds = round(first.seconds + second.seconds, 4)
    return dataclasses.replace(second, outcome=named, reason=reason, seconds=seconds)


def cut_short(measurement: Measurement, own_s: float, most_s: float) -> Measurement:
    """Return a probe that had less than its own time as interrupted, where it took all of that:
    with more it might have ended well. One that hung would have hung."""
    if measurement.outcome != "timeout" or measurement.inferred or most_s >= own_s:
        return measurement
    reason = f"the total budget left it {max(most_s, 0.0):.0f} s"
    return dataclasses.replace(measurement, outcome="interrupted", reason=reason)


def _silent(ending: Ending, request: ProbeRequest, kernel_killed: bool) -> Measurement:
    """Return the measurement of a child that ended without a whole reply."""
    if ending.signal is None:
        reason = f"ended with exit code {ending.exit_code} before its reply was complete"
        return Measurement(outcome="crash", reason=reason)
    name = signal_name(ending.signal)
    limit, resident = request.process_limit_bytes, ending.max_rss_bytes
    is_near_limit = (
        request.device_kind == "cpu" and limit and resident and resident >= NEAR_LIMIT * limit
    )
    # A refused allocation in a thread of C++ ends in abort() or worse, without a word.
    if (name == "SIGKILL" and kernel_killed) or (is_near_limit and name in _DEATHS_BY_MEMORY):
        circumstance = (
            "by the kernel, which ran out of memory" if kernel_killed else "near its memory limit"
        )
        return Measurement(
            outcome="host_oom" if request.device_kind == "cuda" else "oom",
            reason=f"{name} {circumstance}, holding {format_bytes(resident or 0)}",
            memory_limit_bytes=request.memory_limit_bytes,
            inferred=True,
        )
    if ending.by_another:
        reason = f"another process ended it by {name}"
        return Measurement(outcome="interrupted", reason=reason, inferred=True)
    return Measurement(outcome="crash", reason=f"ended by {name}")
