"""What the service remembers: work, its events and files, workers and tokens."""
