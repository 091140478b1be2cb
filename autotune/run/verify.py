"""Verify a bundle: its own launch command, in a fresh process, through an evaluation and a save.

Nothing of the probe's code runs in that process. Times are read off its log lines (one every
second step), token counts off the checkpoint it saved, memory off the kernel's accounting or NVML.
"""

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.facts import Facts
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.plan.variants import batching
from autotune.probe.extensions import compiled_folder
from autotune.probe.protocol import Measurement
from autotune.process.launch import launch
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.process.server import ChildServer
from autotune.run.deadline import Deadline
from autotune.run.launch_stages import Heard, LaunchStages, Stages
from autotune.run.verdict import SPEED_TOLERANCE, Verification, judge, timed_part, vllm_runs
from autotune.search.recommend import Ranked
from autotune.space.settings import (
    Settings,
    device_environment,
    eval_batch,
    launched_config_name,
    settings,
)
from autotune.training.rehearsal import (
    LOGGING_STEPS,
    UNTIMED_STEPS,
    RehearsalReply,
    RehearsalRequest,
)

TIMEOUT_S = 1800.0
TIMED_ROWS = 64
TIMED_S = 3.0
MAX_TIMED_STEPS = 48
MARGIN, BESIDE_S, WRITTEN_BYTES_PER_S = 2.0, 5.0, 0.5e9
"""What is reserved of a total budget for a launch: so much more than is known of it, seconds for
what is not known, and the rate of a disk. Chosen, not measured."""


def verify(
    run: RunFolder,
    job: Job,
    facts: Facts,
    ranked: Ranked,
    server: ChildServer,
    probe_again: Callable[[], Measurement],
    deadline: Deadline,
    heard: Heard,
) -> Verification:
    """Rehearse the bundle in `run.bundle`, which must be the one of `chosen`.

    A launch that is only too slow, or much too fast, may mean that the machine is another than it
    was during the search. Then the candidate is probed again; a second launch of one that was too
    slow is held against that probe. For these there must be time before the deadline.

    Args:
        heard: hears of each stage of a launch when it is over.
    """
    stages = Stages(heard)
    if run.verification.exists():
        shutil.rmtree(run.verification)
    run.verification.mkdir(parents=True)
    launched = settings(job, facts, ranked.candidate, str(run.output))
    reply = _prepare_data(run, launched, ranked, server, deadline)
    if reply is None:
        return Verification(
            verified=False,
            reason=f"{deadline.words} ended before it was launched"
            if deadline.left_s <= 0
            else "the rehearsal data could not be written",
            log=str(run.verification / "rehearsal" / "stderr.log"),
        )
    stages.data_written()
    rehearsal = RehearsalReply.from_plain(reply)
    first = _rehearse(run, launched, ranked, rehearsal, deadline, stages)
    ratio = first.speed_against_promise or 1.0
    as_promised = ratio <= 1 + SPEED_TOLERANCE or vllm_runs(launched)
    if not first.only_too_slow and (not first.verified or as_promised):
        return first
    if deadline.left_s < MARGIN * (ranked.measurement.seconds + (first.seconds or 0.0)):
        return dataclasses.replace(
            first, reason=f"{first.reason}; {deadline.words} has no room to probe and launch again"
        )
    fresh = probe_again()
    if fresh.outcome != "ok" or first.verified:
        return first
    now = dataclasses.replace(ranked, measurement=fresh)
    second = _rehearse(run, launched, now, rehearsal, deadline, stages)
    change = (
        f"a new probe gives {now.tokens_per_s:.0f} tokens/s, the one before "
        f"{ranked.tokens_per_s:.0f}"
    )
    return dataclasses.replace(second, reason=f"{second.reason}; {change}")


def expected_seconds(job: Job, ranked: Ranked, import_s: float) -> float:
    """What a verification is expected to take, rather too much than too little. Seconds.

    Args:
        ranked: the candidate that is launched.
        import_s: what it took to import the training stack; a launch imports it twice, the first
            time in part.
    """
    measurement = ranked.measurement
    steps = UNTIMED_STEPS + timed_steps(ranked)
    train_s = steps * (measurement.step_time_s or 0.0)
    saved_bytes = (measurement.peak_memory_bytes or 0) if job.tuning == "full" else 0
    build_s = measurement.stages_s.get("build", 0.0)
    known_s = 1.5 * import_s + build_s + train_s + saved_bytes / WRITTEN_BYTES_PER_S
    return MARGIN * known_s + BESIDE_S


def timed_steps(ranked: Ranked) -> int:
    """Timed steps to ask for: enough rows, and long enough; even, as logging is every 2nd."""
    by_rows = -(-TIMED_ROWS // ranked.candidate.global_batch)
    by_time = math.ceil(TIMED_S / (ranked.measurement.step_time_s or TIMED_S))
    steps = min(max(by_rows, by_time, 4), MAX_TIMED_STEPS)
    return steps + steps % 2


def _rehearse(
    run: RunFolder,
    launched: Settings,
    ranked: Ranked,
    rehearsal: RehearsalReply,
    deadline: Deadline,
    stages: Stages,
) -> Verification:
    """Launch once, through the timed steps, and judge."""
    device = launched.facts.device
    log, output = run.verification / "launch.log", run.verification / "output"
    steps = rehearsal.steps
    expected_s = steps * (ranked.measurement.step_time_s or 0.0)
    parts = ranked.measurement.generation_parts or 1
    fewer = _fewer_together(launched.config, parts, launched.processes)
    flags = _flags(run.verification / "data", output, steps, launched, fewer)
    heard = LaunchStages(stages, rehearsal)
    report = launch(
        ["bash", str(run.launch), *flags],
        log=log,
        environment={
            "TRL_EXPERIMENTAL_SILENCE": "1",
            # The user's own choice of devices wins in `launch.sh`, and may list several.
            **device_environment(device),
            # A folder whose card lists its files is cached by its name alone, whatever it holds
            # (datasets 5.2): with the user's cache, another run's rehearsal would be loaded.
            "HF_DATASETS_CACHE": str(run.verification / "cache"),
            # What DeepSpeed compiled for the probes (minutes); the user's own folder wins.
            "TORCH_EXTENSIONS_DIR": os.environ.get(
                "TORCH_EXTENSIONS_DIR", str(compiled_folder(run.rows))
            ),
        },
        timeout_s=min(TIMEOUT_S + 3 * expected_s, deadline.left_s),
        gpus=(device.index, *device.peers) if device.kind == "cuda" else (),
        hear=heard.hear,
    )
    if not report.timed_out:
        heard.ended(report.seconds)
    state = read_json(output / f"checkpoint-{steps}" / "trainer_state.json")
    rehearsed = timed_part(report, state, rehearsal)
    verification = judge(report, state, rehearsed, rehearsal.sizes, ranked, launched, str(log))
    for folder in (output, run.verification / "cache"):
        shutil.rmtree(folder, ignore_errors=True)
    verification = dataclasses.replace(verification, stages_s=dict(stages.seconds))
    if report.timed_out and deadline.left_s <= 0:
        reason = f"{deadline.words} ended {report.seconds:.0f} s after it was launched"
        verification = dataclasses.replace(verification, reason=reason)
    return verification


def _prepare_data(
    run: RunFolder, launched: Settings, ranked: Ranked, server: ChildServer, deadline: Deadline
) -> Any | None:
    job, facts = launched.job, launched.facts
    folder = ChildFolder(path=run.verification / "rehearsal")
    folder.path.mkdir()
    random_here = facts.model.weights == "random" and Path(facts.model.path).is_dir()
    bare = random_here and not any(Path(facts.model.path).glob("*.safetensors"))
    request = RehearsalRequest(
        method=job.method,
        rows=str(run.rows),
        raw=str(run.raw),
        target=str(run.verification / "data"),
        dataset_config=launched_config_name(job),
        batching=dataclasses.asdict(batching(launched)),
        timed_steps=timed_steps(ranked),
        eval_batch=_eval_batch(job, ranked),
        rows_total=facts.data.rows,
        processes=launched.processes,
        make_weights=facts.model.path if bare else None,
    )
    write_json(folder.request, request.plain())
    limits = Limits(wall_s=min(TIMEOUT_S, deadline.left_s))
    server.run(folder, "autotune.training.rehearsal_worker:rehearsal", limits)
    return read_json(folder.reply)


def _eval_batch(job: Job, ranked: Ranked) -> int:
    rows = job.training.get("per_device_eval_batch_size")
    return rows if isinstance(rows, int) else eval_batch(job, ranked.candidate)


def _flags(
    data: Path,
    output: Path,
    steps: int,
    launched: Settings,
    fewer: dict[str, int],
) -> list[str]:
    """What the rehearsal changes of the bundle's configuration.

    Args:
        fewer: how many completions are generated at once, where vLLM's place is taken.
    """
    changed: dict[str, Any] = {
        "dataset_name": data,
        "dataset_train_split": "train",
        "dataset_test_split": "test",
        "output_dir": output,
        "train_sampling_strategy": "sequential",
        "max_steps": steps,
        "logging_strategy": "steps",
        "logging_steps": LOGGING_STEPS,
        "eval_strategy": "steps",
        "eval_steps": steps,
        "eval_delay": 0,
        "save_strategy": "steps",
        "save_steps": steps,
        "load_best_model_at_end": "false",
        "report_to": "none",
        "disable_tqdm": "true",
        "push_to_hub": "false",
    }
    if "shuffle_dataset" in launched.facts.stack.training_fields:
        changed["shuffle_dataset"] = "false"
    if not METHODS[launched.job.method].evaluates:  # but it shows samples, in the first step
        changed |= {"num_sample_generations": 1, "full_responses": "true"}
        if not launched.config.get("reward_model_path"):
            changed["reward_model_path"] = launched.config["model_name_or_path"]
    changed |= _generating(launched, fewer)
    return [part for name, value in changed.items() for part in (f"--{name}", str(value))]


def _generating(launched: Settings, fewer: dict[str, int]) -> dict[str, Any]:
    """The changes where completions are generated."""
    changed: dict[str, Any] = {}
    config, real = launched.config, vllm_runs(launched)
    if config.get("use_vllm") and not real:
        changed["use_vllm"] = "false"
        changed |= fewer
    length = config.get("max_completion_length")
    if length is not None:  # completions do not end early, as in the probe
        field = "min_tokens" if real else "min_new_tokens"
        kwargs = {**(config.get("generation_kwargs") or {}), field: length}
        changed["generation_kwargs"] = json.dumps(kwargs)
        if config.get("eval_strategy", "no") == "no":  # else what the job evaluates with
            group = config.get("num_generations_eval") or config["num_generations"]
            changed["per_device_eval_batch_size"] = group
    return changed


def _fewer_together(config: dict[str, Any], parts: int, processes: int) -> dict[str, int]:
    """A generation batch of which each part fits, where all at once did not.

    Args:
        parts: into how many the probe had to divide a generation that vLLM will make at once.
    """
    if parts == 1:
        return {}
    total = config["generation_batch_size"]
    rows = config["per_device_train_batch_size"] * processes
    smallest = math.lcm(rows, config["num_generations"])
    fitting = [n for n in range(smallest, total, smallest) if total % n == 0 and n * parts <= total]
    return {"generation_batch_size": max(fitting, default=smallest)}
