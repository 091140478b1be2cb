"""vLLM: what it takes, and where."""
