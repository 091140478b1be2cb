"""What became of the fields of another tool's configuration, as lines of text."""

import json
from collections.abc import Iterator

from autotune.errors import in_one_line
from autotune.space.foreign.fields import CARRIED, LEFT, SEARCHED, UNKNOWN, Imported

_TITLES = {CARRIED: "carried", SEARCHED: "searched instead", LEFT: "left out", UNKNOWN: "unknown"}
_LONGEST = 32


def imported_view(found: Imported) -> Iterator[str]:
    """Yield a line for each field, by what became of it, and what was assumed."""
    width = max((len(fate.field) for fate in found.fates), default=0)
    for kind, title in _TITLES.items():
        fates = [fate for fate in found.fates if fate.kind == kind]
        if fates:
            yield f"{title}:"
        for fate in fates:
            value = in_one_line(json.dumps(fate.value, ensure_ascii=False, default=str))
            value = value if len(value) <= _LONGEST else f"{value[: _LONGEST - 3]}..."
            name, detail = in_one_line(fate.field), in_one_line(fate.detail)
            yield f"  {name:{width}}  {value:{_LONGEST}}  {detail}"
    if found.assumed:
        yield "assumed:"
    yield from (f"  {in_one_line(text)}" for text in found.assumed)
    yield found.summary
