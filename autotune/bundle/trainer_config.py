"""`METHOD_config.yaml`: the flat YAML that `trl METHOD --config` reads. Pure."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from autotune.job.methods import Method
from autotune.space.settings import without_none

HEADER = """\
# Written by autotune. Read by `trl {method.name} --config` and by launch.sh beside it.
# Fields of TRL's ScriptArguments, {method.config} and ModelConfig together, sorted.
"""


class _Dumper(yaml.SafeDumper):
    """Writes equal values alike, be they one object or two."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


OWN_HEADER = """\
# Written by autotune. Read by {method.own_script} and launch.sh beside it.
# Fields of its arguments, {method.config} and TRL's ModelConfig together, sorted.
"""


def trainer_config(config: Mapping[str, Any], method: Method, notes: Sequence[str] = ()) -> str:
    """Return the configuration as YAML text, the same bytes for the same values.

    Args:
        notes: lines of comment for whoever reads it.
    """
    body = yaml.dump(
        without_none(config),
        Dumper=_Dumper,
        sort_keys=True,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )
    comment = "".join(f"# {line}\n" for note in notes for line in textwrap.wrap(note, 98))
    header = OWN_HEADER if method.own_script else HEADER
    return header.format(method=method) + comment + body
