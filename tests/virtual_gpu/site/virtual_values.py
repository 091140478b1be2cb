"""Values on a virtual GPU: the CPU computes what is small, so that code that depends on it runs.

Kernels of a virtual GPU do nothing, but its memory is memory of this process, which the CPU can
read and write. After each operator that ran on the device, the same operator runs on views of the
same memory, where all its tensors are small: masks, lengths, tokens, losses. What comes out of
large tensors is not known; it gets a harmless value: floats 0.5 (finite), booleans False, chosen
tokens an index that is in range.

Known differences: `nonzero` and its like take no scratch; random numbers are others.
"""

import contextlib
import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

MOST_INTEGERS, MOST_FLOATS = 1 << 20, 1 << 14
"""Elements of a tensor that has values. A mask of 16 rows of 8192 tokens has them."""
UNKNOWN_FLOAT = 0.5
SHAPED_BY_VALUES = {"aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2"}
MOST_COPIED = 4 << 20
"""Bytes; larger copies to the host bring zeros (`stand_ins/memory.c`)."""
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
COPIES = {"aten::copy_", "aten::_to_copy"}
CHOICES = {"aten::argmax", "aten::argmin", "aten::multinomial", "aten::max", "aten::min"}
ORDERS = {"aten::sort", "aten::argsort", "aten::topk"}
RANDOM = ("rand", "normal", "bernoulli", "dropout", "multinomial", "exponential", "uniform")
WITHOUT_VALUES = ("empty", "_foreach", "_fused", "_scaled_dot_product", "_local_scalar", "set_")
aten = torch.ops.aten


class VirtualValues(TorchDispatchMode):
    """Gives small tensors on the device their values."""

    def __init__(self) -> None:
        super().__init__()
        self._random = torch.Generator().manual_seed(0)
        self._chosen = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; torch would import its compiler (5 s) to say so."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)  # shapes alone, as DTensor asks for them
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not all(map(_is_plain, tensors)):
            return NotImplemented  # a subclass takes itself apart first
        name = func._schema.name
        on_device = any(tensor.is_cuda for tensor in tensors)
        if on_device and name in SHAPED_BY_VALUES:
            return self._shaped(func, args, kwargs)
        if on_device and name in INDEXED:
            args = (args[0], _without_masks(args[1]), *args[2:])
        out = func(*args, **kwargs)
        outs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        if on_device and name in COPIES and _is_copied_to_host(outs[0]):
            outs[0].nan_to_num_(0, 0, 0)  # gradients are what lay in their memory before
        on_device = on_device or any(tensor.is_cuda for tensor in outs)
        if on_device and name.startswith("aten::") and not _is_view(func):
            self._give_values(func, args, kwargs, tensors, outs)
        return out

    def _shaped(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """What an operator gives whose shape depends on values."""
        device = next(x.device for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor))
        on_cpu = func(*tree_map(_seen, args), **tree_map(_seen, dict(kwargs)))
        return tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, on_cpu)

    def _give_values(
        self,
        func: Any,
        args: Any,
        kwargs: Mapping[str, Any],
        tensors: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
    ) -> None:
        name = func._schema.name
        small = all(map(_is_small, (*tensors, *outs)))
        without = any(name.startswith(f"aten::{word}") for word in WITHOUT_VALUES)
        known = small and not without and not _draws(name, outs)
        if known and self._computed(func, args, kwargs, outs):
            return
        written = func._schema.is_mutable
        if outs and not written and "empty" not in name:
            for out in filter(_is_small, outs):
                if out.is_cuda:
                    self._guess(name, args, out)

    def _computed(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], outs: Sequence[torch.Tensor]
    ) -> bool:
        """Compute on the CPU, into the memory that the device's result has; whether that worked."""
        given = {**tree_map(_seen, dict(kwargs))}
        if "device" in given:
            given["device"] = torch.device("cpu")
        if "pin_memory" in given:
            given["pin_memory"] = False
        if "generator" in given:
            given["generator"] = self._random
        draws = any(word in func._schema.name for word in RANDOM)
        try:
            with self._drawing() if draws else contextlib.nullcontext():
                made = func(*tree_map(_seen, args), **given)
        except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
            return False
        if func._schema.is_mutable:  # it has written into the device's own memory
            return True
        values = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        if [out.shape for out in outs] != [value.shape for value in values]:
            return False  # the device's kernel keeps something else (log_sigmoid)
        for out, value in zip(outs, values, strict=True):
            _seen(out).copy_(value)
        return True

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[None]:
        """The program's own random numbers on the CPU go on as if nothing had been drawn."""
        before = torch.default_generator.get_state()
        torch.default_generator.set_state(self._random.get_state())
        try:
            yield
        finally:
            self._random.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(before)

    def _guess(self, name: str, args: Any, out: torch.Tensor) -> None:
        """A harmless value where none is known."""
        seen = _seen(out)
        if out.dtype.is_floating_point:
            seen.fill_(UNKNOWN_FLOAT)
        elif name in CHOICES and out.dtype == torch.int64:
            self._chosen += 1
            choices = _choices(name, args)
            number = torch.arange(out.numel()).view(out.shape)
            seen.copy_((number * 7919 + self._chosen * 104729) % max(choices, 1))
        elif name in ORDERS and out.dim():
            seen.copy_(torch.arange(out.shape[-1]).expand(out.shape))
        else:
            seen.fill_(_is_finiteness(name, args))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is no subclass that dispatches by itself (DTensor, FakeTensor)."""
    disabled = torch._C._disabled_torch_dispatch_impl
    return type(tensor).__torch_dispatch__ in (disabled, torch.Tensor.__torch_dispatch__)


def _is_small(tensor: torch.Tensor) -> bool:
    most = MOST_FLOATS if tensor.dtype.is_floating_point else MOST_INTEGERS
    return tensor.numel() <= most and tensor.layout == torch.strided


def _is_copied_to_host(tensor: torch.Tensor) -> bool:
    """Whether floats of a copy are in the host's memory, and come from the device."""
    return tensor.is_cpu and tensor.is_floating_point() and tensor.nbytes <= MOST_COPIED


def _is_view(func: Any) -> bool:
    """Whether the result shares its memory with an argument that is not written."""
    returns = (value.alias_info for value in func._schema.returns)
    return any(alias is not None and not alias.is_write for alias in returns)


def _draws(name: str, outs: Sequence[torch.Tensor]) -> bool:
    """Whether the result is random, and no integers (which must be in their range)."""
    drawn = any(word in name for word in RANDOM)
    return drawn and any(out.dtype.is_floating_point or out.dtype == torch.bool for out in outs)


def _seen(value: Any) -> Any:
    """A tensor on the device as one of the CPU over the same memory; anything else as it is."""
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return value
    if not value.numel():
        return torch.empty(value.shape, dtype=value.dtype)
    span = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True)) + 1
    memory = (ctypes.c_char * (span * value.element_size())).from_address(value.data_ptr())
    return torch.frombuffer(memory, dtype=value.dtype).as_strided(value.shape, value.stride())


def _without_masks(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Indices in place of boolean masks: the device cannot count what a mask selects."""

    def columns() -> Iterator[torch.Tensor | None]:
        for index in indices:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                yield index
                continue
            for column in torch.nonzero(_seen(index), as_tuple=True):
                yield column.to(index.device)

    return list(columns())


def _choices(name: str, args: Any) -> int:
    """Of how many one is chosen."""
    shape = args[0].shape
    if name == "aten::multinomial":
        return int(shape[-1])
    dim = args[1] if len(args) > 1 else None
    return int(shape[dim]) if isinstance(dim, int) and shape else math.prod(shape)


def _is_finiteness(name: str, args: Any) -> bool:
    """Whether an operator is a part of `isfinite(x).all()`, which is to be true."""
    if name == "aten::eq":
        return args[0] is args[1]
    if name == "aten::ne":
        return args[1] in (math.inf, -math.inf) if isinstance(args[1], float) else False
    return name in ("aten::all", "aten::isfinite")


def _get_by_numbers(tensor: torch.Tensor, index: Any) -> Any:
    """Return `tensor[mask]` with numbers in place of the mask, as the device could not count it in
    the backward pass. (They take 8 bytes an element more.)"""
    if isinstance(index, torch.Tensor) and index.is_cuda and index.dtype == torch.bool:
        index = torch.nonzero(index, as_tuple=True)
    return _get(tensor, index)


def _scattered_by_numbers(tensor: torch.Tensor, mask: Any, source: Any) -> Any:
    """Return `tensor.masked_scatter(mask, source)` of a source that has what the mask selects."""
    if not mask.is_cuda:
        return _scatter(tensor, mask, source)
    return tensor.index_put(torch.nonzero(mask, as_tuple=True), source)


_get, _scatter = torch.Tensor.__getitem__, torch.Tensor.masked_scatter


def begin() -> None:
    """Give values from now on, in this thread, but not in backward passes.

    Where a dispatch mode is on, autograd adds gradients up out of place, which takes a tensor more
    than a training takes. Nothing in a backward pass depends on values, but for what checkpointing
    computes again (experts that are chosen by value).
    """
    VirtualValues().__enter__()
    run_backward = torch.autograd._engine_run_backward
    running = ctypes.c_int.in_dll(ctypes.CDLL("libvirtual_gpu.so"), "backward_passes")

    def run_without_values(*args: Any, **options: Any) -> Any:
        running.value += 1
        try:
            with _disable_current_modes():
                return run_backward(*args, **options)
        finally:
            running.value -= 1

    torch.autograd._engine_run_backward = run_without_values
    torch.Tensor.__getitem__ = _get_by_numbers
    torch.Tensor.masked_scatter = _scattered_by_numbers
    # Printing goes past every mode, and asks the device which elements are finite.
    in_words = torch._tensor_str._str

    def of_seen(tensor: Any, **options: Any) -> str:
        small = _is_plain(tensor) and tensor.numel() <= MOST_FLOATS
        return in_words(_seen(tensor.detach()) if small else tensor, **options)

    torch._tensor_str._str = of_seen
