"""The search for the fastest candidate: Optuna's home."""
