"""Verify a bundle: its own launch command, in a fresh process, through an evaluation and a save.

Nothing of the probe's code runs in that process. Step times are read off its log lines (one per
step), token counts off the checkpoint it saved, memory off the kernel's accounting or NVML.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.facts import Facts
from autotune.job import Job
from autotune.probe.launch import LaunchReport, launch
from autotune.probe.protocol import (
    STEPS,
    TIMED_STEPS,
    ProbeFolder,
    RehearsalRequest,
    read_json,
    write_json,
)
from autotune.probe.runner import Limits, ProbeServer
from autotune.recommend import Ranked
from autotune.run_folder import RunFolder
from autotune.units import format_bytes

SPEED_TOLERANCE = 0.25
"""The launch may be slower than promised by this share; shared machines are this noisy."""
MEMORY_TOLERANCE = 0.15
"""The launch may take more than promised by this share."""
TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What the launch showed beside what was promised."""

    verified: bool
    reason: str
    tokens_per_s: float | None = None
    promised_tokens_per_s: float | None = None
    peak_memory_bytes: int | None = None
    promised_peak_memory_bytes: int | None = None
    evaluated: bool = False
    saved: bool = False
    exit_code: int | None = None
    seconds: float | None = None
    log: str | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def verify(
    run: RunFolder, job: Job, facts: Facts, chosen: Ranked, server: ProbeServer
) -> Verification:
    """Rehearse the bundle in `run.bundle`, which must be the one of `chosen`."""
    if run.verification.exists():
        shutil.rmtree(run.verification)
    run.verification.mkdir(parents=True)
    reply = _prepare_data(run, job, facts, chosen, server)
    log = run.verification / "launch.log"
    if reply is None:
        return Verification(
            verified=False,
            reason="the rehearsal data could not be written",
            log=str(run.verification / "rehearsal" / "stderr.log"),
        )
    output = run.verification / "output"
    report = launch(
        ["bash", str(run.launch), *_flags(run.verification / "data", output)],
        log=log,
        environment={"TRL_EXPERIMENTAL_SILENCE": "1"},
        timeout_s=TIMEOUT_S,
        gpu_index=facts.device.index if facts.device.kind == "cuda" else None,
    )
    verification = judge(report, _trainer_state(output), chosen, facts, job, str(log))
    shutil.rmtree(output, ignore_errors=True)
    return verification


def _prepare_data(
    run: RunFolder, job: Job, facts: Facts, chosen: Ranked, server: ProbeServer
) -> Any | None:
    values = chosen.candidate.values
    folder = ProbeFolder(path=run.verification / "rehearsal")
    folder.path.mkdir()
    sequences = job.batch_sequences(values.get("max_length"))  # type: ignore[arg-type]
    assert sequences is not None
    own_model = facts.model.weights == "random" and Path(facts.model.path).is_dir()
    bare = own_model and not any(Path(facts.model.path).glob("*.safetensors"))
    request = RehearsalRequest(
        rows=str(run.rows),
        raw=str(run.raw),
        target=str(run.verification / "data"),
        dataset_config=job.dataset_config,
        global_batch=sequences,
        micro_batch=chosen.candidate.micro_batch,
        grouped=values.get("train_sampling_strategy") == "group_by_length",
        packed_to=values.get("max_length") if values.get("packing") else None,  # type: ignore[arg-type]
        rows_total=facts.data.rows,
        seed=int(job.training.get("seed", 42)),
        make_weights=facts.model.path if bare else None,
    )
    write_json(folder.request, request.plain())
    server.run(folder, "autotune.training.rehearsal:rehearsal", Limits(wall_s=TIMEOUT_S))
    return read_json(folder.reply)


def _flags(data: Path, output: Path) -> list[str]:
    """What the rehearsal changes of the bundle's configuration."""
    changed = {
        "dataset_name": data,
        "dataset_train_split": "train",
        "dataset_test_split": "test",
        "output_dir": output,
        "train_sampling_strategy": "sequential",
        "shuffle_dataset": "false",
        "max_steps": STEPS,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": STEPS,
        "save_strategy": "steps",
        "save_steps": STEPS,
        "load_best_model_at_end": "false",
        "report_to": "none",
        "disable_tqdm": "true",
        "push_to_hub": "false",
    }
    return [part for name, value in changed.items() for part in (f"--{name}", str(value))]


def _trainer_state(output: Path) -> Any | None:
    return read_json(output / f"checkpoint-{STEPS}" / "trainer_state.json")


def judge(
    report: LaunchReport, state: Any | None, chosen: Ranked, facts: Facts, job: Job, log: str
) -> Verification:
    """What the launch says of the promise. Pure."""
    speed = _tokens_per_s(report, state)
    peak = report.peak_gpu_bytes if facts.device.kind == "cuda" else report.peak_resident_bytes
    history = state["log_history"] if state else []
    evaluated = any("eval_loss" in entry for entry in history)
    problems = []
    if report.timed_out:
        problems.append(f"the launch did not end within {TIMEOUT_S:.0f} s")
    elif report.exit_code != 0:
        problems.append(f"the launch ended with exit code {report.exit_code}")
    elif state is None or not evaluated:
        problems.append("the launch did not evaluate and save")
    elif speed is None:
        problems.append("the launch logged too few steps to be timed")
    promised = chosen.tokens_per_s
    if speed is not None and speed < promised * (1 - SPEED_TOLERANCE):
        problems.append(f"{speed:.0f} tokens/s, but {promised:.0f} were promised")
    limit = _limit(job, facts)
    if peak is not None and peak > limit:
        problems.append(
            f"it took {format_bytes(peak)}, more than the limit of {format_bytes(limit)}"
        )
    elif peak is not None and peak > chosen.peak_memory_bytes * (1 + MEMORY_TOLERANCE):
        problems.append(
            f"it took {format_bytes(peak)}, but {format_bytes(chosen.peak_memory_bytes)} "
            "was promised"
        )
    good = (
        f"launched for {STEPS} steps with the worst batch, an evaluation and a save: "
        f"{speed or 0:.0f} tokens/s (promised {promised:.0f}), peak {format_bytes(peak or 0)} "
        f"(promised {format_bytes(chosen.peak_memory_bytes)})"
    )
    return Verification(
        verified=not problems,
        reason="; ".join(problems) or good,
        tokens_per_s=speed,
        promised_tokens_per_s=promised,
        peak_memory_bytes=peak,
        promised_peak_memory_bytes=chosen.peak_memory_bytes,
        evaluated=evaluated,
        saved=state is not None,
        exit_code=report.exit_code,
        seconds=round(report.seconds, 3),
        log=log,
    )


def _limit(job: Job, facts: Facts) -> int:
    return job.devices.memory or facts.device.free_bytes


def _tokens_per_s(report: LaunchReport, state: Any | None) -> float | None:
    """Tokens of the timed steps over the time between their log lines."""
    if state is None:
        return None
    counted = {
        e["step"]: e["num_tokens"]
        for e in state["log_history"]
        if "num_tokens" in e and "loss" in e
    }
    logged = [when for when, line in report.lines if line.lstrip().startswith("{'loss'")]
    first, last = STEPS - TIMED_STEPS, STEPS
    if len(logged) < STEPS or first not in counted or last not in counted:
        return None
    seconds = logged[last - 1] - logged[first - 1]
    return float(counted[last] - counted[first]) / seconds if seconds > 0 else None
