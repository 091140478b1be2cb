"""Verify a bundle: its own launch command, in a fresh process, through an evaluation and a save.

Nothing of the probe's code runs in that process. Step times are read off its log lines (one per
step), token counts off the checkpoint it saved, memory off the kernel's accounting or NVML.
"""

import dataclasses
import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.facts import Facts
from autotune.job import Job
from autotune.probe.ending import Limits
from autotune.probe.launch import LaunchReport, launch
from autotune.probe.protocol import (
    LOGGING_STEPS,
    UNTIMED_STEPS,
    Measurement,
    ProbeFolder,
    RehearsalRequest,
    read_json,
    write_json,
)
from autotune.probe.runner import ProbeServer
from autotune.recommend import Ranked
from autotune.run_folder import RunFolder
from autotune.space.settings import device_environment
from autotune.units import format_bytes

SPEED_TOLERANCE = 0.25
"""The launch may be slower than promised by this share; shared machines are this noisy."""
MEMORY_TOLERANCE = 0.15
"""The launch may take more than promised by this share."""
TIMEOUT_S = 1800.0
TIMED_ROWS = 64
TIMED_S = 3.0
MAX_TIMED_STEPS = 48


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What the launch showed beside what was promised."""

    verified: bool
    reason: str
    tokens_per_s: float | None = None
    """Of the rehearsed steps, whatever rows they held."""
    promised_tokens_per_s: float | None = None
    """Of the whole data."""
    speed_against_promise: float | None = None
    """Seconds promised for exactly the rehearsed batches, over the seconds they took."""
    peak_memory_bytes: int | None = None
    promised_peak_memory_bytes: int | None = None
    evaluated: bool = False
    saved: bool = False
    exit_code: int | None = None
    seconds: float | None = None
    log: str | None = None
    only_too_slow: bool = False
    """Nothing but its speed speaks against it."""

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def verify(
    run: RunFolder,
    job: Job,
    facts: Facts,
    chosen: Ranked,
    server: ProbeServer,
    probe_again: Callable[[], Measurement],
) -> Verification:
    """Rehearse the bundle in `run.bundle`, which must be the one of `chosen`.

    A launch that is only too slow may mean that the machine is slower than it was during the
    search. Then the candidate is probed again, and a second launch is held against that probe.
    """
    if run.verification.exists():
        shutil.rmtree(run.verification)
    run.verification.mkdir(parents=True)
    reply = _prepare_data(run, job, facts, chosen, server)
    if reply is None:
        return Verification(
            verified=False,
            reason="the rehearsal data could not be written",
            log=str(run.verification / "rehearsal" / "stderr.log"),
        )
    first = _rehearse(run, job, facts, chosen, reply["timed"])
    if first.verified or not first.only_too_slow:
        return first
    fresh = probe_again()
    if fresh.outcome != "ok":
        return first
    now = dataclasses.replace(chosen, measurement=fresh)
    second = _rehearse(run, job, facts, now, reply["timed"])
    change = (
        f"a new probe gives {now.tokens_per_s:.0f} tokens/s, the search {chosen.tokens_per_s:.0f}"
    )
    return dataclasses.replace(second, reason=f"{second.reason}; {change}")


def timed_steps(chosen: Ranked) -> int:
    """Timed steps of a rehearsal: enough rows, and long enough; even, as logging is every 2nd."""
    batch = chosen.candidate.micro_batch * chosen.candidate.gradient_accumulation_steps
    by_rows = -(-TIMED_ROWS // batch)
    by_time = math.ceil(TIMED_S / (chosen.measurement.step_time_s or TIMED_S))
    wanted = min(max(by_rows, by_time, 4), MAX_TIMED_STEPS)
    return wanted + wanted % 2


def _rehearse(
    run: RunFolder, job: Job, facts: Facts, chosen: Ranked, sizes: list[int] | None
) -> Verification:
    """Launch once and judge."""
    log, output = run.verification / "launch.log", run.verification / "output"
    steps = UNTIMED_STEPS + timed_steps(chosen)
    report = launch(
        ["bash", str(run.launch), *_flags(run.verification / "data", output, steps)],
        log=log,
        environment={
            "TRL_EXPERIMENTAL_SILENCE": "1",
            # The user's own choice of devices wins in `launch.sh`, and may list several.
            **device_environment(facts),
            # A folder whose card lists its files is cached by its name alone, whatever it holds
            # (datasets 5.2): with the user's cache, another run's rehearsal would be loaded.
            "HF_DATASETS_CACHE": str(run.verification / "cache"),
        },
        timeout_s=TIMEOUT_S,
        gpu_index=facts.device.index if facts.device.kind == "cuda" else None,
    )
    state = read_json(output / f"checkpoint-{steps}" / "trainer_state.json")
    rehearsed = timed_part(report, state, steps)
    verification = judge(report, state, rehearsed, sizes, chosen, facts, job, str(log))
    for folder in (output, run.verification / "cache"):
        shutil.rmtree(folder, ignore_errors=True)
    return verification


def _prepare_data(
    run: RunFolder, job: Job, facts: Facts, chosen: Ranked, server: ProbeServer
) -> Any | None:
    values = chosen.candidate.values
    folder = ProbeFolder(path=run.verification / "rehearsal")
    folder.path.mkdir()
    max_length: Any = values.get("max_length")
    own_model = facts.model.weights == "random" and Path(facts.model.path).is_dir()
    bare = own_model and not any(Path(facts.model.path).glob("*.safetensors"))
    request = RehearsalRequest(
        rows=str(run.rows),
        raw=str(run.raw),
        target=str(run.verification / "data"),
        dataset_config=job.dataset_config,
        global_batch=chosen.candidate.micro_batch * chosen.candidate.gradient_accumulation_steps,
        micro_batch=chosen.candidate.micro_batch,
        grouped=values.get("train_sampling_strategy") == "group_by_length",
        max_length=max_length,
        packed_to=max_length if values.get("packing") else None,
        padding_free=bool(values.get("padding_free")),
        timed_steps=timed_steps(chosen),
        rows_total=facts.data.rows,
        seed=int(job.training.get("seed", 42)),
        make_weights=facts.model.path if bare else None,
    )
    write_json(folder.request, request.plain())
    server.run(folder, "autotune.training.rehearsal:rehearsal", Limits(wall_s=TIMEOUT_S))
    return read_json(folder.reply)


def _flags(data: Path, output: Path, steps: int) -> list[str]:
    """What the rehearsal changes of the bundle's configuration."""
    changed = {
        "dataset_name": data,
        "dataset_train_split": "train",
        "dataset_test_split": "test",
        "output_dir": output,
        "train_sampling_strategy": "sequential",
        "shuffle_dataset": "false",
        "max_steps": steps,
        "logging_strategy": "steps",
        "logging_steps": LOGGING_STEPS,
        "eval_strategy": "steps",
        "eval_steps": steps,
        "save_strategy": "steps",
        "save_steps": steps,
        "load_best_model_at_end": "false",
        "report_to": "none",
        "disable_tqdm": "true",
        "push_to_hub": "false",
    }
    return [part for name, value in changed.items() for part in (f"--{name}", str(value))]


def judge(
    report: LaunchReport,
    state: Any | None,
    rehearsed: tuple[float, float] | None,
    sizes: list[int] | None,
    chosen: Ranked,
    facts: Facts,
    job: Job,
    log: str,
) -> Verification:
    """What the launch says of the promise. Pure.

    Args:
        state: the Trainer's own state, from the checkpoint; None: nothing was saved.
        rehearsed: (tokens, seconds) of the timed steps.
        sizes: tokens with padding of the timed micro-batches; None: not known.
    """
    peak = report.peak_gpu_bytes if facts.device.kind == "cuda" else report.peak_resident_bytes
    history = state["log_history"] if state else []
    evaluated = any("eval_loss" in entry for entry in history)
    speed = rehearsed[0] / rehearsed[1] if rehearsed is not None else None
    ratio = _against_promise(chosen, rehearsed, sizes)
    hard = [
        *_launch_problems(report, evaluated and state is not None, speed),
        *_memory_problems(peak, chosen, _limit(job, facts)),
    ]
    slow = ratio is not None and ratio < 1 - SPEED_TOLERANCE
    problems = list(hard)
    if slow:
        problems.append(f"only {100 * (ratio or 0):.0f}% of the promised speed on the same batches")
    good = (
        f"launched through its worst batch, an evaluation and a save: {100 * (ratio or 0):.0f}% of "
        f"the promised speed on the same batches, peak {format_bytes(peak or 0)} "
        f"(promised {format_bytes(chosen.peak_memory_bytes)})"
    )
    return Verification(
        verified=not problems,
        reason="; ".join(problems) or good,
        tokens_per_s=speed,
        promised_tokens_per_s=chosen.tokens_per_s,
        speed_against_promise=ratio,
        peak_memory_bytes=peak,
        promised_peak_memory_bytes=chosen.peak_memory_bytes,
        evaluated=evaluated,
        saved=state is not None,
        exit_code=report.exit_code,
        seconds=round(report.seconds, 3),
        log=log,
        only_too_slow=slow and not hard,
    )


def _launch_problems(report: LaunchReport, whole: bool, speed: float | None) -> list[str]:
    if report.timed_out:
        return [f"the launch did not end within {TIMEOUT_S:.0f} s"]
    if report.exit_code != 0:
        return [f"the launch ended with exit code {report.exit_code}"]
    if not whole:
        return ["the launch did not evaluate and save"]
    if speed is None:
        return ["the launch logged too few steps to be timed"]
    return []


def _memory_problems(peak: int | None, chosen: Ranked, limit: int) -> list[str]:
    if peak is not None and peak > limit:
        return [f"it took {format_bytes(peak)}, over the limit of {format_bytes(limit)}"]
    if peak is not None and peak > chosen.peak_memory_bytes * (1 + MEMORY_TOLERANCE):
        promised = format_bytes(chosen.peak_memory_bytes)
        return [f"it took {format_bytes(peak)}, but {promised} was promised"]
    return []


def _against_promise(
    chosen: Ranked, rehearsed: tuple[float, float] | None, sizes: list[int] | None
) -> float | None:
    """Promised over measured seconds of the timed steps."""
    if rehearsed is None:
        return None
    tokens, seconds = rehearsed
    m = chosen.measurement
    if sizes is None or m.micro_step_fixed_s is None or m.micro_step_per_token_s is None:
        return tokens / chosen.tokens_per_s / seconds
    micro = len(sizes) * (m.micro_step_fixed_s + (m.data_wait_s or 0.0))
    steps = len(sizes) / chosen.candidate.gradient_accumulation_steps
    promised = micro + m.micro_step_per_token_s * sum(sizes)
    return (promised + steps * (m.optimizer_step_time_s or 0.0)) / seconds


def _limit(job: Job, facts: Facts) -> int:
    return job.devices.memory or facts.device.free_bytes


def timed_part(report: LaunchReport, state: Any | None, steps: int) -> tuple[float, float] | None:
    """(tokens, seconds) of the timed steps, by their log lines; None where some are missing."""
    if state is None:
        return None
    counted = {e["step"]: e["num_tokens"] for e in state["log_history"] if "loss" in e}
    times = [when for when, line in report.lines if line.lstrip().startswith("{'loss'")]
    logged = dict(zip(sorted(counted), times, strict=False))
    if steps not in logged or UNTIMED_STEPS not in logged:
        return None
    seconds = logged[steps] - logged[UNTIMED_STEPS]
    tokens = float(counted[steps] - counted[UNTIMED_STEPS])
    return (tokens, seconds) if seconds > 0 else None
