"""What launches a training: accelerate's YAML, DeepSpeed's JSON, flags of launchers, variables of
the environment. Its table is `launch.yaml`. Pure."""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.errors import user_error
from autotune.facts.stack import source_of
from autotune.job.yaml_file import parse_yaml
from autotune.space.checkpointing import CHECKPOINTING
from autotune.space.foreign.fields import CARRIED, LEARNING, LEFT, MEMORY, NOTHING, SEARCHED, Fate
from autotune.space.foreign.tool import effect_of, table
from autotune.space.sharding.sharding import (
    DEEPSPEED,
    DISTRIBUTED_TYPE,
    FSDP,
    NONE,
    OPTIMIZER_OFFLOAD,
    PARAM_OFFLOAD,
    RESHARD,
)

CONFIG, PRECISION = "deepspeed_config_file", "mixed_precision"
OF_ALL, _OF_EACH = "num_processes", ("nproc_per_node", "num_gpus")
_NODES = ("num_machines", "nnodes", "num_nodes")
COUNTS = frozenset({OF_ALL, *_OF_EACH, *_NODES})
"""Settings of launchers that TRL and Axolotl take among their own."""
_ACCELERATE = "accelerate_config"
_BATCH = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
_KINDS = {"use_deepspeed": DEEPSPEED, "use_fsdp": FSDP}
NO_SHARD = "no_shard"
_STRATEGIES = {
    **dict.fromkeys(("true", "full_shard", "1", "hybrid_shard", "4"), True),
    **dict.fromkeys(("false", "shard_grad_op", "2", "hybrid_shard_zero2", "5"), False),
    **dict.fromkeys((NO_SHARD, "3"), NO_SHARD),
}
"""FSDP's strategies, by name or number: whether weights are divided again after their use."""
_UNREAD = "it was not read: give that file, too"
_NAMED = re.compile(r"(?:z|zero|stage)[_-]?([0-3])(?!\d)", re.IGNORECASE)
Read = Callable[[str], Mapping[str, Any] | None]
"""Return what a file holds that another one names; None: it is not here."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The processes of a launch, and their sharding.

    Attributes:
        count: processes, as the launcher says it; None: nothing says it.
        per_machine: whether `count` is of each machine, and not of all.
        open: a count of processes that is not a number.
        visible: devices of a machine that its processes may see, where nothing else says more.
        nodes: machines; None: nothing says it.
        parallel: devices that work on the same rows, by what they divide instead.
        pins: knobs of sharding as the files have them.
        batch: DeepSpeed's own numbers of rows, by its names.
        trainer: fields of the trainer that only these files have.
        precision: mixed precision; empty: nothing says it.
        unread: files that share the training, and are not here.
        guessed: what is taken of the name of such a file.
        hybrid: FSDP's strategy that divides within a machine only.
        not_built: ways to share the training that no job has.
        assumed: what is left open, as sentences.
        fates: what became of each field.
    """

    count: int | None = None
    per_machine: bool = False
    open: str = ""
    visible: int | None = None
    nodes: int | None = None
    parallel: Mapping[str, int] = field(default_factory=dict)
    pins: Mapping[str, Any] = field(default_factory=dict)
    batch: Mapping[str, int] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    precision: str = ""
    cpu: bool = False
    unread: tuple[str, ...] = ()
    guessed: str = ""
    hybrid: str = ""
    not_built: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    fates: tuple[Fate, ...] = ()

    @property
    def machines(self) -> int:
        """Number of machines; 1 where nothing says it."""
        return self.nodes or 1

    @property
    def processes(self) -> int | None:
        """Processes of all machines; None: nothing says it."""
        if self.count is not None:
            return self.count * self.machines if self.per_machine else self.count
        return None if self.visible is None else self.visible * self.machines

    def joined(self, other: "Launch") -> "Launch":
        """Both; what the other says goes first."""
        both: dict[str, Any] = {}
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(value, Mapping):
                both[name] = {**mine, **value}
            elif isinstance(value, tuple):
                both[name] = (*mine, *value)
            else:
                both[name] = mine if value in (None, "", False) else value
        counted = other if other.count is not None or other.open else self
        both["count"] = counted.count
        return Launch(**{**both, "per_machine": counted.per_machine})

    def of(self, part: str) -> "Launch":
        """Return the same, its fields under the name of the file's kind."""
        fates = (replace(fate, field=f"{part}: {fate.field}") for fate in self.fates)
        return replace(self, fates=tuple(fates))


@functools.cache
def _table() -> dict[str, Any]:
    data = table("launch")
    lists = data.pop("not_carried").items()
    return {**data, "effects": {name: e for e, names in lists for name in names.split()}}


def parallel_sizes() -> Mapping[str, str]:
    """Return fields that let several devices work on the same rows, and what these divide."""
    return dict(_table()["parallel"])


def _ended(name: str, value: Any, kind: Any, detail: str, changes: str = "", **said: Any) -> Launch:
    fate = Fate(field=name, value=value, kind=kind, detail=detail, changes=changes)
    return Launch(fates=(fate,), **said)


def _said(name: str, value: Any, detail: str, **said: Any) -> Launch:
    return _ended(name, value, CARRIED, detail, **said)


def _lost(name: str, value: Any, changes: str = NOTHING, why: str = "", **said: Any) -> Launch:
    detail = f"{changes} ({why})" if why else changes
    return _ended(name, value, LEFT, detail, changes, **said)


def of_accelerate(data: Mapping[str, Any], read: Read) -> Launch:
    """Return what accelerate's file says."""
    launch = Launch()
    for name, value in leaves(data):
        launch = launch.joined(_field(name, value, read))
    kind = str(data.get(DISTRIBUTED_TYPE))
    several = (launch.count or 1) > 1 or launch.machines > 1
    # YAML reads NO without quotes as false. `mpirun_config` starts as many as are said.
    if kind in (NONE, "False") and several and not data.get("mpirun_config"):
        alone = "accelerate starts one process: `distributed_type: NO`"
        fates = without(launch.fates, COUNTS, alone)
        launch = replace(launch, count=None, nodes=None, fates=fates)
    section = data.get("deepspeed_config")
    unsaid = isinstance(section, Mapping) and CONFIG not in section
    if kind == DEEPSPEED and "zero_stage" not in launch.pins and unsaid:
        launch = replace(launch, pins={**launch.pins, "zero_stage": 2})
    return launch


def without(fates: tuple[Fate, ...], names: Any, why: str) -> tuple[Fate, ...]:
    """Return the same, some of these fields left out."""
    end: dict[str, Any] = {"kind": LEFT, "detail": f"{NOTHING} ({why})", "changes": NOTHING}
    return tuple(replace(fate, **end) if fate.field in names else fate for fate in fates)


def _field(name: str, value: Any, read: Read, spelling: str = "") -> Launch:
    """Return what one field of accelerate's or DeepSpeed's file says, or a flag."""
    last, known, spelling = name.rpartition(".")[2], _table(), spelling or name
    key = name if name in known["knobs"] or name in known["trainer"] else last
    if last == OF_ALL and value is not None:
        return _counted(value, spelling)
    if value == "auto":
        return _said(spelling, value, "as the trainer's file says")
    if last in _NODES:
        return _nodes(value, spelling)
    if last == CONFIG:
        return of_file(value, read)
    if is_count(value) and last in _BATCH:
        return _ended(spelling, value, SEARCHED, "the batch", batch={last: int(value)})
    if is_count(value) and last in known["parallel"]:
        return _lost(spelling, value, MEMORY, parallel={known["parallel"][last]: int(value)})
    if last == PRECISION or name in ("bf16.enabled", "fp16.enabled"):
        word = name[:4] if value is True else "" if "." in name else str(value).lower()
        return _said(spelling, value, "precision", precision=known["precision"].get(word, ""))
    if last == "use_cpu":
        return _said(spelling, value, "devices.kind", cpu=value is True)
    if last == DISTRIBUTED_TYPE and str(value).upper() not in known["built"].split():
        why = "not built" if str(value).upper() in known["not_built"].split() else "not known"
        return _lost(spelling, value, MEMORY, why, not_built=(f"{name}: {value} is {why}",))
    if last == DISTRIBUTED_TYPE:
        return _sharing(spelling, value, last, str(value).upper())
    given = str(value).lower() == "true" or value
    if key in known["trainer"] and given is not False and isinstance(given, int | float):
        ours = known["trainer"][key]
        detail = f"training.{ours}, unless the trainer's file says it"
        detail = ours if ours == CHECKPOINTING else detail
        return _said(spelling, value, detail, trainer={ours: given})
    if key in known["knobs"]:
        return _knob(spelling, key, value)
    off = str(value).lower() in ("false", "none", "no")
    effect = NOTHING if off else effect_of(known["effects"], key) or NOTHING
    return _lost(spelling, value, effect, known["reasons"].get(effect, ""))


def of_deepspeed(data: Mapping[str, Any]) -> Launch:
    """Return what DeepSpeed's file says."""
    launch = Launch(pins={DISTRIBUTED_TYPE: DEEPSPEED})
    for name, value in leaves(data):
        launch = launch.joined(_field(name, value, lambda _: None))
    return launch


def _sharing(name: str, value: Any, knob: str = "", pin: Any = None) -> Launch:
    detail = "how devices share the training is searched"
    return _ended(name, value, SEARCHED, detail, pins={knob: pin} if knob else {})


def _strategy(value: Any) -> Launch:
    """Return what a strategy of FSDP says, from a trainer's file or accelerate's."""
    word = str(value).lower()
    if word not in _STRATEGIES:
        return Launch(not_built=(f"FSDP's `{value}` is not known",))
    hybrid = f"FSDP's `{value}`" if "hybrid" in word or word in ("4", "5") else ""
    return Launch(pins={RESHARD: _STRATEGIES[word]}, hybrid=hybrid)


def _knob(name: str, key: str, value: Any) -> Launch:
    knob = _table()["knobs"][key]
    pin = value
    if knob == RESHARD:
        return _strategy(value).joined(_sharing(name, value))
    if name.endswith("cpu_offload"):
        pin = "cpu" if value is True else "none"
    if isinstance(pin, str):
        pin = {"true": True, "false": False}.get(pin.lower(), pin.lower())
        pin = int(pin) if isinstance(pin, str) and pin.isdecimal() else pin
    return _sharing(name, value, knob, "none" if pin is None else pin)


def of_trainer(deepspeed: Any, fsdp: Any, fsdp_config: Any, *, read: Read) -> Launch:
    """Return what fields of a trainer's own file say: a DeepSpeed file by name or whole, or
    FSDP."""
    if deepspeed:
        return of_file(deepspeed, read)
    found, given = Launch(), fsdp_config
    if isinstance(given, str) and (given := read(given)) is None:
        unread = f"fsdp_config: {fsdp_config}"
        found = _lost(unread, fsdp_config, MEMORY, _UNREAD, unread=(fsdp_config,))
    given = given if isinstance(given, Mapping) else {}
    config = {str(name).removeprefix("fsdp_"): value for name, value in given.items()}
    strategy = config.get("reshard_after_forward", config.get("sharding_strategy"))
    if config.get("activation_checkpointing") is not None:
        checkpoints = config["activation_checkpointing"]
        found = found.joined(_field("fsdp_activation_checkpointing", checkpoints, read))
    if not fsdp and strategy is None:
        return found
    words = (" ".join(map(str, fsdp)) if isinstance(fsdp, list) else str(fsdp)).split()
    named = [word for word in words if fsdp and word not in ("offload", "auto_wrap")]
    found = found.joined(Launch(pins={DISTRIBUTED_TYPE: FSDP}))
    for word in named if strategy is None else [strategy]:
        found = found.joined(_strategy(word))
    offload = "offload" in words or str(config.get("offload_params")).lower() == "true"
    return found.joined(_field("fsdp_offload_params", True, read)) if offload else found


def of_file(given: Any, read: Read) -> Launch:
    """Return what a DeepSpeed file says, whole or by its name: a file that is here is read, of any
    other only the name is known, if that says anything."""
    data = given if isinstance(given, Mapping) else read(str(given))
    if data is not None:
        return of_deepspeed(data).of("DeepSpeed")
    text = str(given).rpartition("/")[2]
    stage = _NAMED.search(text)
    if stage is None or not int(stage[1]):
        return _lost(f"DeepSpeed: {given}", given, MEMORY, _UNREAD, unread=(str(given),))
    pins: dict[str, Any] = {DISTRIBUTED_TYPE: DEEPSPEED, "zero_stage": int(stage[1])}
    if "offload" in text.lower():
        pins |= {OPTIMIZER_OFFLOAD: "cpu"} | ({PARAM_OFFLOAD: "cpu"} if stage[1] == "3" else {})
    return Launch(pins=pins, guessed=str(given))


def leaves(data: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """Return its fields, the parts of a nested name joined by dots."""
    found: list[tuple[str, Any]] = []
    for name, value in data.items():
        full = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping) and value:
            found += leaves(value, full)
        else:
            found.append((full, value))
    return found


def is_count(value: Any) -> bool:
    """True if a value is a whole number above 0, or such a word."""
    text = "" if isinstance(value, bool) else str(value)
    return text.isdecimal() and len(text) < 8 and int(text) > 0


def of_flags(flags: Mapping[str, Any], launcher: str, read: Read) -> Launch:
    """Return what the flags of `accelerate launch`, `torchrun` or `deepspeed` say."""
    launch = Launch()
    if launcher == "torchrun" and "nproc_per_node" not in flags:
        launch = Launch(count=1, per_machine=True)
    for name, value in flags.items():
        launch = launch.joined(_flag(name.replace("-", "_"), value, f"--{name}", read))
    return launch


def of_settings(data: Mapping[str, Any], read: Read) -> tuple[Launch, dict[str, Any]]:
    """Return what a trainer's fields say of its launcher, and the other fields."""
    launch, rest = Launch(), dict(data)
    for name in (_ACCELERATE, *(n for n in data if n in COUNTS or n == PRECISION)):
        if name in rest:
            launch = launch.joined(_flag(name, rest.pop(name), name, read))
    return launch, rest


def of_variable(name: str, value: str) -> Launch:
    """Return what a variable of the environment before a command says."""
    if name == "CUDA_VISIBLE_DEVICES" and "$" not in value:
        listed = [part.strip() for part in value.split(",")]
        end = next((n for n, part in enumerate(listed) if part in ("", "-1")), len(listed))
        return _said(name, value, "devices, where nothing else says more", visible=end or None)
    if name == "NPROC_PER_NODE" and is_count(value):
        return _said(name, value, "devices", count=int(value), per_machine=True)
    if name == "NNODES" and is_count(value):
        return _nodes(value, name)
    return _lost(name, "***", NOTHING, "set it where the training starts")


def without_counts(variables: Launch) -> Launch:
    """Return what is left of LLaMA-Factory's variables where a launcher starts the program."""
    names, why = ("NPROC_PER_NODE", "NNODES"), "only LLaMA-Factory's command reads it"
    return Launch(visible=variables.visible, fates=without(variables.fates, names, why))


def _flag(key: str, value: Any, spelling: str, read: Read) -> Launch:
    """Return what one setting says.

    Args:
        spelling: as it was given, for its fate.
    """
    if key in _OF_EACH and value is not None:
        return replace(_counted(value, spelling), per_machine=True)
    if key == "include":
        return _included(str(value), spelling)
    if key in _KINDS:
        return _sharing(spelling, value, DISTRIBUTED_TYPE, _KINDS[key])
    if key == "hostfile":
        text = "machines: 1 (`--hostfile` lists them; `--nodes 2` says how many)"
        return _lost(spelling, value, assumed=(text,))
    if key == _ACCELERATE:
        name = str(value)
        text = source_of("trl", f"accelerate_configs/{name}.yaml") if name.isidentifier() else ""
        data = parse_yaml(text, "TRL's file")[0] if text else read(name)
        if data is None:
            return _lost(spelling, value, MEMORY, "give that file, too", unread=(name,))
        found = of_accelerate(data, read).of("accelerate")
        return _said(spelling, value, "read").joined(replace(found, fates=()) if text else found)
    return _field(key, value, read, spelling)


def _counted(value: Any, spelling: str) -> Launch:
    """Return a count of processes; one that is a word (`auto`, `$NGPU`) leaves it open. Refuse
    other numbers."""
    text = str(value).removesuffix(".0")
    if is_count(text):
        return _said(spelling, value, "devices", count=int(text))
    if isinstance(value, int | float) and not isinstance(value, bool):
        what = f"it must be a whole number above 0, but got `{value}`"
        raise user_error(what, where=spelling, hint="without it `--devices 4` says how many train")
    return _lost(spelling, value, LEARNING, "it leaves it open", open=f"{spelling} {value}")


def _nodes(value: Any, spelling: str) -> Launch:
    least, _, most = str(value).partition(":")
    if is_count(least) and most in ("", least):
        return _said(spelling, value, "devices.nodes", nodes=int(least))
    text = f"machines: 1 (`{spelling} {value}` leaves it open; `--nodes 2` says how many)"
    return _lost(spelling, value, LEARNING, "it leaves it open", assumed=(text,))


def _included(value: str, spelling: str) -> Launch:
    """Read DeepSpeed's `--include host:0,1@other:0,1`."""
    counts = [_slots(part) for part in value.split("@")]
    if all(counts):
        return _said(spelling, value, "devices", count=sum(counts), nodes=len(counts))
    return _lost(spelling, value, LEARNING, "it leaves it open", nodes=len(counts))


def _slots(part: str) -> int:
    """Return the devices of a machine; 0: it does not list them."""
    listed = [slot for slot in part.partition(":")[2].split(",") if slot.strip()]
    return len(listed) if all(slot.strip().isdecimal() for slot in listed) else 0
