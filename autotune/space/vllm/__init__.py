"""What vLLM takes, and where."""
