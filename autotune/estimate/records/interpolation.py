"""Whole numbers between whole numbers: the polynomial through a few known points. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of the known sizes in the polynomial through them, over one denominator."""

    numerators: tuple[int, ...]
    denominator: int

    def interpolate(self, values: Sequence[int]) -> int:
        """Return the polynomial's value, rounded; at least 0."""
        first = values[0]
        if all(value == first for value in values):
            return first
        mixed = sum(w * value for w, value in zip(self.numerators, values, strict=True))
        return max((2 * mixed + self.denominator) // (2 * self.denominator), 0)


def lagrange(sizes: Sequence[int], size: int) -> Weights:
    """Return the weights of `sizes`, all different, at `size`."""
    weights = []
    for index, node in enumerate(sizes):
        weight = Fraction(1)
        for other_index, other_node in enumerate(sizes):
            if other_index != index:
                weight *= Fraction(size - other_node, node - other_node)
        weights.append(weight)
    common = math.lcm(*(weight.denominator for weight in weights))
    return Weights(numerators=tuple(int(w * common) for w in weights), denominator=common)
