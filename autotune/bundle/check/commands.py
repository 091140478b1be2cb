"""Commands that a launch gives, as flags and as what is started."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags of one command that trains.

    Attributes:
        launch: those of accelerate: name, with underscores, -> value as it is written; empty where
            it has none.
        trains: those of the trainer, in the same form.
        method: of TRL's own command or script; None where another script trains.
        by_trl: whether `trl METHOD` starts it.
        open_launch: whether accelerate may be told more by a variable.
        open_trains: whether the trainer may.
    """

    launch: Mapping[str, str]
    trains: Mapping[str, str]
    method: str | None
    by_trl: bool
    open_launch: bool
    open_trains: bool


def plain(value: str) -> bool:
    """Whether a value is told in so many words, without variables."""
    return not set(value) & set("$`")


@dataclass(frozen=True, kw_only=True)
class Started:
    """One command of a script.

    Attributes:
        script: name of the file.
        serves: whether it is a vLLM server; else it trains.
        by_trl: whether TRL's own command starts it (`trl vllm-serve`).
        gpus: that it sees, as they are named; empty: variables name them; None: nothing does.
        flags: name, with dashes, -> value; None: a variable's.
        model: that it serves; None: it is not told in so many words.
        told: what flags tell accelerate and the trainer, where accelerate starts it.
    """

    script: str
    serves: bool
    by_trl: bool
    gpus: tuple[str, ...] | None
    flags: Mapping[str, str | None]
    model: str | None
    told: Flags | None = None
