"""The search space: what may vary."""
