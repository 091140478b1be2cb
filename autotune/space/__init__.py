"""What may vary."""
