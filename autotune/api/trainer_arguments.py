"""A candidate as the objects that TRL's trainers take. They come from TRL's own parser, from what
the bundle's YAML says, so that a trainer made of them trains what `launch.sh` would."""

import contextlib
import io
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

from autotune.api.jobs import plain
from autotune.errors import machine_error, user_error
from autotune.job.methods import METHODS
from autotune.space.sharding.sharding import engine_name
from autotune.space.trl_config import Settings, without_none

LAUNCHED = "WORLD_SIZE"
"""A variable that every launcher of several processes sets."""


def training_arguments(chosen: Settings, fields: dict[str, Any]) -> Any:
    """Return the `SFTConfig`, or that of another method, of a candidate, with fields over it.

    Its `model_init_kwargs` have the model loaded as the candidate wants it: type of the weights,
    attention, quantisation.

    Raises:
        UserError: the class has no such field or value.
        MachineError: TRL refuses them on this machine.
    """
    _warn_of_processes(chosen)
    training, model = _parsed(chosen, fields)
    if hasattr(training, "model_init_kwargs"):
        from autotune.training.family import model_kwargs
        from autotune.training.quantized import is_quantized, quantization_of

        loading = model_kwargs(training, model)
        if is_quantized(model):
            loading.setdefault("quantization_config", quantization_of(model))
        training.model_init_kwargs = loading
    return training


def peft_config(chosen: Settings) -> Any:
    """Return the `LoraConfig` of a candidate; None: it trains all weights."""
    if chosen.job.tuning == "full":
        return None
    from trl import get_peft_config

    return get_peft_config(_parsed(chosen, {})[1])


def _parsed(chosen: Settings, fields: dict[str, Any]) -> tuple[Any, Any]:
    """Return (training arguments, ModelConfig)."""
    from autotune.training.family import Family
    from autotune.training.registry import family

    config = {**without_none(chosen.config), **plain(fields)}
    refusal = io.StringIO()  # a parser's: its exception holds a number alone
    try:
        with (
            tempfile.TemporaryDirectory(prefix="autotune-arguments-") as scratch,
            contextlib.redirect_stderr(refusal),
        ):
            # As the bundle is read: a probe of an online method lets no completion end early.
            parts = Family.parse(family(chosen.job.method), config, Path(scratch))
    except (ValueError, ImportError, SystemExit) as error:
        name, device = METHODS[chosen.job.method].config, chosen.facts.device.name
        usage_and_words = refusal.getvalue() if isinstance(error, SystemExit) else str(error)
        words = " ".join(usage_and_words.rpartition("error: ")[2].split())
        if fields:
            _parsed(chosen, {})  # where that fails, too, they are not what is wrong
            raise user_error(
                f"{name} does not take them: {words}",
                where=", ".join(fields),
                hint=f"give fields of {name}, with values as its command line takes them",
            ) from None
        raise machine_error(
            f"the {name} of a training on {device} cannot be made here: {words}",
            hint="make it on the machine that trains, or take the files: `write_bundle(folder)`",
        ) from None
    return parts[1], parts[2]


def _warn_of_processes(chosen: Settings) -> None:
    """Warn that several processes, DeepSpeed and FSDP are the launcher's to set up."""
    if not chosen.sharding.in_group or LAUNCHED in os.environ:
        return
    warnings.warn(
        f"this is for {chosen.processes} x {engine_name(chosen.sharding)}: start your program by "
        "`accelerate launch --config_file accelerate.yaml`, with a file of `write_bundle(folder)`",
        stacklevel=4,
    )
