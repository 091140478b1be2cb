"""A user's own script, unchanged: looked at, probed with other fields, started with the best."""
