"""A report in which every text is somebody's attempt to become part of the page."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from autotune.report.content import Content

TEXT = (
    "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>"
    "<a href='http://evil.example'>y</a><!--\x1b[31m\u202e\x00 {{ 7*7 }} `|` [x](javascript:alert) "
    "--accent %{x} &lt;\n# heading\n| cell |\n```\n--- \ud800"
)


def hostile(content: Content) -> Content:
    """The content with that text in each place that a run's folder fills."""
    changed: Content = _hostile(content)
    return changed


def _hostile(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kept = {"standing", "outcome"}  # ours: of a few words each
        changes = {f.name: _hostile(getattr(value, f.name)) for f in fields(value)}
        return replace(value, **{k: v for k, v in changes.items() if k not in kept})
    if isinstance(value, str):
        return value and f"{value} {TEXT}"
    if isinstance(value, tuple):
        return tuple(map(_hostile, value))
    if isinstance(value, dict):
        return {_hostile(name): entry for name, entry in value.items()}
    return value
