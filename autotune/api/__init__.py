"""What a Python program calls: `autotune.plan(job)`, `autotune.tune(job)` and their answers. It
decides nothing that the command line does not: both call the same, and say the same."""
