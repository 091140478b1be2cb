"""A trainer on fake tensors. A child only."""
