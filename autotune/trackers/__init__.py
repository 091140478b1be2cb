"""The search in experiment trackers: each probe a run of theirs, the bundle an artifact."""

TRACKERS = ("wandb", "mlflow", "trackio", "tensorboard")
"""What `--track` takes: each is the name of a package, too."""
PROJECT = "autotune"
"""The project, or experiment, where the user's environment names none."""
