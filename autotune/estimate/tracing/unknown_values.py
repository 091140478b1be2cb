"""What a fake run is told where the program asks for values or shapes that only data decide.

From what is carried along (`known_values.py`) where it is known; else by policy, which is counted.
Runs in a child only.
"""

from collections import Counter
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils.weak import WeakIdKeyDictionary

from autotune.estimate.tracing.known_values import KnownValues

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
        """Tensors that say whether something is wrong: it never is."""

    def answer(self, func: Any, args: Any) -> tuple[bool, Any]:
        """Reads of single values: from what is carried, or by policy."""
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
        """Operators whose output shape depends on values: the real shape, or else everything."""
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
