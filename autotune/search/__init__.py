"""Where to look next: Optuna's home."""
