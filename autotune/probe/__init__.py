"""What does happen: the process boundary."""
