"""Makes a job of files of another tool. Pure.

    imported = import_job([GivenFile("theirs.yaml", data)], Wishes())

What files pin and the search tries anyway is searched; the global batch is kept exactly. Nothing
is dropped without a word: each field ends as one `Fate`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.errors import Problem, UserError, user_error
from autotune.facts.stack import field_defaults
from autotune.job.methods import METHODS
from autotune.space.definition import load_definition
from autotune.space.foreign import as_is, launch, trl
from autotune.space.foreign.batch import Rows, set_rows
from autotune.space.foreign.command_line import Command
from autotune.space.foreign.fields import CARRIED, LEFT, SEARCHED, UNKNOWN, Fate, Imported
from autotune.space.foreign.launch import Launch, Read
from autotune.space.foreign.launcher import of_settings
from autotune.space.foreign.owner import part_of, refuse_part, tool_of
from autotune.space.foreign.reading import Reading
from autotune.space.foreign.registry import is_registry
from autotune.space.foreign.secrets import without_secret
from autotune.space.foreign.tool import SHARDING, Tool
from autotune.space.job_file.problems import as_yaml
from autotune.space.knobs import MINI_BATCHES, condition_holds
from autotune.space.sharding.sharding import DISTRIBUTED_TYPE, FSDP

_LAUNCHES = ("deepspeed", "fsdp", "fsdp_config")


@dataclass(frozen=True, kw_only=True)
class GivenFile:
    """A file, or the flags of a command.

    Attributes:
        name: as messages have it.
        data: the mapping that it holds.
        twice: keys that it has twice.
    """

    name: str
    data: Mapping[str, Any]
    twice: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Choices of the user beside the files.

    Attributes:
        method: of the training, where the files do not say it.
        devices: of each machine; None: as the files say, or one.
        nodes: machines.
        as_is: whether everything stays as the files have it, so that a plan says whether it fits.
    """

    method: str = ""
    devices: int | None = None
    nodes: int | None = None
    as_is: bool = False


def import_job(
    files: Sequence[GivenFile],
    wishes: Wishes,
    command: Command | None = None,
    *,
    exists: Callable[[str], bool] = lambda _: False,
    read: Read = lambda _: None,
) -> Imported:
    """Return the job of one trainer's file and of what launches it.

    Args:
        command: what would start it; its flags go before the trainer's file.
        exists: whether there is such a file or folder here.
        read: returns what a file holds that these name.

    Raises:
        UserError: no file configures a training, several do, or one says what cannot be tuned.
    """
    command = command or Command()
    trainer, tool = _trainer(files, command)
    settings = Launch()
    if not command.of_a_script:
        settings, data = of_settings(trainer.data, read)
        trainer = replace(trainer, data=data)
    method = _method(trainer, tool, wishes)
    definition = load_definition(method)
    reading = Reading(
        tool.flat(trainer.data), tool.name, METHODS[method], definition, as_is=wishes.as_is
    )
    reading.exists = exists
    reading.registry = next((f.data for f in files if is_registry(f.data)), {})
    found = _launched(reading, files, (command.variables, settings, command.launch), read)
    found = _with_wishes(found, wishes)
    _say_twice(reading, tool, files)
    reading.own_program = command.tool is not None
    tool.read(reading)
    for name, value in found.trainer.items():
        if not reading.has(name) and name not in reading.data:
            reading.place(f"accelerate's {name}", name, value)
    _read_precision(reading, found)
    if found.cpu:
        reading.write("devices.kind", "cpu")
    if reading.shards and DISTRIBUTED_TYPE not in found.pins:
        found = replace(found, pins={**found.pins, DISTRIBUTED_TYPE: FSDP})
    rows = Rows.of(reading, tool, found)
    set_rows(reading, tool, rows)
    _read_episodes(reading)
    _read_launch(reading, found, rows)
    _read_table(reading, tool)
    _set_defaults(reading, tool)
    _leave_dormant(reading)
    if wishes.as_is:
        as_is.pin(reading, tool, found, rows.processes)
    if reading.problems:
        raise UserError(*(_at(problem, trainer.name) for problem in reading.problems))
    fates = tuple(map(without_secret, (*reading.fates.values(), *_launch_fates(found, reading))))
    return Imported(
        tool=tool.name,
        job=_ordered(reading.job),
        fates=fates,
        assumed=tuple(reading.assumed),
        origins=reading.origins,
    )


def _trainer(files: Sequence[GivenFile], command: Command) -> tuple[GivenFile, Tool]:
    """Return the one file that configures a training, with a command's flags over it, and whose it
    is."""
    found = [(file, tool) for file in files if (tool := tool_of(file.data)) is not None]
    if command.tool is not None or command.flags:
        rest = [file for file in files if part_of(file.data) is None and not is_registry(file.data)]
        name = rest[0].name if rest else "the command"
        data = {**(rest[0].data if rest else {}), **command.flags}
        tool = command.tool or (found[0][1] if found else None) or tool_of(data) or trl.TOOL
        return GivenFile(name=name, data=data), tool
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        owners = ", ".join(f"{file.name} ({tool.name})" for file, tool in found)
        raise user_error(f"several files configure a training: {owners}", hint="give one of them")
    for file in files:
        refuse_part(file.data, file.name)
    tools = "Axolotl, LLaMA-Factory, torchtune, TRL, ..."
    what = f"this is not a configuration of a known tool ({tools})"
    names = ", ".join(file.name for file in files)
    raise user_error(what, where=names, hint="a job needs no import: `autotune plan JOB`")


def _method(trainer: GivenFile, tool: Tool, wishes: Wishes) -> str:
    named = {method.config_file: name for name, method in METHODS.items()}
    data = tool.flat(trainer.data)
    last = trainer.name.replace("\\", "/").rpartition("/")[2]
    method = wishes.method or tool.method(data) or named.get(last)
    if method in METHODS:
        return str(method)
    methods = ", ".join(METHODS)
    if method:
        raise user_error(f"{method[:80]} is not a method of autotune ({methods})", where="--method")
    value = data.get(tool.says_method) if tool.says_method else None
    if value is not None and not wishes.method:
        what = f"autotune cannot train this: `{tool.says_method}: {str(value)[:80]}`"
        raise user_error(what, where=trainer.name, hint=f"`--method` says another: {methods}")
    what = "it does not name the training method"
    hint = f"add `--method sft` (or another of {methods})"
    raise user_error(what, where=trainer.name, hint=hint)


def _launched(
    reading: Reading, files: Sequence[GivenFile], of_command: Sequence[Launch], read: Read
) -> Launch:
    """Return what everything together says of the launch; what comes later goes first."""
    variables, settings, flags = of_command
    found = variables.joined(launch.of_trainer(*map(reading.given, _LAUNCHES), read=read))
    for part in (*(_launch_of(file, read) for file in files), settings, flags):
        found = found.joined(part)
    return found


def _launch_of(file: GivenFile, read: Read) -> Launch:
    """Return what a file says of the launch; nothing where it is none of a launcher."""
    part = part_of(file.data) if tool_of(file.data) is None else None
    if part == "accelerate":
        return launch.of_part(part, launch.of_accelerate(file.data, read))
    if part == "DeepSpeed":
        return launch.of_part(part, launch.of_deepspeed(file.data))
    return Launch()


def _with_wishes(found: Launch, wishes: Wishes) -> Launch:
    if wishes.nodes is not None:
        found = replace(found, nodes=wishes.nodes)
    return (
        found if wishes.devices is None else replace(found, count=wishes.devices, per_machine=True)
    )


def _read_launch(reading: Reading, found: Launch, rows: Rows) -> None:
    """Read the number of devices, and the sharding fields of the trainer's file."""
    if found.processes is not None or rows.inferred:
        count, rest = divmod(rows.processes, found.machines)
        if rest or not count:
            what = f"{rows.processes} processes cannot be divided among {found.machines} machines"
            reading.problems.append(Problem(where="num_processes", what=what))
        reading.write("devices.count", count)
        if found.machines > 1:
            both = f"{rows.processes} in all, {count} on each of {found.machines}"
            reading.assumed.append(f"devices.count: {count} ({both})")
    else:
        each = f" on each of {found.machines} machines" if found.machines > 1 else ""
        reading.assumed.append(
            f"devices: 1{each} (nothing says how many; `--devices 4` does, and the global batch "
            "follows)"
        )
    if found.nodes is None:
        reading.assumed += found.assumed
    if found.machines > 1:
        reading.write("devices.nodes", found.machines)
    for name in _LAUNCHES:
        if not reading.given(name):
            reading.leave(name, "nothing is said")
        elif not reading.as_is:
            reading.search(name, SHARDING)
    lone = rows.processes == 1 and reading.job.get("tuning") != "qlora" and not reading.as_is
    if lone and found.pins.get("offload_optimizer_device") == "cpu":
        reading.write("recipe.offload_optimizer_device", ["none", "cpu"])


def _say_twice(reading: Reading, tool: Tool, files: Sequence[GivenFile]) -> None:
    """Say which value of a key counts that is there twice; refuse it where the tool does."""
    for problem in (problem for file in files for problem in file.twice):
        if tool.reads_by_omegaconf:
            raise UserError(problem)
        reading.assumed.append(f"{problem.what}: the last one counts ({problem.where})")


def _read_precision(reading: Reading, found: Launch) -> None:
    """Read the mixed precision of a launcher's file: a trainer's that is on goes before it."""
    ours = reading.job.get("precision")
    if not found.precision or found.precision == ours:
        return
    silent = ours is None or (ours == "fp32" and found.precision != "fp32")
    if silent:
        reading.write("precision", found.precision)
        reading.assumed[:] = [t for t in reading.assumed if not t.startswith("precision: ")]
    if ours is not None:
        names = {True: f"accelerate's ({found.precision})", False: f"the trainer's file's ({ours})"}
        reading.assumed.append(
            f"precision: {reading.job['precision']} (two files disagree: {names[silent]} counts, "
            f"not {names[not silent]})"
        )


def _read_episodes(reading: Reading) -> None:
    """Read how long PPO trains: in updates, not in prompts."""
    total = reading.given("total_episodes")
    if reading.method.name == "ppo" and isinstance(total, int) and total > 0:
        update = reading.job["global_batch_size"] * reading.counted(MINI_BATCHES, 1)
        reading.carry("total_episodes", "training.max_steps", -(-total // update))


def _leave_dormant(reading: Reading) -> None:
    """Leave out what other settings switch off, and what this method's trainer cannot do."""
    fixed, training = reading.job.get("fixed", {}), reading.job.get("training", {})
    context = {"job.tuning": reading.job.get("tuning", "full"), **fixed}
    for name in list(fixed):
        knob = reading.definition.knob(name)
        for other, condition in knob.only_if.items() if knob else ():
            if other in context and not condition_holds(condition, context[other], context):
                text = f"{other.removeprefix('job.')}: {as_yaml(context[other])}"
                reading.drop(("fixed", name), f"no effect with `{text}`")
                break
    for name, value in list(training.items()):
        able = reading.method.refusals.get(name)
        if able is not None and value not in (None, False, *able[0]):
            reading.drop(("training", name), able[1])


def _read_table(reading: Reading, tool: Tool) -> None:
    """Read every field that was not read yet."""
    defaults = field_defaults(reading.method.name) if tool.dumps_defaults else {}
    dumped = bool(defaults) and len(reading.data) > len(defaults) // 2
    for name, value in list(reading.data.items()):
        if name in reading.fates or name in _LAUNCHES:
            continue
        rule = tool.rule(name)
        if dumped and (value is None or (name in defaults and _same(value, defaults[name]))):
            reading.end(name, CARRIED, "the default")
        elif value is None:
            reading.leave(name, "nothing is said")
        elif name == "warmup_ratio" and (not value or _is_above_0(reading.given("warmup_steps"))):
            reading.leave(name, "`warmup_steps` goes before it")
        elif name == "warmup_steps" and not _is_above_0(value) and reading.given("warmup_ratio"):
            reading.leave(name, "`warmup_ratio` goes before it")
        elif rule is not None and not rule.ours and value is False:
            reading.leave(name, "off")
        elif rule is not None:
            reading.apply(name, rule)
        elif tool.takes_trainer_fields:
            reading.place(name, name, value)
        else:
            reading.end(name, UNKNOWN, "nothing is known of it")


def _is_above_0(value: Any) -> bool:
    return value is not None and str(value) not in ("0", "0.0", "False")


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and value == default


def _set_defaults(reading: Reading, tool: Tool) -> None:
    """Set the tool's defaults where TRL has others."""
    adapters = reading.job.get("tuning") in ("lora", "qlora")
    for name, value in tool.defaults.items():
        known = reading.path_of(name)
        lost = name.startswith("lora_") and not adapters
        if known is not None and not lost and not reading.has(name):
            reading.assume(known, value, f"default of {tool.name}")


def _launch_fates(found: Launch, reading: Reading) -> list[Fate]:
    if found.precision != reading.job.get("precision"):
        fates = [
            replace(fate, kind=LEFT, detail="the trainer's file goes before it")
            if (fate.kind, fate.detail) == (CARRIED, "precision")
            else fate
            for fate in found.fates
        ]
        found = replace(found, fates=tuple(fates))
    if not reading.as_is:
        return list(found.fates)
    pinned = "distributed_type" in reading.job.get("fixed", {})
    lost = found.unread or found.not_built
    detail = (
        "fixed" if pinned else "not all of it is known" if lost else "one process shares nothing"
    )
    return [
        replace(fate, kind=CARRIED if pinned else LEFT, detail=detail)
        if fate.kind == SEARCHED
        else fate
        for fate in found.fates
    ]


def _at(problem: Problem, file: str) -> Problem:
    return replace(problem, where=f"{file}: {problem.where}")


def _ordered(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in the order in which a job is read."""
    first = (
        *("model", "method", "dataset", "columns", "dataset_config", "dataset_train_split"),
        *("dataset_test_split", "reward_funcs", "reward_model_path", "tuning"),
        *("global_batch_size", "max_length", "precision", "devices", "training", "fixed"),
    )
    names = [*(n for n in first if n in job), *(n for n in job if n not in first)]
    return {name: job[name] for name in names}
