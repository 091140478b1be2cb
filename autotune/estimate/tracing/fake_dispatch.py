"""Results of FakeTensorMode by short keys: a trace looks tens of thousands of them up.

Torch describes each tensor of a key by all that a tensor may be. Those of a trace are strided, and
neither symbolic, complex nor quantized: a few fields tell them apart. What torch has put into its
own cache is kept here by these, and made again without its checks; everything else torch does as
ever. Runs in a child only.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from autotune.training.patching import replaced

_HOOKS = ("_cached_dispatch_impl", "_make_cache_entry")
_ENTRY_FIELDS = ("output_infos", "is_output_tuple")
"""What torch's own entries have."""
_PLAIN = frozenset(
    {
        *(int, float, bool, str, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    }
)
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_OURS = "autotune"
"""Namespace of operators that are defined here: each makes a tensor."""
MISSING = object()
"""Stands for a result that is not known."""


@dataclass(frozen=True, slots=True)
class _Output:
    """A tensor that an operator gives.

    Attributes:
        argument: index of the argument that it is (`layout` None), or a view of; None: it is new.
        layout: (shape, strides, offset, dtype, device).
        fields: what torch notes with it, but the mode.
    """

    argument: int | None
    layout: tuple[Any, ...] | None = None
    fields: dict[str, Any] | None = None

    def tensor(self, mode: FakeTensorMode, args: Sequence[Any]) -> Any:
        """Return the tensor."""
        if self.layout is None:
            return None if self.argument is None else args[self.argument]
        shape, strides, offset, dtype, device = self.layout
        storage = None if self.argument is None else args[self.argument].untyped_storage()
        with torch._C._DisableTorchDispatch():
            tensor = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            if storage is not None:
                tensor.set_(storage, offset, shape, strides)
            fake = torch.Tensor._make_subclass(
                FakeTensor, tensor, False, dispatch_device=True, device_for_backend_keys=device
            )
        if not mode._allow_unsafe_data_ptr_access:
            torch._C._set_throw_on_mutable_data_ptr(fake)
        fake.__dict__.update(self.fields)
        fake.fake_mode = mode
        return fake


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of an operator: one output, or a tuple of them."""

    outputs: tuple[_Output, ...]
    is_tuple: bool

    def tensors(self, mode: FakeTensorMode, args: Sequence[Any]) -> Any:
        """Return the tensor, or a tuple of them."""
        if self.is_tuple:
            return tuple(output.tensor(mode, args) for output in self.outputs)
        return self.outputs[0].tensor(mode, args)


KEPT_RESULTS: dict[Any, _Result] = {}
"""By short keys; those of one trace serve the next one of this process."""


class _NoKey(Exception):
    """Something among the arguments is left to torch."""


def known_result(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator gives, without asking torch; `MISSING`: torch has to be asked."""
    try:
        result = KEPT_RESULTS.get(_key(mode, func, args, kwargs))
    except _NoKey:
        return MISSING
    return MISSING if result is None else result.tensors(mode, args)


@contextlib.contextmanager
def short_keys() -> Iterator[None]:
    """FakeTensorMode finds its results by short keys; a torch without these hooks is left alone."""
    entry_class = getattr(fake_tensor, "_DispatchCacheValidEntry", None)
    fields = {field.name for field in dataclasses.fields(entry_class)} if entry_class else set()
    has_hooks = all(hasattr(FakeTensorMode, name) for name in _HOOKS)
    if not has_hooks or not fields.issuperset(_ENTRY_FIELDS):
        yield
        return
    dispatch, make_entry = (getattr(FakeTensorMode, name) for name in _HOOKS)
    entries: list[Any] = []

    def cached_dispatch(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            key = _key(self, func, args, kwargs)
        except _NoKey:
            return dispatch(self, func, types, args, kwargs)
        result = KEPT_RESULTS.get(key)
        if result is not None:
            return result.tensors(self, args)
        entries.append(None)  # an operator may be made of others
        try:
            out = dispatch(self, func, types, args, kwargs)
        finally:
            entry = entries.pop()
        result = _result_of(func, out, entry)
        if result is not None:
            KEPT_RESULTS[key] = result
        return out

    def remember_entry(self: Any, *args: Any) -> Any:
        entry = make_entry(self, *args)
        if entries:
            entries[-1] = entry
        return entry

    with (
        replaced(FakeTensorMode, "_cached_dispatch_impl", cached_dispatch),
        replaced(FakeTensorMode, "_make_cache_entry", remember_entry),
    ):
        yield


def _result_of(func: Any, out: Any, entry: Any) -> _Result | None:
    """Return what to keep of a result; None: nothing.

    Args:
        entry: torch's own; None: it keeps none.
    """
    is_tuple = False
    outputs: list[_Output | None]
    if entry is not None:
        is_tuple = entry.is_output_tuple
        outs = out if is_tuple else (out,)
        outputs = [_output_of(*pair) for pair in zip(entry.output_infos, outs, strict=True)]
    elif func is _UNSAFE_VIEW:  # torch keeps nothing of what shares a storage and is no view
        outputs = [_described(out, 0)]
    elif func.namespace == _OURS:
        outputs = [_described(out, None)]
    else:
        return None
    known = tuple(output for output in outputs if output is not None)
    return _Result(known, is_tuple) if len(known) == len(outputs) else None


def _output_of(info: Any, out: Any) -> _Output | None:
    """Return one output of an operator, by what torch notes of it; None: it is not an ordinary
    one."""
    if info.inplace_idx is not None:
        return _Output(info.inplace_idx)
    if out is None:
        return _Output(None)
    metadata = info.metadata
    if metadata is None or metadata.requires_grad or metadata.is_conj or metadata.is_neg:
        return None
    return _described(out, info.view_idx)


def _described(out: Any, argument: int | None) -> _Output | None:
    """Return a tensor as it is to be made again; None: it is not an ordinary one."""
    if type(out) is not FakeTensor or out.layout is not torch.strided or out.requires_grad:
        return None
    layout = out.shape, out.stride(), out.storage_offset(), out.dtype, out.fake_device
    fields = {name: value for name, value in out.__dict__.items() if name != "fake_mode"}
    return _Output(argument, layout, fields)


def _key(mode: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return what decides about the result of an operator.

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
