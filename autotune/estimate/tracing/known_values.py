"""Carried values: what small tensors of a fake run hold, so that programs take their real way.

A fake tensor has no values. Integer and boolean tensors that decide what a trainer does (masks,
labels, lengths, counts) are small, so the concrete result is carried along: each operator whose
inputs are all known is run on them as well. What is not known is answered by policy, and counted.
Runs in a child only.
"""

import functools
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
        """A tensor that stands for the indices where `mask` is true, and was made empty."""
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
