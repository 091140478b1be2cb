"""Verify a bundle: its own launch command, in a fresh process, through an evaluation and a save.

Nothing of the probe's code runs in that process. Times are read off its log lines (one every
second step), token counts off the checkpoint it saved, memory off the kernel's accounting or NVML.
"""

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from autotune.engine.launching import Launcher
from autotune.errors import machine_error
from autotune.facts import devices
from autotune.facts.model_files import has_weights
from autotune.job.job import Job
from autotune.plain_data import NONSENSE
from autotune.plan.variants import batching
from autotune.probe.measure import describe_processes
from autotune.probe.protocol import Measurement
from autotune.process.child_server import ChildServer
from autotune.process.launch import launch
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.run_folder import RunFolder
from autotune.run.bundle_launch import (
    SOAK,
    TIMED_STEPS,
    TIMEOUT_S,
    BundleLaunch,
    Heard,
    Stages,
)
from autotune.run.deadline import Deadline
from autotune.run.soak import PARTS, judge_soak, soak_steps
from autotune.run.verdict import Verification, timed_parts
from autotune.search.recommend import Ranked
from autotune.space.trl_config import (
    Settings,
    device_environment,
    eval_batch,
    launched_config_name,
)
from autotune.training.rehearsal import UNTIMED_STEPS, RehearsalReply, RehearsalRequest

PAUSES_S = (5.0, 15.0)
"""What others disturbed, a probe or a launch, is repeated after these pauses, in seconds; then the
machine is too busy. Chosen, not measured."""
AGAIN = "end them, then verify it again"
REHEARSAL = "autotune.training.rehearsal_worker:rehearsal"
TIMED_ROWS = 64
TIMED_S = 3.0
MAX_TIMED_STEPS = 48
MARGIN, BESIDE_S, WRITTEN_BYTES_PER_S = 2.0, 5.0, 0.5e9
"""What is reserved of a total budget for a launch: so much more than is known of it, seconds for
what is not known, and the rate of a disk. Chosen, not measured."""


def verify(
    run: RunFolder,
    launched: Settings,
    ranked: Ranked,
    server: ChildServer,
    probe_again: Callable[[], Measurement],
    deadline: Deadline,
    heard: Heard,
    soak_s: float = 0.0,
    *,
    accept_noise: bool = False,
    launcher: Launcher = launch,
) -> Verification:
    """Rehearse the bundle in `run.bundle`, which must be the one of `ranked`.

    A launch that is only too slow, or too fast, may mean that the machine is another than it was
    during the search. Then the candidate is probed again, and a second launch is held against that
    probe. One that is slow because others took the cores says nothing: it is repeated later. For
    all this there must be time before the deadline.

    Args:
        launched: settings of the candidate.
        heard: hears of each stage of a launch when it is over.
        soak_s: how long a bundle that holds is trained once more, in seconds.
        accept_noise: whether one launch has to do, however fast it is.
        launcher: runs the bundle's command; another one does so on another machine.

    Raises:
        UserError: its data would be read elsewhere.
        MachineError: it does not hold, and others compute on its GPU, or somebody else ended it
            twice: that says nothing of it.
    """
    run.check_name()
    stages = Stages(heard)
    if run.verification.exists():
        shutil.rmtree(run.verification)
    run.verification.mkdir(parents=True)
    reply = _prepare_data(run, launched, ranked, server, deadline)
    if reply is None:
        return _without_data(run, deadline)
    stages.data_written()
    launches = BundleLaunch(
        run=run,
        launched=launched,
        rehearsal=reply,
        deadline=deadline,
        stages=stages,
        launch=launcher,
    )
    if accept_noise:
        return launches.verdict(ranked)
    outcome = _judge_launches(launches.verdict, ranked, probe_again, deadline, heard)
    if not outcome.verified and launcher is launch:
        _refuse_shared_gpus(launched.facts.device)
    if not soak_s or not outcome.verified:
        return outcome
    return _soak(launches, ranked, heard, outcome, soak_s)


def _refuse_shared_gpus(device: devices.DeviceFacts) -> None:
    """Say who else computes on a job's GPUs, if somebody does."""
    if device.kind != "cuda":
        return
    for gpu in map(devices.gpu, (device.index, *device.peers)):
        if gpu.is_busy:
            raise machine_error(describe_processes(gpu), where="devices", hint=AGAIN)


def _judge_launches(
    launch: Callable[[Ranked], Verification],
    ranked: Ranked,
    probe_again: Callable[[], Measurement],
    deadline: Deadline,
    heard: Heard,
) -> Verification:
    """Return what a launch shows; of one whose speed is off, a second one beside a new probe."""
    first = _in_quiet(lambda: launch(ranked), deadline)
    if not (first.only_too_slow or first.only_too_fast) or first.was_disturbed:
        return first
    if deadline.left_s < MARGIN * (ranked.measurement.seconds + (first.seconds or 0.0)):
        return dataclasses.replace(
            first, reason=f"{first.reason}; {deadline.words} has no room to probe and launch again"
        )
    heard(f"{first.reason}; so it is probed and launched once more", first.seconds or 0.0)
    fresh = probe_again()
    if fresh.outcome != "ok":
        again = f"the probe that was to tell ended as `{fresh.outcome}`: {fresh.reason}"
        return dataclasses.replace(first, reason=f"{first.reason}; {again}")
    now = dataclasses.replace(ranked, measurement=fresh)
    second = _in_quiet(lambda: launch(now), deadline)
    change = (
        f"a new probe gives {now.tokens_per_s:.0f} tokens/s, the one before "
        f"{ranked.tokens_per_s:.0f}"
    )
    return dataclasses.replace(second, reason=f"{second.reason}; {change}")


def _soak(
    brief: BundleLaunch, ranked: Ranked, heard: Heard, verified: Verification, soak_s: float
) -> Verification:
    """Launch a bundle that was verified once more, for so long. It trains on the same rows, again
    and again. Where that was over in less than half of the time, because others had taken the cores
    before, it is launched again with more steps."""
    step_s = (ranked.measurement.step_time_s or 1.0) / (verified.speed_against_promise or 1.0)

    def hear(stage: str, seconds: float) -> None:
        if stage == TIMED_STEPS:
            heard(SOAK, seconds)

    for _ in range(2):
        longer = _longer(brief.rehearsal, soak_steps(soak_s, step_s))
        launch = dataclasses.replace(brief, rehearsal=longer, stages=Stages(hear))
        report, state = launch.undisturbed(ranked)
        parts = timed_parts(report, state, longer, PARTS)
        took_s = parts[-1].end_s - parts[0].begin_s if parts else soak_s
        if took_s >= soak_s / 2:
            break
        step_s = took_s / longer.timed
    stages_s = {**verified.stages_s, SOAK: launch.stages.seconds.get(TIMED_STEPS, 0.0)}
    soaked = judge_soak(verified, report, parts, ranked, launch.launched)
    return dataclasses.replace(soaked, stages_s=stages_s)


def _longer(rehearsal: RehearsalReply, steps: int) -> RehearsalReply:
    """Return the same rows again and again, for so many timed steps."""
    tokens = rehearsal.tokens and round(rehearsal.tokens * steps / rehearsal.timed)
    return dataclasses.replace(rehearsal, timed=steps, sizes=None, tokens=tokens)


def _without_data(run: RunFolder, deadline: Deadline) -> Verification:
    reason = "the rehearsal data could not be written"
    if deadline.left_s <= 0:
        reason = f"{deadline.words} ended before it was launched"
    log = str(run.verification / "rehearsal" / "stderr.log")
    return Verification(verified=False, reason=reason, log=log)


def _in_quiet(launch: Callable[[], Verification], deadline: Deadline) -> Verification:
    """Launch; where others took the cores that it was timed on, again after a pause, and again."""
    for pause_s in PAUSES_S:
        outcome = launch()
        needed_s = pause_s + MARGIN * (outcome.seconds or 0.0)
        if not outcome.was_disturbed or deadline.left_s < needed_s:
            return outcome
        time.sleep(pause_s)
    return launch()


def expected_seconds(job: Job, ranked: Ranked, import_s: float) -> float:
    """Return what a verification is expected to take, rather too much than too little. Seconds.

    Args:
        ranked: the candidate that is launched.
        import_s: what it took to import the training stack; a launch imports it twice, the first
            time in part.
    """
    measurement = ranked.measurement
    steps = UNTIMED_STEPS + steps_to_time(ranked)
    train_s = steps * (measurement.step_time_s or 0.0)
    saved_bytes = (measurement.peak_memory_bytes or 0) if job.tuning == "full" else 0
    build_s = measurement.stages_s.get("build", 0.0)
    known_s = 1.5 * import_s + build_s + train_s + saved_bytes / WRITTEN_BYTES_PER_S
    return MARGIN * known_s + BESIDE_S


def steps_to_time(ranked: Ranked) -> int:
    """Timed steps to ask for: enough rows, and long enough; even, as logging is every 2nd."""
    by_rows = -(-TIMED_ROWS // ranked.candidate.global_batch)
    by_time = math.ceil(TIMED_S / (ranked.measurement.step_time_s or TIMED_S))
    steps = min(max(by_rows, by_time, 4), MAX_TIMED_STEPS)
    return steps + steps % 2


def _prepare_data(
    run: RunFolder, launched: Settings, ranked: Ranked, server: ChildServer, deadline: Deadline
) -> RehearsalReply | None:
    job, facts = launched.job, launched.facts
    folder = ChildFolder(path=run.verification / "rehearsal")
    folder.path.mkdir()
    models = (facts.model, *((facts.model.teacher,) if facts.model.teacher else ()))
    folders = [m.path for m in models if m.weights == "random" and Path(m.path).is_dir()]
    request = RehearsalRequest(
        method=job.method,
        rows=str(run.rows),
        raw=str(run.raw),
        target=str(run.verification / "data"),
        dataset_config=launched_config_name(job),
        batching=dataclasses.asdict(batching(launched)),
        timed_steps=steps_to_time(ranked),
        eval_batch=_eval_batch(job, ranked),
        rows_total=facts.data.rows,
        processes=launched.sharding.replicas,
        make_weights=[folder for folder in folders if not has_weights(Path(folder))],
        environment=device_environment(facts.device, 1),
    )
    write_json(folder.request, request.plain())
    limits = Limits(wall_s=min(TIMEOUT_S, deadline.left_s))
    for _ in range(2):  # once more where somebody else ended it
        ending = server.run(folder, REHEARSAL, limits)
        if not ending.by_another:
            break
    with contextlib.suppress(*NONSENSE):
        return RehearsalReply.from_plain(read_json(folder.reply))
    return None


def _eval_batch(job: Job, ranked: Ranked) -> int:
    rows = job.training.get("per_device_eval_batch_size")
    return rows if isinstance(rows, int) else eval_batch(job, ranked.candidate)
