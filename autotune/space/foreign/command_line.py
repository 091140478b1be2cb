"""A command that trains, read as flags; nothing of it is run. Pure.

CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 2 train.py --learning_rate 1e-4
trl dpo --config dpo.yaml --beta 0.2
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from autotune.errors import user_error
from autotune.job.methods import EXPERIMENTAL, METHODS
from autotune.job.yaml_file import parse_scalar
from autotune.space.foreign.launch import (
    COUNTS,
    Launch,
    Read,
    of_flags,
    of_variable,
    without,
    without_counts,
)
from autotune.space.foreign.tool import AXOLOTL, LLAMA_FACTORY, TORCHTUNE, TRL, Tool, tool
from autotune.space.sharding.sharding import DISTRIBUTED_TYPE, FSDP

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_OVERRIDE = re.compile(r"[+~]*([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_SWITCHES = frozenset(
    {"multi_gpu", "use_deepspeed", "use_fsdp", "cpu", "quiet", "debug", "standalone", "module"}
    | {"no_python", "use_megatron_lm", "same_network", "tpu"}
)
"""Flags of launchers that take no value."""
_LAUNCHERS = {
    ("accelerate", "launch"): "accelerate",
    ("accelerate-launch",): "accelerate",
    ("-m", "accelerate.commands.launch"): "accelerate",
    ("torchrun",): "torchrun",
    ("-m", "torch.distributed.run"): "torchrun",
    ("-m", "torch.distributed.launch"): "torchrun",
    ("deepspeed",): "deepspeed",
}
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)+")
_REDIRECT = re.compile(r"(?:\d*|&)>{1,2}(&?\d|.*)")
_ENDS = ("|", "|&", "||", "&", "&&", ";")
"""Words of a shell behind which another command begins."""
_TOOLS = {
    "trl": TRL,
    "llamafactory-cli": LLAMA_FACTORY,
    "axolotl": AXOLOTL,
    "tune": TORCHTUNE,
}
_TEXT_SUFFIXES = (".yaml", ".yml", ".json")
MOST_WORDS = 2000


@dataclass(kw_only=True)
class Command:
    """A command, taken apart.

    Attributes:
        tool: whose program it is; None: a script of the user's.
        method: of TRL's command, or of torchtune's recipe.
        flags: of the program, by their names.
        files: configurations that it names, to be read.
        launch: what its launcher says.
        variables: what the environment says before it.
    """

    tool: Tool | None = None
    method: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    launch: Launch = field(default_factory=Launch)
    variables: Launch = field(default_factory=Launch)

    @property
    def file(self) -> str:
        """The name of its tool's table."""
        return self.tool.file if self.tool is not None else ""

    @property
    def of_a_script(self) -> bool:
        """True if a user's own script runs, whose flags may mean anything."""
        return self.tool is None and bool(self.flags or self.files)


def parse_command(words: Sequence[str], read: Read = lambda _: None) -> Command:
    """Return a command's parts.

    Args:
        read: returns what a file holds that a flag of a launcher names.

    Raises:
        UserError: it is none that trains.
    """
    if len(words) > MOST_WORDS:
        raise user_error(f"a command has at most {MOST_WORDS} words", where="the command")
    rest, command = list(words), Command()
    _read_variables(rest, command)
    _drop_shell(rest, command)
    while rest and (launcher := _launcher(rest)):
        command.variables = without_counts(command.variables)
        flags = _launcher_flags(rest)
        config = flags.pop("config_file", None)
        command.files += [str(config)] if config is not None else []
        command.launch = command.launch.joined(of_flags(flags, launcher, read))
    _read_variables(rest, command)
    _read_program(rest, command, read)
    end = rest.index("--") if command.file == AXOLOTL and "--" in rest else len(rest)
    last, rest[end:] = rest[end + 1 :], []
    _read_flags([word for word in rest if word != "--"], command)
    if command.file == AXOLOTL:
        _take_axolotls_launcher(_launcher_flags(last), command, read)
    if not command.flags and not command.files:
        what = "this command has no flags and no configuration file"
        hint = "such as `autotune import -- trl sft --model_name_or_path my-model ...`"
        raise user_error(what, where="the command", hint=hint)
    return command


def _read_variables(rest: list[str], command: Command) -> None:
    """Read the variables of the environment before a command."""
    if rest and rest[0] == "env":
        rest.pop(0)
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
        command.variables = command.variables.joined(of_variable(match[1], match[2]))
        rest.pop(0)


def _drop_shell(rest: list[str], command: Command) -> None:
    """Drop what starts a launcher or a program (`uv run`, `srun -N 2`), but for variables, and
    what a shell does with its output."""
    start = next((n for n in range(len(rest)) if _starts(rest[n:])), 0)
    for word in rest[:start]:
        _read_variables([word], command)
    del rest[:start]
    del rest[next((n for n, word in enumerate(rest) if word in _ENDS), len(rest)) :]
    for n in range(len(rest) - 1, -1, -1):
        if redirect := _REDIRECT.fullmatch(rest[n]):
            del rest[n : n + (1 if redirect[1] else 2)]


def _starts(rest: list[str]) -> bool:
    """True if the words begin with a launcher, a tool's command, a module or a script."""
    name, after = _program(rest[0]), "".join(rest[1:2])
    if name in _TOOLS:
        return after in (*METHODS, *EXPERIMENTAL, "run", "train")
    module = name == "-m" and _MODULE.fullmatch(after) is not None
    return module or rest[0].endswith(".py") or bool(_launcher(list(rest)))


def _launcher(rest: list[str]) -> str:
    """Return the launcher that the words begin with, taken off; empty: none."""
    for start, launcher in _LAUNCHERS.items():
        if (_program(rest[0]), *rest[1 : len(start)]) == start:
            del rest[: len(start)]
            return launcher
    return ""


def _launcher_flags(rest: list[str]) -> dict[str, Any]:
    """Return the launcher's flags, taken off; what follows is its program."""
    flags: dict[str, Any] = {}
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0] == "--":
            rest.pop(0)
            return flags
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        name = name.replace("-", "_")
        if equals:
            flags[name] = _scalar(value)
        elif name in _SWITCHES or not rest or rest[0].startswith("-") or rest[0].endswith(".py"):
            flags[name] = True
        else:
            flags[name] = _scalar(rest.pop(0))
    return flags


def _read_program(rest: list[str], command: Command, read: Read) -> None:
    """Read the program, and what its name says."""
    if rest and _program(rest[0]).startswith("python"):
        rest.pop(0)
        rest[:1] = [] if rest[:1] == ["-u"] else rest[:1]
    if rest and rest[0] == "-m":
        rest.pop(0)
    if not rest or rest[0].startswith("-"):
        return
    name = _program(rest.pop(0))
    command.tool = tool(_TOOLS[name]) if name in _TOOLS else None
    if "axolotl" in name:
        command.tool = tool(AXOLOTL)
    if name in METHODS or name.removeprefix("trl.scripts.") in METHODS:
        command.tool, command.method = tool(TRL), name.removeprefix("trl.scripts.")
    if (last := name.rpartition(".")[2]) in EXPERIMENTAL:
        command.method = last
    if command.file == TRL and rest and rest[0] in (*METHODS, *EXPERIMENTAL):
        command.method = rest.pop(0)
    elif command.file == TORCHTUNE and rest[:1] == ["run"]:
        rest.pop(0)
        found = of_flags(_launcher_flags(rest), "torchrun", read)
        recipe = rest.pop(0) if rest else ""
        command.method = next((name for name in METHODS if name in recipe.split("_")), "")
        if "distributed" in recipe:
            found = Launch(pins={DISTRIBUTED_TYPE: FSDP}).joined(found)
        command.launch = command.launch.joined(found)
    elif command.tool is not None and rest and rest[0] in ("train", "sft"):
        rest.pop(0)


def _read_flags(rest: list[str], command: Command) -> None:
    """Read the flags of the program, configurations and `name=value`."""
    name = ""
    values: dict[str, list[Any]] = {}
    for word in rest:
        override = _OVERRIDE.fullmatch(word)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            values[name] = [_scalar(value)] if equals else []
            name = "" if equals else name
        elif name and not (override and values[name]):
            values[name].append(_scalar(word))
        elif word.lower().endswith(_TEXT_SUFFIXES):
            command.files.append(word)
        elif override:
            values[override[1]] = [_scalar(override[2])]
    for flag, given in values.items():
        whole: Any = True if not given else given[0] if len(given) == 1 else given
        name = flag.replace("-", "_")
        path = isinstance(whole, str) and whole.lower().endswith(_TEXT_SUFFIXES)
        if (name == "config" and isinstance(whole, str)) or (name == "accelerate_config" and path):
            command.files.append(str(whole))
        else:
            command.flags[name] = whole


def _take_axolotls_launcher(flags: dict[str, Any], command: Command, read: Read) -> None:
    """Take what `axolotl train` passes to its launcher: `--launcher` (else accelerate), flags
    behind `--`, and those before it that are none of its own. `--launcher python` passes
    none."""
    given = {name: command.flags.pop(name) for name in COUNTS if name in command.flags}
    launcher, flags = command.flags.pop("launcher", "accelerate"), {**given, **flags}
    launch = of_flags(flags, str(launcher), read)
    if launcher == "python":
        why = "`--launcher python` starts one process"
        launch = Launch(fates=without(launch.fates, [f.field for f in launch.fates], why))
    command.launch = command.launch.joined(launch)


def _program(word: str) -> str:
    name = word.replace("\\", "/").rpartition("/")[2]
    return name.removesuffix(".py")


def _scalar(text: str) -> Any:
    try:
        return parse_scalar(text) if text else text
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
