"""Find the facts of a run: in a child, once; later calls read what was found."""

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, Problem, UserError, machine_error, user_error
from autotune.facts import Facts, devices, facts_from_plain, stack
from autotune.facts.data import DataFacts
from autotune.facts.host import HostFacts, host
from autotune.facts.model import ModelFacts
from autotune.job.job import Job, NoData
from autotune.job.methods import METHODS
from autotune.plain_data import NONSENSE, from_plain
from autotune.probe.measure import describe_processes
from autotune.probe.protocol import SurveyRequest
from autotune.process.child_server import ChildServer
from autotune.process.host_memory import meter_of_a_look
from autotune.process.limits import Ending, Limits, signal_name
from autotune.process.messages import ChildFolder, Message, read_json, write_json
from autotune.process.progress import ending_of
from autotune.process.run_folder import RunFolder
from autotune.space.checkpointing import CHECKPOINTING
from autotune.space.job_file.online import refuse_unrewarded
from autotune.space.knobs import ACCUMULATION, GROUP
from autotune.space.trl_config import device_environment
from autotune.units import format_bytes

USUAL_GROUP = 8
"""TRL's default of `num_generations`."""
WORKER = "autotune.probe.survey_worker:survey"
WALL_S = 3600.0
HUB_BYTES = 2**34
"""The size that data of a hub are taken to have."""
STALL_S, HUB_S = 60.0, 300.0
"""Without progress, idle or computing; idle the second where a hub is asked, which may be slow."""


@dataclass(frozen=True, kw_only=True)
class Machine(Message):
    """A machine that runs probes: the devices of a job, what they are in, what is installed."""

    device: devices.DeviceFacts
    host: HostFacts
    stack: stack.StackFacts


def machine_here(job: Job) -> Machine:
    """Return this machine.

    Raises:
        MachineError: the devices that were asked for are not there.
    """
    device = devices.detect(job.devices.kind, job.devices.index, job.devices.count)
    return Machine(device=device, host=host(), stack=stack.installed(job.method))


def survey(
    job: Job,
    run: RunFolder,
    server: ChildServer,
    *,
    planned: bool = False,
    machine: Machine | None = None,
) -> Facts:
    """Return the facts of the job's model, data, device and stack; keep them in the run folder.

    A run that goes on keeps what it found of model and data; the device is looked at afresh.

    Args:
        planned: whether nothing is going to be trained, so that a model's shape is enough.
        machine: that runs the probes; None: this one.

    Raises:
        UserError: the model, the data or a training field cannot be used.
        MachineError: the device that was asked for is not there.
    """
    run.check_name()
    if not planned:
        refuse_unrewarded(job)
    stack.refuse_missing(job.method)
    machine = machine or machine_here(job)
    device, facts = machine.device, _known(run)
    if facts is not None:
        # Measurements of one study share one limit: the free memory of the start stands.
        device = dataclasses.replace(device, free_bytes=facts.device.free_bytes)
        return dataclasses.replace(facts, device=device, host=facts.host or machine.host)
    model, data = _survey_in_child(job, run, server, device, planned)
    facts = Facts(model=model, data=data, device=device, stack=machine.stack, host=machine.host)
    write_json(run.machine, {"device": facts.plain()["device"], "stack": facts.plain()["stack"]})
    write_json(run.facts, facts.plain())
    return facts


def _known(run: RunFolder) -> Facts | None:
    """Return the facts that an earlier process of this run found; None: none, or a damaged file."""
    if run.rows.is_dir():
        with contextlib.suppress(TypeError, ValueError, LookupError, AttributeError):
            return facts_from_plain(read_json(run.facts) or {})
    return None


def refuse_untried(job: Job) -> None:
    """Refuse a job that can be planned, but that probes cannot train.

    Raises:
        UserError: several machines.
    """
    if job.devices.nodes > 1:
        raise user_error(
            f"probes run on one machine; devices.nodes is {job.devices.nodes}",
            where="devices.nodes",
            hint="`autotune run --engine ray` probes on several; or plan it (`autotune plan "
            "--device h100 --devices 8 --nodes 2`); a bundle that was tuned on one machine can be "
            "launched over several (`launch_nodes.sh`)",
        )


def _survey_in_child(
    job: Job, run: RunFolder, server: ChildServer, device: devices.DeviceFacts, planned: bool
) -> tuple[ModelFacts, DataFacts]:
    folder = run.survey
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.reply.unlink(missing_ok=True)
    lengths = job.dataset.lengths.model_dump() if isinstance(job.dataset, NoData) else None
    request = SurveyRequest(
        method=job.method,
        model=job.model,
        weights=job.weights,
        dataset=named_dataset(job, run),
        dataset_config=job.dataset_config,
        train_split=job.dataset_train_split,
        test_split=job.dataset_test_split,
        lengths=lengths,
        training={**job.training, **_pinned_fields(job)},
        seed=job.seed,
        run_folder=str(run.path),
        reward_funcs=job.reward_funcs,
        second_model=job.second_model,
        environment=device_environment(device),
        planned=planned,
        columns=job.columns,
    )
    write_json(folder.request, request.plain())
    names = (job.model, job.second_model, request.dataset)
    is_local = all(Path(name).exists() for name in names if name)
    stall_s, silent_s = (STALL_S, HUB_S) if is_local else (HUB_S, WALL_S)
    limits = Limits(wall_s=WALL_S, stall_s=stall_s, busy_s=STALL_S, silent_s=silent_s)
    ending = server.run(folder, WORKER, limits, host=meter_of_a_look(_size(request.dataset)))
    whole = None if planned else f"the whole message is in {folder.stderr}"
    try:
        model, data = read_survey_reply(read_json(folder.reply), whole)
    except NONSENSE:
        raise _without_answer(ending, folder, keeps_log=not planned) from None
    if job.training.get("eval_strategy", "no") != "no" and data.source:
        _check_test_split(job, data.test_rows)
    return model, data


def read_survey_reply(reply: Any, hint: str | None) -> tuple[ModelFacts, DataFacts]:
    """Return the facts that a survey's child replied.

    Args:
        hint: the next step for problems that name none.

    Raises:
        UserError: it found problems.
        NONSENSE: the reply is damaged.
    """
    problems = [
        Problem(where=where, what=what, hint=advice or hint)
        for where, what, advice in from_plain(list[tuple[str, str, str | None]], reply["problems"])
    ]
    if problems:
        raise UserError(*problems)
    return from_plain(ModelFacts, reply["model"]), from_plain(DataFacts, reply["data"])


def _size(dataset: str | None) -> int:
    """Return the bytes that data take on the disk (a hole in a file takes none), or may take."""
    if dataset is not None and not Path(dataset).exists():
        return HUB_BYTES
    files = Path(dataset).rglob("*") if dataset is not None else ()
    return sum(512 * file.stat().st_blocks for file in files if file.is_file())


def _without_answer(ending: Ending, folder: ChildFolder, *, keeps_log: bool) -> AutotuneError:
    """Return the error of a survey that did not come to its end. The log of a plan is gone by
    then."""
    stages = [event["stage"] for event in ending.events if "stage" in event]
    stage = stages[-1] if stages else ""
    most = format_bytes(ending.host.limit_bytes or 0)
    what = {
        "stall": f"no progress for {STALL_S:.0f} s of looking at it: autotune gave up",
        "host": f"looking at it took more than {most} of the host's memory",
    }
    log = f"; its log is {folder.stderr}" if keeps_log else ""
    if stage and ending.why in what:
        hint = f"it may be endless, or too large{log}"
        return user_error(what[ending.why], where=stage, hint=hint)
    if stage and ending.why == "exited" and ending.signal is not None and not ending.by_another:
        hint = f"it may be damaged, such as a JSON file whose first row is null{log}"
        name = signal_name(ending.signal)
        held = format_bytes(ending.max_rss_bytes or 0)
        return user_error(f"looking at it ended in {name}, holding {held}", where=stage, hint=hint)
    return machine_error(
        f"looking at the model and the data failed (exit code {ending.exit_code}, signal "
        f"{ending.signal}, {ending.why}){ending_of(folder.stderr)}",
        where=str(folder.stderr) if keeps_log else "",
        hint="read that log" if keeps_log else None,
    )


def _pinned_fields(job: Job) -> dict[str, Any]:
    """Return pinned knobs that are fields: TRL judges the user's other fields beside them. The
    number of micro-batches of a step is searched: here as many as make whole groups of
    completions."""
    fields = {n: v for n, v in job.fixed.items() if n in stack.training_fields(job.method)}
    if CHECKPOINTING in fields:  # a level of it takes two fields
        fields[CHECKPOINTING] = bool(fields[CHECKPOINTING])
    if GROUP not in METHODS[job.method].knobs:
        return fields
    group = fields.get(GROUP) or job.training.get(GROUP) or USUAL_GROUP
    return {ACCUMULATION: group, **fields}


def _check_test_split(job: Job, test_rows: int) -> None:
    """Refuse a launch that evaluates without a split to evaluate on."""
    if test_rows == 0:
        raise user_error(
            f"`eval_strategy: {job.training['eval_strategy']}` needs a split "
            f"`{job.dataset_test_split}`, and the data set has none",
            where="dataset_test_split",
            hint="name another split, or leave eval_strategy out",
        )


def named_dataset(job: Job, run: RunFolder) -> str | None:
    """Return the value of `dataset_name`: TRL loads folders and hub ids, so one file gets a
    folder."""
    if isinstance(job.dataset, NoData):
        return None
    file = Path(job.dataset)
    if not file.is_file():
        return job.dataset
    if job.dataset_train_split != "train":
        raise user_error(
            "a data set that is one file has only the split `train`",
            where="dataset_train_split",
            hint="leave it out, or put the file into a folder",
        )
    run.dataset.mkdir(parents=True, exist_ok=True)
    link = run.dataset / f"train{file.suffix}"
    link.unlink(missing_ok=True)
    link.symlink_to(file)
    return str(run.dataset)


def memory_limit(job: Job, device: devices.DeviceFacts) -> int:
    """Return bytes a probe may take: what the job allows, or all that is free.

    Raises:
        MachineError: the device is busy, or has less free than the job counts on.
    """
    if device.is_busy:
        raise machine_error(
            describe_processes(device), where="devices", hint="end them, or name another GPU"
        )
    if job.devices.memory is not None and job.devices.memory > device.free_bytes:
        raise machine_error(
            f"{format_bytes(job.devices.memory)} were asked for, but only "
            f"{format_bytes(device.free_bytes)} of {format_bytes(device.total_bytes)} are free",
            where="devices.memory",
            hint="lower it, or free memory first",
        )
    return job.devices.memory or device.free_bytes


def check_host_memory(job: Job, facts: Facts) -> None:
    """Hold what the job counts on against what the host has.

    Raises:
        MachineError: it has less free.
    """
    requested, host = job.devices.host_memory, facts.host
    if requested is not None and host is not None and requested > host.free_bytes:
        raise machine_error(
            f"{format_bytes(requested)} of the host's memory were asked for, but only "
            f"{format_bytes(host.free_bytes)} of {format_bytes(host.total_bytes)} are free",
            where="devices.host_memory",
            hint="lower it, or free memory first",
        )


def allowed_memory(job: Job, device: devices.DeviceFacts) -> int:
    """Return bytes a recommended candidate may take: the limit less the headroom."""
    return int((job.devices.memory or device.free_bytes) * (1 - job.headroom))
