"""Where to look next: Optuna's home."""

SAMPLERS = ("estimates", "tpe", "gp", "random", "grid")
"""What `--sampler` takes; the first is ours, the others are for comparison."""
