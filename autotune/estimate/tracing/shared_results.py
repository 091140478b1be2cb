"""Results of operators that the traces of a plan share, each of which is a process of its own.

A trace ends by writing down the results that it asked torch for, and the next one begins with them.
The files are of one plan: in its folder, by one version of everything. Runs in a child only.
"""

import contextlib
import hashlib
import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from autotune.estimate.tracing.fake_dispatch import KEPT_RESULTS

_NAMESPACES = ("aten", "prims")
"""Of the operators that every process has as soon as it has imported torch."""
_BROKEN = (OSError, EOFError, pickle.UnpicklingError, AttributeError, TypeError, ValueError)


@contextlib.contextmanager
def shared_results(folder: Path | None, rules: object) -> Iterator[None]:
    """Begin with the results in a folder, and add to them what was found in the meantime.

    A folder that cannot be read or written only costs its time.

    Args:
        folder: None: nothing is shared.
        rules: what the traces that share results have in common; others keep theirs apart.
    """
    if folder is None:
        yield
        return
    folder /= hashlib.sha256(repr(rules).encode()).hexdigest()[:16]
    with contextlib.suppress(OSError):
        for file in sorted(folder.glob("*.results")):
            with contextlib.suppress(*_BROKEN):
                KEPT_RESULTS.update(_Unpickler(io.BytesIO(file.read_bytes())).load())
    before = set(KEPT_RESULTS)
    yield
    with contextlib.suppress(*_BROKEN):
        _write({key: KEPT_RESULTS[key] for key in KEPT_RESULTS.keys() - before}, folder)


def _write(results: dict[Any, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = io.BytesIO()
    _Pickler(data).dump({k: v for k, v in results.items() if k[0].namespace in _NAMESPACES})
    draft = folder / f"{os.getpid()}.draft"
    draft.write_bytes(data.getvalue())
    draft.replace(draft.with_suffix(".results"))


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> tuple[str, str, str] | None:
        if not isinstance(value, torch._ops.OpOverload):
            return None
        return value.namespace, value._opname, value._overloadname


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, name: tuple[str, str, str]) -> Any:
        namespace, operator, overload = name
        return getattr(getattr(getattr(torch.ops, namespace), operator), overload)
