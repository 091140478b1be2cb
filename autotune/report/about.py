"""What a run was about: its job, its machine, its versions, and how to do it again."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.process.run_folder import RunFolder
from autotune.units import format_bytes, format_seconds

_OPTIONS = {
    "--no-history": ("history", False),
    "--no-verify": ("verify", False),
    "--accept-noise": ("accept_noise", True),
}
Pairs = tuple[tuple[str, str], ...]


def about_job(job: Job, facts: Facts) -> Pairs:
    """Return the job in a few lines."""
    model, data, budget = facts.model, facts.data, job.budget
    measured = f" ({data.rows_measured} measured)" if data.sampled else ""
    total = "" if budget.total is None else f", {format_seconds(budget.total)} for everything"
    return (
        (
            "model",
            f"{model.name} ({model.architecture}, {model.parameters / 1e6:.1f} M parameters)",
        ),
        ("weights", model.weights),
        ("method", job.method),
        ("tuning", job.tuning),
        ("data", data.source or "none, only lengths"),
        ("rows", f"{data.rows}{measured}; the longest has {data.longest} tokens"),
        ("global batch", str(job.global_batch_size)),
        ("devices", str(job.devices.total)),
        ("headroom", f"{job.headroom:.0%}"),
        ("budget", f"{budget.probes} probes, {budget.minutes:g} min of probing{total}"),
    )


def about_machine(facts: Facts, limit_bytes: int) -> Pairs:
    """Return the device and its host."""
    device, host = facts.device, facts.host
    pairs = [
        ("device", device.name),
        ("kind", device.kind),
        ("memory", f"{format_bytes(device.total_bytes)}, {format_bytes(device.free_bytes)} free"),
        ("limit of a probe", format_bytes(limit_bytes)),
        ("cores", str(device.cores)),
    ]
    if device.driver is not None:
        pairs.append(("driver", device.driver))
    if device.capability is not None:
        pairs.append(("compute capability", ".".join(map(str, device.capability))))
    if host is not None:
        pairs.append(("memory of the host", f"{format_bytes(host.free_bytes)} free"))
    return tuple(pairs)


def about_versions(facts: Facts, info: Mapping[str, Any]) -> Pairs:
    """Return the versions of autotune and of the stack, and when the run started.

    Args:
        info: run.json.
    """
    pairs = [("autotune", info.get("version")), ("started", info.get("started"))]
    found = [("python", facts.stack.python), *sorted(facts.stack.versions.items())]
    return tuple((name, value) for name, value in (*pairs, *found) if isinstance(value, str))


def again(run: RunFolder, info: Mapping[str, Any], *, ended: bool) -> Iterator[tuple[str, str]]:
    """Yield (what for, command) to train, to check and to repeat.

    Args:
        ended: whether the run came to its own end.
    """
    folder = shlex.quote(str(run.path))
    if run.launch.is_file():
        yield "train with it", f"bash {shlex.quote(str(run.launch))}"
        yield "launch and check it again", f"autotune verify {folder}"
    if not ended:
        yield "go on where it stopped", f"autotune run --resume {folder}"
    job = shlex.quote(str(run.job))
    yield "do the search again", f"autotune run {job} --out again{_flags(info)}"
    yield "write this report again", f"autotune report {folder} --html report.html"


def _flags(info: Mapping[str, Any]) -> str:
    """Return the options that the run was started with, as flags."""
    options = info.get("options")
    if not isinstance(options, dict):
        return ""
    given = (flag for flag, (name, value) in _OPTIONS.items() if options.get(name) is value)
    return "".join(f" {flag}" for flag in given)
