"""Makes a job of files of another tool. Pure.

    imported = import_job([GivenFile(name="theirs.yaml", data=data)], Wishes())

What files pin and the search tries anyway is searched; the global batch is kept exactly. Nothing
is dropped without a word: each field ends as one `Fate`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.errors import Problem, UserError, user_error
from autotune.facts.stack import field_defaults
from autotune.job.methods import BY_SCRIPT, EXPERIMENTAL, METHODS
from autotune.space.checkpointing import CHECKPOINTING
from autotune.space.definition import load_definition
from autotune.space.foreign import as_is, launch, readers
from autotune.space.foreign.batch import Rows, set_rows, share_rows
from autotune.space.foreign.command_line import Command
from autotune.space.foreign.fields import (
    CARRIED,
    NOTHING,
    SEARCHED,
    UNKNOWN,
    Fate,
    Imported,
    without_secret,
)
from autotune.space.foreign.launch import Launch, Read
from autotune.space.foreign.reading import Reading
from autotune.space.foreign.tool import TRL, Tool, is_registry, part_of, refuse_part, tool, tool_of
from autotune.space.job_file.online import TEACHER
from autotune.space.job_file.problems import as_yaml
from autotune.space.knobs import condition_holds
from autotune.space.sharding.sharding import DEEPSPEED, DISTRIBUTED_TYPE, FSDP

_LAUNCHES = ("deepspeed", "fsdp", "fsdp_config")
_OTHER = (
    "`--method` says another: {}; a command is searched as it is by `autotune run --command -- ...`"
)
_EXPERIMENTAL_FIELDS = ("lmbda", "seq_kd", "loss_top_k", "use_teacher_server")
"""Fields of trainers with a teacher in `trl.experimental`, which `DistillationTrainer` has not."""
_WARMUPS = ("warmup_steps", "warmup_ratio")
_FIRST = (
    *("model", "method", "dataset", "columns", "dataset_config", "dataset_train_split"),
    *("dataset_test_split", "reward_funcs", "reward_model_path", TEACHER, "tuning"),
    *("global_batch_size", "max_length", "precision", "devices", "training", "fixed"),
)
"""The order in which a job is read."""


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
    trainer, owner = _trainer(files, command)
    settings = Launch()
    if not command.of_a_script:
        settings, data = launch.of_settings(trainer.data, read)
        trainer = replace(trainer, data=data)
    method = _method(trainer, owner, wishes)
    data = readers.fields_of(owner, trainer.data)
    definition = load_definition(method)
    reading = Reading(data, owner, METHODS[method], definition, as_is=wishes.as_is)
    reading.exists, reading.own_program = exists, command.tool is not None
    reading.registry = next((f.data for f in files if is_registry(f.data)), {})
    _say_twice(reading, files)
    found = command.variables.joined(launch.of_trainer(*map(reading.given, _LAUNCHES), read=read))
    for part in (*(_launch_of(file, read) for file in files), settings, command.launch):
        found = found.joined(part)
    found = _with_wishes(found, wishes)
    reading.place_level()
    readers.read(reading)
    found = _make_job(reading, found)
    if reading.problems:
        raise UserError(*(replace(p, where=f"{trainer.name}: {p.where}") for p in reading.problems))
    fates = (*reading.fates.values(), *_launch_fates(found, reading))
    names = [*(n for n in _FIRST if n in reading.job), *(n for n in reading.job if n not in _FIRST)]
    return Imported(
        tool=owner.name,
        job={name: reading.job[name] for name in names},
        fates=tuple(map(without_secret, fates)),
        assumed=tuple(reading.assumed),
        origins=reading.origins,
    )


def _make_job(reading: Reading, found: Launch) -> Launch:
    """Give all fields their places that the tool's reader left; return the launch of the job."""
    if reading.shards and DISTRIBUTED_TYPE not in found.pins:
        found = replace(found, pins={**found.pins, DISTRIBUTED_TYPE: FSDP})
    engine = DEEPSPEED if reading.given("deepspeed") else found.pins.get(DISTRIBUTED_TYPE)
    owners = {"the batch": DEEPSPEED, CHECKPOINTING: FSDP}
    names = [fate.field for fate in found.fates if owners.get(fate.detail, engine) != engine]
    fates = launch.without(found.fates, names, "only an engine reads it that does not train")
    found = replace(found, fates=fates, batch=found.batch if engine == DEEPSPEED else {})
    for name, value in found.trainer.items():
        if name != CHECKPOINTING and not reading.has(name) and name not in reading.data:
            reading.place(f"a launcher's {name}", name, value)
    _read_precision(reading, found)
    if found.cpu:
        reading.write("devices.kind", "cpu")
    found = share_rows(reading, found)
    rows = Rows.of(reading, found)
    set_rows(reading, rows)
    total = reading.given("total_episodes")
    if reading.method.name == "ppo" and isinstance(total, int) and total > 0:
        updates = -(-total // reading.job["global_batch_size"])
        reading.carry("total_episodes", "training.max_steps", updates)
    _read_devices(reading, found, rows)
    _read_table(reading)
    _set_defaults(reading)
    if engine == FSDP and found.trainer.get(CHECKPOINTING):
        if not reading.job.get("fixed", {}).get(CHECKPOINTING, True):
            reading.drop(("fixed", CHECKPOINTING), "FSDP's own checkpointing is on")
        reading.place(f"a launcher's {CHECKPOINTING}", CHECKPOINTING, True)
    _leave_dormant(reading)
    if reading.as_is:
        as_is.pin(reading, found, rows.processes)
    return found


def _trainer(files: Sequence[GivenFile], command: Command) -> tuple[GivenFile, Tool]:
    """Return the one file that configures a training, with a command's flags over it, and whose it
    is."""
    found = [(file, owner) for file in files if (owner := tool_of(file.data)) is not None]
    if command.tool is not None or command.flags:
        rest = [file for file in files if part_of(file.data) is None and not is_registry(file.data)]
        name = rest[0].name if rest else "the command"
        data = {**(rest[0].data if rest else {}), **command.flags}
        owner = command.tool or (found[0][1] if found else None) or tool_of(data) or tool(TRL)
        return GivenFile(name=name, data=data), owner
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        owners = ", ".join(f"{file.name} ({owner.name})" for file, owner in found)
        raise user_error(f"several files configure a training: {owners}", hint="give one of them")
    for file in files:
        refuse_part(file.data, file.name)
    what = (
        "this is not a configuration of a known tool (Axolotl, LLaMA-Factory, torchtune, TRL, ...)"
    )
    names = ", ".join(file.name for file in files)
    raise user_error(what, where=names, hint="a job needs no import: `autotune plan JOB`")


def _method(trainer: GivenFile, owner: Tool, wishes: Wishes) -> str:
    named = {method.config_file: name for name, method in METHODS.items()}
    data = readers.fields_of(owner, trainer.data)
    last = trainer.name.replace("\\", "/").rpartition("/")[2]
    method = wishes.method or readers.method_of(owner, data) or named.get(last)
    fields = [name for name in _EXPERIMENTAL_FIELDS if name in data]
    if method in METHODS and METHODS[method].teacher and fields:
        what = f"`{fields[0]}` is of a trainer of `trl.experimental`, which no method is for"
        raise user_error(what, where=trainer.name, hint=BY_SCRIPT)
    if method in METHODS:
        return str(method)
    methods = ", ".join(METHODS)
    if method:
        what = f"{method[:80]} is not a method of autotune ({methods})"
        where = "--method" if wishes.method else trainer.name
        raise user_error(what, where=where, hint=BY_SCRIPT if method in EXPERIMENTAL else None)
    value = data.get(owner.says_method) if owner.says_method else None
    if value is not None:
        what = f"autotune cannot train this: `{owner.says_method}: {str(value)[:80]}`"
        hint = BY_SCRIPT if str(value) in EXPERIMENTAL else _OTHER.format(methods)
        raise user_error(what, where=trainer.name, hint=hint)
    what = "it does not name the training method"
    hint = f"add `--method sft` (or another of {methods})"
    raise user_error(what, where=trainer.name, hint=hint)


def _launch_of(file: GivenFile, read: Read) -> Launch:
    """Return what a file says of the launch; nothing where it is none of a launcher."""
    part = part_of(file.data) if tool_of(file.data) is None else None
    if part == "accelerate":
        return launch.of_accelerate(file.data, read).of(part)
    return launch.of_deepspeed(file.data).of(part) if part == "DeepSpeed" else Launch()


def _with_wishes(found: Launch, wishes: Wishes) -> Launch:
    if wishes.nodes is not None:
        found = replace(found, nodes=wishes.nodes)
    if wishes.devices is None:
        return found
    return replace(found, count=wishes.devices, per_machine=True)


def _say_twice(reading: Reading, files: Sequence[GivenFile]) -> None:
    """Say which value of a key counts that is there twice; refuse it where the tool does."""
    for problem in (problem for file in files for problem in file.twice):
        if reading.tool.reads_by_omegaconf:
            raise UserError(problem)
        reading.assumed.append(f"{problem.what}: the last one counts ({problem.where})")


def _read_precision(reading: Reading, found: Launch) -> None:
    """Read the mixed precision of a launcher's file: a trainer's that is on goes before it."""
    ours, theirs = reading.job.get("precision"), found.precision
    if not theirs or theirs == ours:
        return
    silent = ours in (None, "fp32") and (ours is None or theirs != "fp32")
    if silent:
        reading.write("precision", theirs)
        reading.assumed[:] = [t for t in reading.assumed if not t.startswith("precision: ")]
    if ours is not None:
        names = {True: f"accelerate's ({theirs})", False: f"the trainer's file's ({ours})"}
        which = f"{names[silent]} counts, not {names[not silent]}"
        text = f"precision: {reading.job['precision']} (two files disagree: {which})"
        reading.assumed.append(text)


def _read_devices(reading: Reading, found: Launch, rows: Rows) -> None:
    """Read the number of devices, and the sharding fields of the trainer's file."""
    count, rest = divmod(rows.processes, found.machines)
    if found.processes is None and not rows.inferred:
        each = f" on each of {found.machines} machines" if found.machines > 1 else ""
        text = f": `{found.open}` is not a number" if found.open else ""
        reading.assumed.append(
            f"devices: 1{each} (nothing says how many{text}; `--devices 4` does, and the global "
            "batch follows)"
        )
    elif rest or not count:
        what = f"{rows.processes} processes cannot be divided among {found.machines} machines"
        reading.refuse("num_processes", what)
    else:
        reading.write("devices.count", count)
        if found.open and found.count is None:
            seen = f"the devices that are seen; `{found.open}` is not a number"
            reading.assumed.append(f"devices: {count} ({seen})")
        if found.machines > 1:
            both = f"{rows.processes} in all, {count} on each of {found.machines}"
            reading.assumed.append(f"devices.count: {count} ({both})")
    if found.nodes is None:
        reading.assumed += found.assumed
    if found.machines > 1:
        reading.write("devices.nodes", found.machines)
    for name in _LAUNCHES:
        if not reading.given(name):
            reading.leave(name, NOTHING)
        elif not reading.as_is:
            reading.search(name, "how devices share the training is searched")
    lone = rows.processes == 1 and reading.job.get("tuning") != "qlora" and not reading.as_is
    if lone and found.pins.get("offload_optimizer_device") == "cpu":
        reading.write("recipe.offload_optimizer_device", ["none", "cpu"])


def _read_table(reading: Reading) -> None:
    """Read every field that was not read yet."""
    defaults = field_defaults(reading.method.name) if reading.tool.dumps_defaults else {}
    dumped = bool(defaults) and len(reading.data) > len(defaults) // 2
    steps, ratio = (reading.given(name) for name in _WARMUPS)
    beside = _WARMUPS[bool(ratio) and str(steps) in ("None", "0", "0.0", "False")]
    for name, value in list(reading.data.items()):
        if name in reading.fates or name in _LAUNCHES:
            continue
        default = defaults.get(name)
        same = name in defaults and type(value) is type(default) and value == default
        if dumped and (value is None or same):
            reading.end(name, CARRIED, "the default")
        elif value is None:
            reading.leave(name, NOTHING)
        elif name in _WARMUPS and name != beside and (steps is not None or not ratio):
            reading.leave(name, NOTHING, f"`{beside}` goes before it")
        elif not reading.apply(name):
            if reading.tool.takes_trainer_fields:
                reading.place(name, name, value)
            else:
                reading.end(name, UNKNOWN, "nothing is known of it")


def _set_defaults(reading: Reading) -> None:
    """Set the tool's defaults where TRL has others."""
    adapters = reading.job.get("tuning") in ("lora", "qlora")
    for name, value in reading.tool.defaults.items():
        known = reading.path_of(name)
        lost = name.startswith("lora_") and not adapters
        if known is not None and not lost and not reading.has(name):
            reading.assume(known, value, f"default of {reading.tool.name}")


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


def _launch_fates(found: Launch, reading: Reading) -> tuple[Fate, ...]:
    """Return what became of a launcher's fields, now that the job is made."""
    fates = found.fates
    if found.precision != reading.job.get("precision"):
        names = [fate.field for fate in fates if fate.detail == "precision"]
        fates = launch.without(fates, names, "the trainer's file goes before it")
    names = [fate.field for fate in fates if fate.kind == SEARCHED]
    if not reading.as_is:
        return fates
    if DISTRIBUTED_TYPE not in reading.job.get("fixed", {}):
        lost = found.unread or found.not_built
        return launch.without(fates, names, "not all of it is known" if lost else "one process")
    return tuple(
        replace(fate, kind=CARRIED, detail="fixed") if fate.field in names else fate
        for fate in fates
    )
