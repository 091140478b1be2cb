"""Values in a fake run: those that are carried along, and the answers where others are asked for.

A fake tensor has no values. Integer and boolean tensors that decide what a trainer does (masks,
labels, lengths, counts) are small, so the concrete result is carried along: each operator whose
inputs are all known is run on them as well (`KnownValues`). Where a program asks for a value or a
shape that only data decide, the answer is what is carried or else a policy's, which is counted
(`UnknownValues`). Runs in a child only.
"""

import functools
from collections import Counter
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

MAX_NUMBERS = 1 << 21
MAX_FLOATS = 1 << 10
"""Largest tensors whose values are carried."""


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """Return the tensors among an operator's arguments or results; lists of them are looked
    into."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += tensors_in(*value)
        elif isinstance(value, dict):
            tensors += tensors_in(*value.values())
    return tensors


def _small(tensor: torch.Tensor) -> bool:
    numbers = tensor.numel()
    if numbers <= MAX_FLOATS:
        return True
    return numbers <= MAX_NUMBERS and not (tensor.is_floating_point() or tensor.is_complex())


@functools.cache
def _is_mutable(operator: Any) -> bool:
    return bool(operator._schema.is_mutable)


class KnownValues:
    """The concrete values of fake tensors, where they are known."""

    def __init__(self) -> None:
        self._overwritten: Any = WeakIdKeyDictionary()
        """Storages that were written to with something unknown."""

    def of(self, tensor: Any) -> torch.Tensor | None:
        """Return what the tensor holds; None where that is not known."""
        if not isinstance(tensor, FakeTensor):
            return tensor if isinstance(tensor, torch.Tensor) and _small(tensor) else None
        value: torch.Tensor | None = tensor.__dict__.get("autotune_known_value")
        if value is None or tensor.untyped_storage() in self._overwritten:
            return None
        return value

    def as_list(self, tensor: Any) -> Any:
        """Return what `tolist` gives; None where the values are not known."""
        value = self.of(tensor)
        if value is None:
            return None
        with unset_fake_temporarily():
            return value.tolist()

    def set(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Remember what a fake tensor holds."""
        tensor.__dict__["autotune_known_value"] = value

    def set_nonzero(self, tensor: torch.Tensor, mask: torch.Tensor) -> None:
        """Set the values of a tensor of the indices where `mask` is true, which was made empty."""
        value = self.of(mask)
        tensor.__dict__.pop("autotune_known_value", None)
        if value is not None:
            with unset_fake_temporarily():
                self.set(tensor, value.nonzero())

    def follow(self, operator: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Run the operator on the values as well, where all of them are known."""
        outs = tensors_in(out)
        mutates = _is_mutable(operator)
        if not mutates and not any(map(_small, outs)):
            return
        values = self._values(tensors_in(args, kwargs))
        if values is None:
            if mutates:
                self._forget_written(operator, args)
            return

        def concrete(value: Any) -> Any:
            return values[id(value)] if isinstance(value, torch.Tensor) else value

        try:
            with unset_fake_temporarily(), torch.no_grad():
                result = operator(*tree_map(concrete, args), **tree_map(concrete, kwargs))
        except Exception:
            return
        results = tensors_in(result)
        for tensor, value in zip(outs, results, strict=False):
            if isinstance(tensor, FakeTensor) and tensor.shape == value.shape and _small(tensor):
                self.set(tensor, value)

    def _values(self, inputs: list[torch.Tensor]) -> dict[int, torch.Tensor] | None:
        values = {}
        for tensor in inputs:
            value = self.of(tensor)
            if value is None:
                return None
            values[id(tensor)] = value
        return values

    def _forget_written(self, operator: Any, args: Any) -> None:
        for argument, value in zip(operator._schema.arguments, args, strict=False):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in tensors_in(value):
                if isinstance(tensor, FakeTensor) and "autotune_known_value" in tensor.__dict__:
                    self._overwritten[tensor.untyped_storage()] = True


aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)
_READS = (
    aten._local_scalar_dense.default,
    aten.is_nonzero.default,
    aten.item.default,  # in inference mode, where what it is made of never comes by
)


class UnknownValues:
    """Answers of one run."""

    def __init__(self) -> None:
        self.policy: Counter[str] = Counter()
        """Reads of unknown values that had to be answered, by operator."""
        self.known_values = KnownValues()
        self.harmless: Any = WeakIdKeyDictionary()
        """Tensors that tell whether something is wrong: it never is."""

    def answer(self, func: Any, args: Any) -> tuple[bool, Any]:
        """Answer a read of a single value, from what is carried or by policy: (whether it is one,
        value)."""
        if func is aten.equal.default:
            left, right = self.known_values.of(args[0]), self.known_values.of(args[1])
            if left is None or right is None:
                self.policy["equal"] += 1
                return True, True
            with unset_fake_temporarily():
                return True, torch.equal(left, right)
        if func not in _READS:
            return False, None
        value = self.known_values.of(args[0])
        if value is not None:
            with unset_fake_temporarily():
                return True, bool(value) if func is aten.is_nonzero.default else value.item()
        self.policy[func.name()] += 1
        if args[0].dtype is torch.bool or func is aten.is_nonzero.default:
            return True, args[0] not in self.harmless  # any(isnan()) and friends: nothing is wrong
        return True, 1.0 if args[0].dtype.is_floating_point else 1

    def without_unknown_shapes(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """Return an operator whose output has a shape, where that depends on values: the real one,
        or else everything."""
        if func is aten.nonzero.default:
            return aten.empty.memory_format, (self._nonzero_shape(args[0]),), {"dtype": torch.int64}
        if func is aten.masked_select.default:
            shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
            count = self._count_selected(args[1].expand(shape))
            return aten.new_empty.default, (args[0], [count]), {}
        if func is aten.index.Tensor and any(i is not None and i.dtype in _MASKS for i in args[1]):
            indices: list[Any] = []
            for index in args[1]:
                if index is not None and index.dtype in _MASKS:
                    count = self._count_selected(index)
                    indices += [torch.empty(count, dtype=torch.int64) for _ in range(index.ndim)]
                else:
                    indices.append(index)
            return func, (args[0], indices), kwargs
        if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            times = self.known_values.as_list(args[0])
            if times is not None:
                return func, args, {**kwargs, "output_size": sum(times)}
        return func, args, kwargs

    def _count_selected(self, mask: torch.Tensor) -> int:
        value = self.known_values.of(mask)
        if value is None:
            self.policy["everything selected"] += 1
            return int(mask.numel())
        with unset_fake_temporarily():
            return int(value.count_nonzero())

    def _nonzero_shape(self, mask: torch.Tensor) -> list[int]:
        return [self._count_selected(mask), mask.ndim]
