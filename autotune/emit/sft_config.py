"""`sft_config.yaml`: the flat YAML that `trl sft --config` reads. Pure."""

from collections.abc import Mapping
from typing import Any

import yaml

from autotune.space.settings import without_none

HEADER = """\
# Written by autotune. Read by `trl sft --config` and by launch.sh beside it.
# Fields of TRL's ScriptArguments, SFTConfig and ModelConfig together, sorted.
"""


class _Dumper(yaml.SafeDumper):
    """Writes equal values alike, be they one object or two."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def sft_config(config: Mapping[str, Any]) -> str:
    """The configuration as YAML text, the same bytes for the same values."""
    body = yaml.dump(
        without_none(config),
        Dumper=_Dumper,
        sort_keys=True,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )
    return HEADER + body
