"""The search for the fastest candidate: Optuna's home."""

SAMPLERS = ("estimates", "tpe", "gp", "random", "grid")
"""The values of `--sampler`; the first is ours, the others are for comparison."""
