"""The cache of FakeTensorMode by shorter keys: a trace looks tens of thousands of results up there.

Torch describes each tensor of a key by all that a tensor may be. Those of a trace are strided, and
neither symbolic, complex nor quantized: a few fields tell them apart. Results that torch has put
into its own cache are found by these, and made by torch of what it keeps of them; everything else
torch does as ever. Runs in a child only.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from autotune.training.patching import replaced

_HOOKS = ("_cached_dispatch_impl", "_make_cache_entry", "_output_from_cache_entry")
_PLAIN = frozenset(
    {
        *(int, float, bool, str, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    }
)


_ENTRIES: dict[Any, Any] = {}
"""Torch's entries by short keys; those of one trace serve the next one of this process."""


class _NoKey(Exception):
    """Something among the arguments is left to torch."""


@contextlib.contextmanager
def short_keys() -> Iterator[None]:
    """FakeTensorMode finds its results by short keys; a torch without these hooks is left alone."""
    if not all(hasattr(FakeTensorMode, name) for name in _HOOKS):
        yield
        return
    dispatch, make_entry, output_of = (getattr(FakeTensorMode, name) for name in _HOOKS)
    made: list[Any] = []

    def cached_dispatch(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            key = _key(self, func, args, kwargs)
        except _NoKey:
            return dispatch(self, func, types, args, kwargs)
        entry = _ENTRIES.get(key)
        if entry is not None:
            return output_of(self, None, entry, None, func, args)
        made.append(None)  # an operator may be made of others
        try:
            out = dispatch(self, func, types, args, kwargs)
        finally:
            entry = made.pop()
        if entry is not None:
            _ENTRIES[key] = entry
        return out

    def noted_entry(self: Any, *args: Any) -> Any:
        entry = make_entry(self, *args)
        if made:
            made[-1] = entry
        return entry

    with (
        replaced(FakeTensorMode, "_cached_dispatch_impl", cached_dispatch),
        replaced(FakeTensorMode, "_make_cache_entry", noted_entry),
    ):
        yield


def _key(mode: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """What decides about the result of an operator.

    Raises:
        _NoKey: torch decides by more than is looked at here.
    """
    key = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
    _add(key, mode, args)
    if kwargs:
        key += kwargs
        _add(key, mode, kwargs.values())
    return tuple(key)


def _add(key: list[Any], mode: Any, values: Any) -> None:
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            if value.fake_mode is not mode or value.constant is not None or value.is_inference():
                raise _NoKey
            dtype = value.dtype
            if dtype.is_complex or value.layout is not torch.strided:
                raise _NoKey
            key += (
                value.shape,
                value.stride(),
                value.storage_offset(),
                dtype,
                value.fake_device,
                value.requires_grad,
            )
        elif kind in _PLAIN:
            key += (kind, value)
        elif kind is list or kind is tuple:
            key += (kind, len(value))
            _add(key, mode, value)
        else:
            raise _NoKey
