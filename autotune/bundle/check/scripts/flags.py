"""What a command tells accelerate, and what it tells the trainer, by flags. Pure.

`accelerate launch [accelerate's flags] SCRIPT [the trainer's flags]`; of `trl METHOD [flags]` those
go to accelerate that the trainer does not know (`trl/cli/commands/training.py`).
"""

import re
from collections.abc import Iterator, Sequence

from autotune.bundle.check.commands import Flags
from autotune.bundle.check.deepspeed_fields import names

SWITCHES = names(
    """
    h help quiet q cpu multi_gpu tpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic
    dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config use_megatron_lm
    same_network m module no_python tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16
    fp8_use_autocast_during_eval debug
    """
)
"""Flags of accelerate that have no value (`accelerate/commands/launch.py`)."""
OF_ACCELERATE = SWITCHES | names(
    """
    config_file mixed_precision num_processes num_machines gpu_ids machine_rank main_process_ip
    main_process_port deepspeed_config_file zero_stage offload_optimizer_device
    offload_param_device offload_optimizer_nvme_path offload_param_nvme_path gradient_clipping
    zero3_init_flag zero3_save_16bit_model deepspeed_multinode_launcher
    """
)
"""Flags that `trl METHOD` gives to accelerate, as far as they are compared with anything."""
_NAMES = ("accelerate", "accelerate.commands.launch", "accelerate-launch")
_REDIRECTS = re.compile(r"\d*[<>]")
_MANY = re.compile(r"\$[@*]|\$\{([@*]|\w+\[[@*]\])\}")
"""Variables that hold several words: behind a switch, too."""
Words = Sequence[str]


def flags_of(command: Words, methods: Words) -> Flags | None:
    """The flags of a command; None where neither accelerate nor `trl` starts it.

    Args:
        command: its words.
        methods: of TRL's commands and scripts.
    """
    files = [word.rpartition("/")[2] for word in command]
    start = next((n for n, name in enumerate(files) if name in _NAMES), None)
    if start is not None:
        rest = command[start + 1 + (files[start] == "accelerate") :]
        if files[start] == "accelerate" and files[start + 1 : start + 2] != ["launch"]:
            return None
        script = _script(rest)
        known = {f"trl.scripts.{name}": name for name in methods}
        return Flags(
            launch=dict(_pairs(rest[:script], SWITCHES)),
            trains=dict(_pairs(rest[script + 1 :])),
            method=known.get(" ".join(rest[script : script + 1])),
            by_trl=False,
            open_launch=script >= len(rest) or _is_open(rest[:script]),
            open_trains=script >= len(rest) or _is_open(rest[script + 1 :]),
        )
    if "trl" not in files[:-1] or files[files.index("trl") + 1] not in methods:
        return None
    start = files.index("trl") + 2
    told = dict(_pairs(command[start:]))
    mine = OF_ACCELERATE | {"accelerate_config"}
    return Flags(
        launch={name: value for name, value in told.items() if name in mine},
        trains={name: value for name, value in told.items() if name not in mine},
        method=files[start - 1],
        by_trl=True,
        open_launch=_is_open(command[start:]),
        open_trains=_is_open(command[start:]),
    )


def _script(words: Words) -> int:
    """Where the script stands that accelerate starts, behind accelerate's own flags."""
    place = 0
    while place < len(words):
        word = words[place]
        if word.startswith("-"):
            name = _name(word)
            place += 1 if "=" in word or name in SWITCHES else 2
        elif word.startswith("$") and _more(words[place + 1 :]):
            place += 1
        else:
            break
    return place


def _more(words: Words) -> bool:
    """Whether accelerate's flags go on behind a variable, which then holds some of them."""
    return any(word in ("-m", "--module") or word.endswith(".py") for word in words)


def _pairs(words: Words, switches: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """(Name, value) of each flag; several values of one are joined by spaces."""
    name, ended = "", False
    values: list[str] = []
    for word in words:
        if _REDIRECTS.match(word):
            break
        if re.match(r"--?[A-Za-z]", word):
            if name:
                yield name, " ".join(values)
            name, values = _name(word), [word.partition("=")[2]] if "=" in word else []
            ended = "=" in word or name in switches
        elif not ended and not (values and word.startswith("$")):
            values.append(word)
        else:
            ended = True
    if name:
        yield name, " ".join(values)


def _name(word: str) -> str:
    return word.lstrip("-").partition("=")[0].replace("-", "_")


def _is_open(words: Words) -> bool:
    """Whether a variable stands where flags do, and may hold any (`"$@"`, `"${ARGS[@]}"`)."""
    for last, word in zip(["", *words], words, strict=False):
        whole = not last.startswith("-") or "=" in last or _name(last) in SWITCHES
        whole = whole or _MANY.fullmatch(word) is not None
        if (word.startswith("$") and whole) or word.count("(") != word.count(")"):
            return True
    return False
