"""Parts of a peak: their order in a bar, and their colours. Pure."""

from collections.abc import Iterable

PARTS = (
    *("weights", "cast weights", "reference", "reward model", "value model", "gradients"),
    *("optimizer", "activations", "logits", "exchange", "temporaries", "workspaces"),
    *("fragmentation", "context"),
)
"""In the order of a bar; others come behind them."""
TONES = 10
"""Colours of parts."""
_TONES = {
    **{"weights": 0, "cast weights": 1, "gradients": 2, "optimizer": 3, "activations": 4},
    **{"logits": 5, "temporaries": 6, "workspaces": 8, "fragmentation": 7, "context": 9},
}


def ordered(names: Iterable[str]) -> list[str]:
    """Return names of parts in the order of a bar."""
    return sorted(names, key=lambda name: (PARTS.index(name) if name in PARTS else 99, name))


def tone_of(name: str) -> int:
    """Return the colour of a part."""
    return _TONES.get(name, sum(map(ord, name)) % TONES)
