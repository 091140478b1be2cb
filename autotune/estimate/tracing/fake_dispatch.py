"""Results of FakeTensorMode by short keys: a trace looks tens of thousands of them up.

Torch describes each tensor of a key by all that a tensor may be. Those of a trace are strided, and
neither symbolic, complex nor quantized: a few fields tell them apart. What torch would put into its
own cache is kept here by these, and made again without its checks; everything else torch does as
ever. Runs in a child only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_PLAIN = frozenset(
    {
        *(int, float, bool, str, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    }
)
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_OURS = "autotune"
"""Namespace of operators that are defined here: each makes a tensor."""
_NAMESPACES = ("aten", "prims")
"""Those of torch that neither write elsewhere nor wait for others."""
_BY_DATA = {
    *(torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape),
    torch.Tag.inplace_view,  # changes its argument's shape
}


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


def result_of(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator gives; torch is asked but once."""
    try:
        key = _key(mode, func, args, kwargs)
    except _NoKey:
        return func(*args, **kwargs)
    known = KEPT_RESULTS.get(key)
    if known is not None:
        return known.tensors(mode, args)
    out = func(*args, **kwargs)
    is_tuple = isinstance(out, tuple)
    outs = out if is_tuple else (out,)
    is_given = any(one is value for one in outs for value in kwargs.values() if one is not None)
    if _may_be_kept(func, mode) and not is_given:
        found = [_output_of(func, mode, args, one) for one in outs]
        outputs = tuple(output for output in found if output is not None)
        if len(outputs) == len(found):
            KEPT_RESULTS[key] = _Result(outputs, is_tuple)
    return out


def _may_be_kept(func: Any, mode: FakeTensorMode) -> bool:
    """True if the shapes of an operator's arguments decide about its result, as torch's own cache
    has it, and it changes the shape of none."""
    if func.namespace == _OURS or func is _UNSAFE_VIEW:
        return True
    if func.namespace not in _NAMESPACES:
        return False
    implicit = func.is_view and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    )
    lifts = func in mode.lift_fns
    return not (implicit or lifts or _BY_DATA & {*func.tags})


def _output_of(func: Any, mode: FakeTensorMode, args: Sequence[Any], out: Any) -> _Output | None:
    """Return one output of an operator as it is to be made again; None: it is not an ordinary
    one."""
    if out is None:
        return _Output(None)
    for index, argument in enumerate(args):
        if argument is out:
            return _Output(index)
    if type(out) is not FakeTensor or out.layout is not torch.strided or out.requires_grad:
        return None
    shares = func.is_view or func is _UNSAFE_VIEW
    tensors = [index for index, argument in enumerate(args) if isinstance(argument, torch.Tensor)]
    if shares and len(tensors) != 1:
        return None
    layout = out.shape, out.stride(), out.storage_offset(), out.dtype, out.fake_device
    fields = {name: value for name, value in out.__dict__.items() if name != "fake_mode"}
    output = _Output(tensors[0] if shares else None, layout, fields)
    again = output.tensor(mode, args)
    same = torch._C._dispatch_key_set(again) == torch._C._dispatch_key_set(out)
    return output if same and out.constant is None else None


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
