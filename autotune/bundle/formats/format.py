"""The forms in which a bundle can be written. Pure."""

from collections.abc import Callable, Mapping

from autotune.bundle.formats import axolotl, llamafactory, trainers
from autotune.bundle.formats.launched import Formatted, Launched

FORMATS: Mapping[str, Callable[[Launched], Formatted]] = {
    "trl": trainers.trl,
    "training-arguments": trainers.training_arguments,
    "accelerate": trainers.accelerate,
    "deepspeed": trainers.deepspeed,
    "axolotl": axolotl.formatted,
    "llamafactory": llamafactory.formatted,
    "python": trainers.script,
    "notebook": trainers.notebook,
    "slurm": trainers.slurm,
    "env": trainers.variables,
}


def formatted(texts: Mapping[str, str], name: str) -> Formatted:
    """Return a bundle in another form.

    Args:
        texts: the bundle's files.
        name: one of `FORMATS`.

    Raises:
        UserError: the form cannot say it.
    """
    return FORMATS[name](Launched.of(texts))
