"""When a candidate is left out, and when enough is known."""
