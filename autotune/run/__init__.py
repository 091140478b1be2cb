"""A run from its facts to its bundle; `tuning.py` is the story."""
