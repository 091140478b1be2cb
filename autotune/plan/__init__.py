"""What a space should take."""
