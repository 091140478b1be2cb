"""Expected improvement over what is known (Jones, Schonlau and Welch 1998, equation 15). Pure."""

import math


def normal(z: float) -> float:
    """Return the probability that a standard normal value is below `z`."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


def expected_gain(lead: float, sd: float) -> float:
    """Return how far a normal value is expected to come out above 0, where below counts as 0.

    Args:
        lead: its mean.
        sd: its standard deviation, above 0, in the same unit.
    """
    z = lead / sd
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return max(lead * normal(z) + sd * density, 0.0)
